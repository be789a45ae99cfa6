"""The Lab's page: the fields of a WebUI that matter for memory, under the WebUIs' own element ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from lib_vram.guard.argument import NAMES
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import CARDS, CHECKPOINTS, DEFAULT_CARD, FLAGS, HOSTS, MODES
from lib_vram.lab import run
from lib_vram.message import render, say
from lib_vram.request import Mode
from lib_vram.ui import accordion, compat, tab
from lib_vram.ui.html import tag
from lib_vram.units import GIB, MIB

Fields = dict[str, gr.components.Component]
"""Components by the name that they have in the form."""

UNITS = 2
CONTROL_MODELS = ("None", "control_canny", "control_depth", "control_openpose")
UPSCALERS = ("Latent", "Latent (nearest)", "R-ESRGAN 4x+", "Lanczos")
SAMPLERS = ("DPM++ 2M", "Euler a", "Euler", "DDIM")
VAE_DTYPES = ("fp16", "fp32")
ATTENTIONS = ("sdpa", "xformers", "sub_quad", "split", "math")
REFINERS = ("None", "sd_xl_refiner_1.0.safetensors")
EXAMPLES: dict[str, dict[str, Any]] = {
    "fits": {"width": 1024, "height": 1024, "batch_size": 1, "batch_count": 1, "enable_hr": False},
    "batch": {"width": 1024, "height": 1024, "batch_size": 16, "batch_count": 1, "enable_hr": False},
    "hires": {"width": 832, "height": 1216, "batch_size": 1, "batch_count": 1, "enable_hr": True},
}
OWN_FIELDS = {"tiled": "vae_tiled", "tile_size": "vae_tile_size", "apart": "cond_uncond_apart"}
"""Names in the form of the controls of our accordion; the others are called as in the run's argument."""
A1111_CONTROLS = ("tiled", "tile_size", "attention")
SHOWN = frozenset(NAMES) - {"mode", "reserve_mb", "unload_idle"}
"""The Lab has *GPU Weights* for the reserve, and no models of earlier work."""
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "sans-serif")
"""Fonts of this machine: gradio's own would come from another one."""


class Page:
    """The page while it is built: its words, its guard, and the fields that both tabs share."""

    def __init__(self, guard: Guard, language: str) -> None:
        self.guard = guard
        self.language = language
        self.shared: Fields = {}
        self.examples: dict[str, gr.Button] = {}
        self.forge_only: list[gr.blocks.Block] = []
        self.a1111_only: list[gr.blocks.Block] = []

    def words(self, name: str) -> str:
        """Return the sentence ``lab.<name>``."""
        return render(say(f"lab.{name}"), self.language)


def build(guard: Guard, language: str) -> gr.Blocks:
    """Return the Lab's page."""
    page = Page(guard, language)
    theme = gr.themes.Default(font=_FONTS, font_mono=("ui-monospace", "monospace"))
    with gr.Blocks(theme=theme, title=page.words("title"), analytics_enabled=False) as blocks:
        _header(page)
        _machine(page)
        _quick_settings(page)
        with gr.Tabs(elem_id="tabs"):
            for name in ("txt2img", "img2img"):
                with gr.Tab(name, elem_id=f"tab_{name}"):
                    _generation_tab(page, name)
            with gr.Tab(tab.TITLE, elem_id=f"tab_{tab.ELEM_ID}"):
                tab.build()
        _follow_machine(page)
    compat.queue(blocks)
    return blocks


def _header(page: Page) -> None:
    title, intro = tag("h1", page.words("title")), tag("p", page.words("intro"))
    gr.HTML(tag("div", title, intro, class_="lab-header"))
    with gr.Row(elem_id="lab_try"):
        gr.HTML(tag("p", page.words("try_intro"), class_="lab-hint"))
        page.examples = {
            key: gr.Button(page.words(f"try_{key}"), size="sm", elem_id=f"lab_try_{key}") for key in EXAMPLES
        }


def _machine(page: Page) -> None:
    fields, words = page.shared, page.words
    with gr.Row(elem_id="lab_machine"):
        fields["lab_card"] = gr.Dropdown(
            [name for name, _ in CARDS], value=DEFAULT_CARD[0], label=words("card"), elem_id="lab_card",
            allow_custom_value=True,
        )  # fmt: skip
        fields["lab_total_gib"] = gr.Slider(
            1, 48, value=DEFAULT_CARD[1], step=0.5, label=words("total"), elem_id="lab_total"
        )
        fields["lab_others_gib"] = gr.Slider(0, 24, value=1, step=0.1, label=words("others"), elem_id="lab_others")
    with gr.Row(elem_id="lab_host_row"):
        fields["lab_host"] = gr.Radio(list(HOSTS), value="AUTOMATIC1111", label=words("host"), elem_id="lab_host")
        fields["lab_flags"] = gr.Radio(list(FLAGS), value="none", label=words("flags"), elem_id="lab_flags")
        fields["lab_mode"] = gr.Radio(list(MODES), value="Ask", label=words("mode"), elem_id="lab_mode")
        fields["lab_rescue"] = gr.Checkbox(False, label=words("rescue"), elem_id="lab_rescue")
    page.a1111_only.append(fields["lab_flags"])


def _quick_settings(page: Page) -> None:
    fields, words = page.shared, page.words
    total_mb = DEFAULT_CARD[1] * GIB // MIB
    with gr.Row(elem_id="quicksettings"):
        names = [checkpoint.name for checkpoint in CHECKPOINTS]
        fields["checkpoint"] = gr.Dropdown(
            names, value=names[0], label="Checkpoint", elem_id="setting_sd_model_checkpoint"
        )
        fields["gpu_weights_mb"] = gr.Slider(
            0, total_mb, value=total_mb - 1024, step=1, label="GPU Weights (MB)", visible=False
        )
        fields["lab_vae_dtype"] = gr.Dropdown(
            list(VAE_DTYPES), value=VAE_DTYPES[0], label=words("vae_dtype"), elem_id="lab_vae_dtype"
        )
        fields["lab_attention"] = gr.Dropdown(
            list(ATTENTIONS), value=ATTENTIONS[0], label=words("attention"), elem_id="lab_attention"
        )
    page.forge_only.append(fields["gpu_weights_mb"])


def _follow_machine(page: Page) -> None:
    """A card from the list has its own size; GPU Weights ends at the card's; each host shows its own settings."""
    card, total, weights = (page.shared[name] for name in ("lab_card", "lab_total_gib", "gpu_weights_mb"))
    card.change(_card_size, [card, total], [total], queue=False, show_progress="hidden")
    total.change(_weights_range, [total], [weights], queue=False, show_progress="hidden")
    follows = page.forge_only + page.a1111_only
    shown = [True] * len(page.forge_only) + [False] * len(page.a1111_only)
    host = page.shared["lab_host"]
    host.change(lambda name: _show_for(name, shown), [host], follows, queue=False, show_progress="hidden")


def _card_size(name: str, total_gib: float) -> float:
    return dict(CARDS).get(name, total_gib)


def _weights_range(total_gib: float) -> dict[str, Any]:
    total_mb = int(total_gib * GIB / MIB)
    return gr.update(maximum=total_mb, value=max(0, total_mb - 1024))


def _show_for(host: str, forge: list[bool]) -> list[dict[str, Any]]:
    return [gr.update(visible=(host == "Forge") == is_forge) for is_forge in forge]


def _generation_tab(page: Page, name: Mode) -> None:
    fields: Fields = {}
    with gr.Row(elem_id=f"{name}_toprow"):
        generate = _top_row(page, name, fields)
    with gr.Row(elem_classes=["lab-columns"]):
        with gr.Column(scale=5, elem_id=f"{name}_settings"):
            _size_fields(page, name, fields)
            _accordions(page, name, fields)
        with gr.Column(scale=4, elem_id=f"{name}_results"):
            outputs = _results(page, name)
    run_argument = fields.pop("mode")
    inputs = {**page.shared, **fields}
    handler = _handler(page, name, list(inputs))
    for pressed in (generate.click, fields["prompt"].submit):
        pressed(handler, [run_argument, *inputs.values()], outputs, show_progress="hidden", api_name=False)
    if name == "txt2img":
        _examples(page, fields)


def _top_row(page: Page, name: str, fields: Fields) -> gr.Button:
    with gr.Column(scale=6):
        fields["prompt"] = gr.Textbox(
            "a lighthouse at dusk, oil painting", lines=3, show_label=False, elem_id=f"{name}_prompt", label="Prompt",
            placeholder=page.words("prompt_hint"), elem_classes=["prompt"],
        )  # fmt: skip
        fields["negative_prompt"] = gr.Textbox(
            "", lines=2, show_label=False, elem_id=f"{name}_neg_prompt", label="Negative prompt",
            placeholder=page.words("negative_hint"), elem_classes=["prompt"],
        )  # fmt: skip
    with gr.Column(scale=1, elem_id=f"{name}_actions_column", min_width=320):
        with gr.Row(elem_id=f"{name}_generate_box", elem_classes=["generate-box"]):
            generate = gr.Button("Generate", variant="primary", elem_id=f"{name}_generate")
        gr.HTML(tag("p", page.words("lora_hint"), class_="lab-hint"))
    return generate


def _examples(page: Page, fields: Fields) -> None:
    """Buttons for a first try, each of which sets a few fields."""
    for key, values in EXAMPLES.items():
        handler = _constant(list(values.values()))
        outputs = [fields[name] for name in values]
        page.examples[key].click(handler, [], outputs, queue=False, show_progress="hidden")


def _constant(values: list[Any]) -> Callable[[], list[Any]]:
    return lambda: values


def _size_fields(page: Page, name: str, fields: Fields) -> None:
    with gr.Row():
        fields["sampler"] = gr.Dropdown(
            list(SAMPLERS), value=SAMPLERS[0], label="Sampling method", elem_id=f"{name}_sampling"
        )
        fields["steps"] = gr.Slider(1, 150, value=20, step=1, label="Sampling steps", elem_id=f"{name}_steps")
    if name == "img2img":
        with gr.Column(elem_id="mode_img2img"):
            gr.Image(label=page.words("image"), type="pil", elem_id="img2img_image", height=200)
    with gr.Row():
        with gr.Column(scale=4, min_width=200, elem_id=f"{name}_column_size"):
            fields["width"] = gr.Slider(64, 4096, value=1024, step=8, label="Width", elem_id=f"{name}_width")
            fields["height"] = gr.Slider(64, 4096, value=1024, step=8, label="Height", elem_id=f"{name}_height")
        with gr.Column(scale=4, min_width=200, elem_id=f"{name}_column_batch"):
            fields["batch_count"] = gr.Slider(
                1, 100, value=1, step=1, label="Batch count", elem_id=f"{name}_batch_count"
            )
            fields["batch_size"] = gr.Slider(1, 16, value=1, step=1, label="Batch size", elem_id=f"{name}_batch_size")
    fields["cfg_scale"] = gr.Slider(1, 30, value=7, step=0.5, label="CFG Scale", elem_id=f"{name}_cfg_scale")


def _accordions(page: Page, name: str, fields: Fields) -> None:
    if name == "txt2img":
        _hires(fields)
    with gr.Accordion("Refiner", open=False):
        fields["enable_refiner"] = gr.Checkbox(False, label="Refiner", elem_id=f"{name}_enable-checkbox")
        with gr.Row():
            fields["refiner_checkpoint"] = gr.Dropdown(
                list(REFINERS), value=REFINERS[0], label="Checkpoint", elem_id=f"{name}_checkpoint"
            )
            fields["refiner_switch_at"] = gr.Slider(
                0.01, 1, value=0.8, step=0.01, label="Switch at", elem_id=f"{name}_switch_at"
            )
    with gr.Accordion("ControlNet", open=False):
        for unit in range(UNITS):
            _control_unit(f"{name}_controlnet_ControlNet-{unit}", unit, fields)
    with gr.Accordion("VRAM Guard", open=False):
        made = dict(zip(NAMES, accordion.controls(name, page.language, SHOWN), strict=True))
    fields |= {OWN_FIELDS.get(key, key): control for key, control in made.items()}
    with gr.Accordion("Never OOM Integrated", open=False, visible=False) as never_oom:
        fields["never_oom_unet"] = gr.Checkbox(False, label="Enabled for UNet (always maximize offload)")
        fields["never_oom_vae"] = gr.Checkbox(False, label="Enabled for VAE (always tiled)")
    page.a1111_only += [made[key] for key in A1111_CONTROLS]
    page.forge_only.append(never_oom)


def _hires(fields: Fields) -> None:
    with gr.Accordion("Hires. fix", open=True):
        fields["enable_hr"] = gr.Checkbox(False, label="Hires. fix", elem_id="txt2img_hr-checkbox")
        with gr.Row():
            fields["hr_upscaler"] = gr.Dropdown(
                list(UPSCALERS), value=UPSCALERS[0], label="Upscaler", elem_id="txt2img_hr_upscaler"
            )
            fields["hr_scale"] = gr.Slider(1, 4, value=2, step=0.05, label="Upscale by", elem_id="txt2img_hr_scale")
        with gr.Row():
            fields["hr_resize_x"] = gr.Slider(
                0, 4096, value=0, step=8, label="Resize width to", elem_id="txt2img_hr_resize_x"
            )
            fields["hr_resize_y"] = gr.Slider(
                0, 4096, value=0, step=8, label="Resize height to", elem_id="txt2img_hr_resize_y"
            )


def _control_unit(elem_id: str, unit: int, fields: Fields) -> None:
    with gr.Row():
        fields[f"unit{unit}_enabled"] = gr.Checkbox(
            False, label=f"Unit {unit}: Enable", elem_id=f"{elem_id}_controlnet_enable_checkbox"
        )
        fields[f"unit{unit}_low_vram"] = gr.Checkbox(
            False, label="Low VRAM", elem_id=f"{elem_id}_controlnet_low_vram_checkbox"
        )
        fields[f"unit{unit}_model"] = gr.Dropdown(
            list(CONTROL_MODELS), value=CONTROL_MODELS[1], label="Model",
            elem_id=f"{elem_id}_controlnet_model_dropdown",
        )  # fmt: skip


def _results(page: Page, name: str) -> list[gr.components.Component]:
    progress = gr.HTML("", elem_id=f"{name}_progress")
    log = gr.HTML("", elem_id=f"html_log_{name}")
    gallery = gr.Gallery(
        label=page.words("gallery"), elem_id=f"{name}_gallery", columns=2, height=420, preview=False,
        object_fit="contain",
    )  # fmt: skip
    infotext = gr.HTML(tag("p", page.words("waiting"), class_="lab-hint"), elem_id=f"html_info_{name}")
    return [progress, gallery, infotext, log]


def _handler(page: Page, name: Mode, names: list[str]) -> Callable[..., Iterator[list[Any]]]:
    def generate(run_argument: str, *values: Any) -> Iterator[list[Any]]:
        form = run.form_of(dict(zip(names, values, strict=True)), UNITS)
        for state in run.generate(page.guard, name, form, run_argument, page.language):
            yield [state.progress_html, state.images, state.infotext_html, state.log_html]

    return generate
