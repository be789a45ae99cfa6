"""The modules of A1111 and Forge that VRAM Guard touches, put into ``sys.modules`` for one test."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.fakehost import processing
from tests.fakehost.processing import Img2Img, Record, Txt2Img

REPOSITORY = Path(__file__).parents[2]
SCRIPT_FILE = REPOSITORY / "scripts" / "vram_guard.py"


class Options:
    """The host's options: values in ``data``, known names in ``data_labels``."""

    def __init__(self, **values: Any) -> None:
        self.data = dict(values)
        self.data_labels: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("data", "data_labels"):
            raise AttributeError(name)
        if name in self.data:
            return self.data[name]
        if name in self.data_labels:
            return self.data_labels[name].default
        raise AttributeError(name)

    def add_option(self, key: str, info: Any) -> None:
        self.data_labels[key] = info
        self.data.setdefault(key, info.default)


class Script:
    """Base of the scripts."""

    args_from = args_to = None

    def title(self) -> str:
        return ""


class NeverOom(Script):
    """Forge's own switches: writes what its arguments say, in its ``process``, at every run."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host

    def title(self) -> str:
        return "Never OOM Integrated"

    def process(self, p: Any, unet: bool, vae: bool) -> None:
        self.host.modules["backend.memory_management"].VAE_ALWAYS_TILED = vae


class ControlNetScript(Script):
    def title(self) -> str:
        return "ControlNet"


class Runner:
    """Runs the hooks of the always-on scripts; a hook that raises is logged, and the run goes on."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.alwayson_scripts: list[Any] = []
        self.defaults: list[Any] = [0]

    def add(self, script: Any, defaults: list[Any]) -> None:
        script.args_from = len(self.defaults)
        self.defaults += defaults
        script.args_to = len(self.defaults)
        self.alwayson_scripts.append(script)

    def run_hook(self, name: str, p: Any, *more: Any) -> None:
        for script in self.alwayson_scripts:
            hook = getattr(script, name, None)
            if hook is None:
                continue
            try:
                hook(p, *more, *p.script_args[script.args_from : script.args_to])
            except Exception:
                self.host.record.log.append(traceback.format_exc())


class FakeHost:
    """One host. ``record`` tells what it did."""

    def __init__(self, name: str, checkpoint: Path) -> None:
        self.name = name
        self.record = Record()
        self.modules: dict[str, ModuleType] = {}
        self.opts = Options(
            sd_model_checkpoint="model.safetensors", live_previews_enable=True, show_progress_type="Approx NN",
            localization="None", use_old_hires_fix_width_height=False,
        )  # fmt: skip
        self.callbacks: dict[str, list[Any]] = {}
        self.model: Any = None
        self._build(checkpoint)
        self.runner = Runner(self)

    def make(self, kind: type = Txt2Img, *, own: Any = None, own_title: str = "VRAM Guard", **fields: Any) -> Any:
        """Return a processing object with the scripts' default arguments, ours being ``own``."""
        p = kind(self, **fields)
        p.scripts, arguments = self.runner, list(self.runner.defaults)
        if own is not None:
            script = next(item for item in self.runner.alwayson_scripts if item.title() == own_title)
            arguments[script.args_from : script.args_from + len(own)] = own
        p.script_args = tuple(arguments)
        return p

    def img2img(self, images: list[Any], **fields: Any) -> Any:
        return self.make(Img2Img, init_images=images, **fields)

    def load_model(self) -> None:
        self.record.models_loaded += 1

    def sample(self, p: Any) -> None:
        if self.name == "forge":
            function = self.modules["backend.sampling.sampling_function"]
            function.calc_cond_uncond_batch("model", ["cond"], ["uncond"], p.batch_size, 0.5, {})
        elif self.opts.batch_cond_uncond:
            self.record.unet_batches.append(2 * p.batch_size)
        else:
            self.record.unet_batches += [p.batch_size, p.batch_size]

    def decode(self, p: Any) -> None:
        if self.name == "forge":
            tiled = self.modules["backend.memory_management"].VAE_ALWAYS_TILED
            self.record.decodes.append("tiled" if tiled else "whole")
        else:
            self.modules["modules.sd_samplers_common"].samples_to_images_tensor("latent", 0, self.model)

    def load_scripts(self) -> None:
        """Clear the callbacks and run the extension's script file, as the host does at its start and on *Reload UI*."""
        self.callbacks.clear()
        spec = importlib.util.spec_from_file_location("vram_guard_script", SCRIPT_FILE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.runner = Runner(self)
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, Script) and thing is not Script:
                self.runner.add(thing(), ["", False, 768, False])
        if self.name == "forge":
            self.runner.add(NeverOom(self), [False, False])
        self.runner.add(ControlNetScript(), [None, None])

    def unload_scripts(self) -> None:
        for callback in self.callbacks.get("script_unloaded", []):
            callback()

    # building

    def _build(self, checkpoint: Path) -> None:
        self._common(checkpoint)
        self._a1111() if self.name == "a1111" else self._forge()

    def module(self, name: str, **members: Any) -> ModuleType:
        """Make a module and its parents."""
        parent = name.rpartition(".")[0]
        if parent and parent not in self.modules:
            self.module(parent)
        made = self.modules[name] = ModuleType(name)
        made.__path__ = []
        made.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
        vars(made).update(members)
        if parent:
            setattr(self.modules[parent], name.rpartition(".")[2], made)
        return made

    def _common(self, checkpoint: Path) -> None:
        info = SimpleNamespace(filename=str(checkpoint), title="model.safetensors")
        styles = SimpleNamespace(apply_styles_to_prompt=lambda prompt, names: ", ".join([prompt, *names]))
        self.cmd_opts = SimpleNamespace(disable_extension_access=False, no_half=False)
        self.module(
            "modules.shared", opts=self.opts, cmd_opts=self.cmd_opts, prompt_styles=styles,
            OptionInfo=lambda default, label, component=None, args=None, section=None: SimpleNamespace(
                default=default, label=label, args=args, section=section),
        )  # fmt: skip
        self.module("modules.scripts", Script=Script, AlwaysVisible=object())
        self.module("modules.script_callbacks", **{f"on_{name}": self._callback(name) for name in (
            "ui_settings", "ui_tabs", "app_started", "script_unloaded")})  # fmt: skip
        self.module(
            "modules.sd_models", checkpoints_list={"model.safetensors": info},
            model_data=SimpleNamespace(sd_model=None),
            get_closet_checkpoint_match=lambda name: info if name == "model.safetensors" else None,
        )  # fmt: skip
        self.module("modules.extra_networks", parse_prompts=_parse_prompts)
        self.module("modules.processing", process_images=processing.process_images)

    def _callback(self, name: str) -> Any:
        return lambda function: self.callbacks.setdefault(name, []).append(function)

    def _a1111(self) -> None:
        self.opts.data |= {
            "fp8_storage": "Disable",
            "cross_attention_optimization": "Automatic",
        }
        self.opts.data_labels["batch_cond_uncond"] = SimpleNamespace(default=True)  # not in the settings file
        self.module("modules.lowvram")
        self.module("modules.devices", dtype="torch.float16", dtype_vae="torch.float16")
        sdp = SimpleNamespace(name="sdp", cmd_opt="opt_sdp_attention", title=lambda: "sdp - scaled dot product")
        self.module("modules.sd_hijack", current_optimizer=sdp, optimizers=[sdp])
        self.module("modules.launch_utils", git_tag=lambda: "v1.10.1")
        self.model = SimpleNamespace(first_stage_model=SimpleNamespace(decoder=SimpleNamespace(forward=None)))
        self.modules["modules.shared"].sd_model = self.model

        def samples_to_images_tensor(sample: Any, approximation: Any = None, model: Any = None) -> str:
            tile = vars(model.first_stage_model.decoder).get("vram_guard_tile_size")
            self.record.decodes.append(f"tiled {tile}" if tile else "whole")
            return "picture"

        self.module("modules.sd_samplers_common", samples_to_images_tensor=samples_to_images_tensor)

    def _forge(self) -> None:
        self.opts.data |= {"forge_unet_storage_dtype": "Automatic", "forge_inference_memory": 1024}
        self.module(
            "backend.memory_management", total_vram=12288.0, current_inference_memory=1024**3,
            VAE_ALWAYS_TILED=False, vae_dtype=lambda: "torch.bfloat16",
        )  # fmt: skip
        flags = (
            "vae_in_fp32", "vae_in_fp16", "all_in_fp32", "unet_in_bf16", "unet_in_fp8_e4m3fn", "unet_in_fp8_e5m2",
            "attention_split", "attention_quad",
        )  # fmt: skip
        self.module("backend.args", args=SimpleNamespace(**dict.fromkeys(flags, False)))

        def attention_pytorch() -> None: ...

        self.module("backend.attention", attention_function=attention_pytorch)

        def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, batch: int, *rest: Any) -> tuple[str, str]:
            halves = len(cond) + len(uncond or ())
            self.record.unet_batches.append(halves * batch)
            return ("cond" if cond else "nothing"), ("uncond" if uncond else "nothing")

        self.module("backend.sampling.sampling_function", calc_cond_uncond_batch=calc_cond_uncond_batch)
        self.module("modules_forge.forge_version", version="2.0.1v1.10.1")


def _parse_prompts(prompts: list[str]) -> tuple[list[str], dict[str, list[Any]]]:
    found: dict[str, list[Any]] = {}
    for kind, rest in re.findall(r"<(\w+):([^>]+)>", prompts[0]):
        found.setdefault(kind, []).append(SimpleNamespace(positional=rest.split(":"), named={}))
    return prompts, found


def forget_modules() -> list[str]:
    """Return the names of host modules that are in ``sys.modules`` now."""
    return [
        name for name in sys.modules if name.partition(".")[0] in ("modules", "backend", "modules_forge", "ldm_patched")
    ]
