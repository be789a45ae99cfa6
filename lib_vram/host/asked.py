"""What a person asks of one generation, before the host's own state is added: from the page's fields or from ``p``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.guard.argument import ATTENTIONS, DEFAULT_TILE_SIZE, PREVIEWS, RunArgument
from lib_vram.host.unet_patches import NONE, UnetPatches, patches_on_page
from lib_vram.request import Detailer, Hires, Mode

NO_NAME = ("", "None", "none", "Use same checkpoint")
"""How the hosts write that no model is chosen."""


@dataclass(frozen=True)
class ControlNet:
    """One enabled unit, by the names on the page."""

    model: str
    low_vram: bool = False
    module: str = "none"
    resolution: int | None = None
    """Pixels that the preprocessor sees on the shorter side, ``None`` for the host's own."""


@dataclass(frozen=True)
class Asked:
    """One generation in the host's own words. Sizes in pixels; ``None`` where the host's settings decide."""

    mode: Mode
    width: int
    height: int
    batch_size: int = 1
    batch_count: int = 1
    cfg_scale: float = 7.0
    prompts: tuple[str, ...] = ("",)
    styles: tuple[str, ...] = ()
    hires: Hires | None = None
    checkpoint: str | None = None
    refiner: str | None = None
    refiner_switch_at: float = 0.8
    hr_checkpoint: str | None = None
    patches: UnetPatches = NONE
    """What scripts change about the UNet's work."""
    references: tuple[tuple[int, int], ...] = ()
    """Width and height of pictures beside which the model makes its own, as the host will have them."""
    start_picture: tuple[int, int] | None = None
    """The size of img2img's picture, where it is encoded as it is."""
    controlnets: tuple[ControlNet, ...] = ()
    tiled: bool = False
    tile_size: int = DEFAULT_TILE_SIZE
    apart: bool = False
    gpu_weights_mb: float | None = None
    chosen_modules: tuple[str, ...] | None = None
    """Names in *VAE / Text Encoder*, where the page shows it."""
    inference_memory_mb: float | None = None
    never_oom_unet: bool = False
    never_oom_vae: bool = False
    reserve_mb: float = 0
    """What our own control wants kept free, in MiB; 0 for what the host keeps."""
    unload_idle: bool = False
    live_preview: str = ""
    attention: str = ""
    fp8_weights: bool = False
    upscaler_tile: int = 0
    restores_faces: bool = False
    detailer: Detailer | None = None
    image_size: tuple[int, int] | None = None
    """The img2img picture's own size, when the page scales it by a factor."""


class Form:
    """Typed reading of the page's logical fields; a field that is absent or empty has its default."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def number(self, name: str, default: float) -> float:
        """Return a finite number.

        Raises:
            BadInput: the field holds something else.
        """
        value = self._fields.get(name)
        if value is None or value == "":
            return default
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadInput(name, got=value, takes="a number") from None
        if isinstance(value, bool) or number != number or abs(number) == float("inf"):
            raise BadInput(name, got=value, takes="a number")
        return number

    def whole(self, name: str, default: int) -> int:
        """Return a number without its fraction, as the hosts do with their sliders."""
        return int(self.number(name, default))

    def switch(self, name: str) -> bool:
        """Return whether a box is ticked."""
        return self._fields.get(name) in (True, "true", "True")

    def text(self, name: str) -> str:
        """Return a text."""
        value = self._fields.get(name)
        return value if isinstance(value, str) else ""

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of ``choices``, the first of them for anything else."""
        value = self.text(name)
        return value if value in choices else choices[0]

    def name(self, name: str) -> str | None:
        """Return a model's name, ``None`` when none is chosen."""
        return name_or_none(self._fields.get(name))

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        value = self._fields.get(name)
        return value if isinstance(value, list) else []


def name_or_none(value: Any) -> str | None:
    """Return a model's name, ``None`` for the hosts' ways of writing that none is chosen."""
    return value if isinstance(value, str) and value not in NO_NAME else None


def _sizes(items: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Return pictures' widths and heights, those that are whole numbers above 0."""
    pairs = [tuple(item) for item in items if isinstance(item, list)]
    return tuple(pair for pair in pairs if len(pair) == 2 and all(type(side) is int and side > 0 for side in pair))


def _chosen(value: Any) -> tuple[str, ...] | None:
    return tuple(str(item) for item in value) if isinstance(value, list) else None


def from_form(tab: Mode, fields: Mapping[str, Any]) -> Asked:
    """Return what the page's fields ask for.

    Raises:
        BadInput: a field is not usable.
    """
    form = Form(fields)
    width, height, image_size = _size(tab, form)
    units = [unit for unit in form.items("controlnets") if isinstance(unit, Mapping) and unit.get("enabled")]
    weights = form.number("gpu_weights_mb", -1)
    return Asked(
        mode=tab,
        width=width,
        height=height,
        batch_size=form.whole("batch_size", 1),
        batch_count=form.whole("batch_count", 1),
        cfg_scale=form.number("cfg_scale", 7.0),
        prompts=(form.text("prompt"),),
        styles=tuple(style for style in form.items("styles") if isinstance(style, str)),
        hires=_hires(form) if tab == "txt2img" and form.switch("enable_hr") else None,
        checkpoint=form.name("checkpoint"),
        refiner=form.name("refiner_checkpoint") if form.switch("enable_refiner") else None,
        refiner_switch_at=form.number("refiner_switch_at", 0.8),
        hr_checkpoint=form.name("hr_checkpoint"),
        controlnets=tuple(
            ControlNet(unit["model"], bool(unit.get("low_vram")), name_or_none(unit.get("module")) or "none")
            for unit in units
            if name_or_none(unit.get("model"))
        ),
        tiled=form.switch("vae_tiled"),
        tile_size=form.whole("vae_tile_size", DEFAULT_TILE_SIZE),
        apart=form.switch("cond_uncond_apart"),
        gpu_weights_mb=weights if weights >= 0 else None,
        chosen_modules=_chosen(fields.get("text_encoders")),
        patches=patches_on_page(fields),
        references=_sizes(form.items("stitched")),
        never_oom_unet=form.switch("never_oom_unet"),
        never_oom_vae=form.switch("never_oom_vae"),
        reserve_mb=form.number("reserve_mb", 0),
        unload_idle=form.switch("unload_idle"),
        live_preview=form.choice("live_preview", PREVIEWS),
        attention=form.choice("attention", ATTENTIONS),
        fp8_weights=form.switch("fp8_weights"),
        upscaler_tile=form.whole("upscaler_tile", 0),
        restores_faces=form.switch("restore_faces"),
        image_size=image_size,
    )


def _size(tab: Mode, form: Form) -> tuple[int, int, tuple[int, int] | None]:
    width, height = form.whole("width", 512), form.whole("height", 512)
    scale = form.number("resize_scale", 0)
    if tab != "img2img" or scale <= 0:
        return width, height, None
    image_width, image_height = form.whole("image_width", 0), form.whole("image_height", 0)
    if image_width <= 0 or image_height <= 0:
        return width, height, None
    return int(image_width * scale), int(image_height * scale), (image_width, image_height)


def _hires(form: Form) -> Hires:
    return Hires(
        scale=form.number("hr_scale", 2.0),
        width=form.whole("hr_resize_x", 0),
        height=form.whole("hr_resize_y", 0),
        upscaler=form.text("hr_upscaler") or "Latent",
    )


def from_processing(p: Any, argument: RunArgument, controlnets: tuple[ControlNet, ...]) -> Asked:
    """Return what the host's processing object asks for, in ``before_process``."""
    images = getattr(p, "init_images", None) or []
    prompts = [*_texts(p.prompt), *_texts(getattr(p, "hr_prompt", ""))]
    overrides = p.override_settings or {}
    modules = overrides.get("forge_additional_modules")
    memory_mb = overrides.get("forge_inference_memory")
    return Asked(
        mode="img2img" if hasattr(p, "init_images") else "txt2img",
        width=int(p.width),
        height=int(p.height),
        batch_size=_pictures_at_once(int(p.batch_size), len(images)),
        batch_count=int(p.n_iter),
        cfg_scale=float(p.cfg_scale if p.cfg_scale is not None else 7.0),
        prompts=tuple(prompts),
        styles=tuple(p.styles or ()),
        hires=_hires_of(p) if getattr(p, "enable_hr", False) else None,
        checkpoint=name_or_none(overrides.get("sd_model_checkpoint")),
        refiner=name_or_none(getattr(p, "refiner_checkpoint", None)),
        refiner_switch_at=float(getattr(p, "refiner_switch_at", None) or 0.8),
        hr_checkpoint=name_or_none(getattr(p, "hr_checkpoint_name", None)),
        start_picture=_encoded_as_it_is(p, images),
        controlnets=controlnets,
        chosen_modules=_base_names(modules) if isinstance(modules, (list, tuple)) else None,
        tiled=argument.tiled,
        tile_size=argument.tile_size,
        apart=argument.apart,
        reserve_mb=argument.reserve_mb,
        unload_idle=argument.unload_idle,
        live_preview=argument.live_preview,
        attention=argument.attention,
        fp8_weights=argument.fp8_weights,
        upscaler_tile=argument.upscaler_tile,
        restores_faces=bool(getattr(p, "restore_faces", False)),
        inference_memory_mb=float(memory_mb) if memory_mb is not None else None,
    )


LATENT_RESIZE = 3
"""img2img's *Just resize (latent upscale)*."""


def _encoded_as_it_is(p: Any, images: Sequence[Any]) -> tuple[int, int] | None:
    """Return the size of the largest picture whose latent, not itself, is resized; not of one cut to its mask."""
    masked = getattr(p, "image_mask", None) is not None and getattr(p, "inpaint_full_res", False)
    sizes = [size for size in (getattr(image, "size", None) for image in images) if isinstance(size, tuple)]
    if getattr(p, "resize_mode", 0) != LATENT_RESIZE or masked or not sizes:
        return None
    return max(sizes, key=lambda size: int(size[0]) * int(size[1]))


def _base_names(paths: Sequence[Any]) -> tuple[str, ...]:
    return tuple(os.path.basename(str(path)) for path in paths)


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value or "")]


def _pictures_at_once(batch_size: int, images: int) -> int:
    """Return the batch size as the hosts' img2img will have it: several pictures lower it to their number."""
    return images if 1 < images <= batch_size else batch_size


def _hires_of(p: Any) -> Hires:
    return Hires(
        scale=float(p.hr_scale or 2.0),
        width=int(p.hr_resize_x or 0),
        height=int(p.hr_resize_y or 0),
        upscaler=getattr(p, "hr_upscaler", None) or "Latent",
    )
