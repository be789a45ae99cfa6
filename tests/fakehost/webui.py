"""What all fake hosts share: the modules of the A1111 line that VRAM Guard touches, put into ``sys.modules``.

A host is one small file with a subclass of :class:`FakeHost`: ``build`` makes its own modules, ``sample`` and
``decode`` record what its UNet and its VAE would have done, ``own_scripts`` are the scripts that come with it.
"""

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


class ControlNetScript(Script):
    """Reads its units in ``process``; keeps its models in ``model_cache``, as A1111's extension does."""

    model_cache: dict[str, Any]

    def __init__(self) -> None:
        type(self).model_cache = {}
        self.low_vram: list[bool] = []

    def title(self) -> str:
        return "ControlNet"

    def process(self, p: Any, *units: Any) -> None:
        self.low_vram += [bool(unit["low_vram"]) for unit in units if unit]


class Tensor:
    """A parameter of a model: where it lies, and its size."""

    def __init__(self, device: str, size_bytes: int) -> None:
        self.device = SimpleNamespace(type=device)
        self.size_bytes = size_bytes

    def numel(self) -> int:
        return self.size_bytes

    def element_size(self) -> int:
        return 1


class Module:
    """A torch module: parameters that can be moved."""

    def __init__(self, size_bytes: int, device: str = "cuda", **fields: Any) -> None:
        self.weights = [Tensor(device, size_bytes)]
        vars(self).update(fields)

    def parameters(self) -> list[Tensor]:
        return self.weights

    def to(self, device: str) -> Module:
        for tensor in self.weights:
            tensor.device = SimpleNamespace(type=device)
        return self

    @property
    def is_on_card(self) -> bool:
        return self.weights[0].device.type == "cuda"


class UpscalerESRGAN:
    """An upscaler whose class has no option of its own."""


class UpscalerDAT:
    """One that has."""


class UpscalerLanczos:
    """One that needs no model."""


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

    name = ""
    reads_headers_in: tuple[str, ...] = ()
    """Modules of ours that read a checkpoint's header for this host by a name of their own (``inspect_file``)."""

    def __init__(self, checkpoint: Path) -> None:
        self.record = Record()
        self.modules: dict[str, ModuleType] = {}
        self.opts = Options(
            sd_model_checkpoint="model.safetensors", live_previews_enable=True, show_progress_type="Approx NN",
            ESRGAN_tile=192, DAT_tile=256, localization="None", use_old_hires_fix_width_height=False,
        )  # fmt: skip
        self.callbacks: dict[str, list[Any]] = {}
        self.model: Any = None
        self._common(checkpoint)
        self.build()
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

    @property
    def is_interrupted(self) -> bool:
        """Whether the user has pressed *Interrupt*: the host looks before each batch."""
        return bool(getattr(getattr(self.modules["modules.shared"], "state", None), "interrupted", False))

    def load_model(self) -> None:
        self.record.models_loaded += 1

    @property
    def is_in_fp8(self) -> bool:
        """Whether the loaded model's weights are stored in fp8."""
        return False

    def others_on_card(self) -> list[Any]:
        """Return the models on the card that belong to nothing that runs."""
        return [item.net for item in self.modules["modules.shared"].face_restorers if item.net and item.net.is_on_card]

    def look_around(self, p: Any) -> None:
        """Record what the host is like when ``p`` is sampled."""
        self.record.options.append(dict(self.opts.data))
        self.record.weights.append("fp8" if self.is_in_fp8 else "fp16")
        self.record.idle.append(len(self.others_on_card()))

    def settle(self, p: Any) -> None:
        """Change ``p`` as the host does between ``before_process`` and ``process``; most do nothing."""

    def sample(self, p: Any) -> None:
        """Record in ``record.unet_batches`` how many latents each call of the UNet gets."""
        raise NotImplementedError

    def decode(self, p: Any) -> None:
        """Record in ``record.decodes`` how the VAE decodes."""
        raise NotImplementedError

    def encode(self, p: Any) -> None:
        """Record in ``record.encodes`` how the VAE encodes, on hosts that have no tiles of their own for it."""

    def vae_in_our_tiles(self) -> None:
        """Make a VAE and the functions through which A1111 and reForge decode and encode."""
        halves = {name: SimpleNamespace(forward=None) for name in ("decoder", "encoder")}
        self.model = SimpleNamespace(first_stage_model=SimpleNamespace(**halves))
        self.modules["modules.shared"].sd_model = self.model

        def working(half: Any) -> str:
            tile = vars(half).get("vram_guard_tile_size")
            return f"tiled {tile}" if tile else "whole"

        def samples_to_images_tensor(sample: Any, approximation: Any = None, model: Any = None) -> str:
            self.record.decodes.append(working(model.first_stage_model.decoder))
            return "picture"

        def images_tensor_to_samples(image: Any, approximation: Any = None, model: Any = None) -> str:
            self.record.encodes.append(working((model or self.model).first_stage_model.encoder))
            return "latent"

        self.module(
            "modules.sd_samplers_common",
            samples_to_images_tensor=samples_to_images_tensor,
            images_tensor_to_samples=images_tensor_to_samples,
        )
        self.modules["modules.processing"].images_tensor_to_samples = images_tensor_to_samples

    def own_scripts(self) -> list[tuple[Script, list[Any]]]:
        """Return the always-on scripts that come with the host, each with its arguments' defaults."""
        return []

    def build(self) -> None:
        """Make the host's own modules and options."""
        raise NotImplementedError

    def load_scripts(self) -> None:
        """Clear the callbacks and run the extension's script file, as the host does at its start and on *Reload UI*."""
        self.callbacks.clear()
        spec = importlib.util.spec_from_file_location("vram_guard_script", SCRIPT_FILE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.runner = self.modules["modules.scripts"].scripts_txt2img = Runner(self)
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, Script) and thing is not Script:
                self.runner.add(thing(), ["", False, 768, False, 0, False, "", "", False, 0])
        for script, defaults in [*self.own_scripts(), (ControlNetScript(), [None, None])]:
            self.runner.add(script, defaults)

    def unload_scripts(self) -> None:
        for callback in self.callbacks.get("script_unloaded", []):
            callback()

    # building

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
            "modules.shared", opts=self.opts, cmd_opts=self.cmd_opts, prompt_styles=styles, face_restorers=[],
            sd_upscalers=[
                SimpleNamespace(name="ESRGAN_4x", scaler=UpscalerESRGAN()),
                SimpleNamespace(name="DAT x4", scaler=UpscalerDAT()),
                SimpleNamespace(name="Lanczos", scaler=UpscalerLanczos()),
            ],
            OptionInfo=lambda default, label, component=None, args=None, section=None: SimpleNamespace(
                default=default, label=label, args=args, section=section),
        )  # fmt: skip
        self.module("modules.scripts", Script=Script, AlwaysVisible=object(), scripts_txt2img=None)
        self.module("modules.script_callbacks", **{f"on_{name}": self._callback(name) for name in (
            "model_loaded", "ui_settings", "ui_tabs", "app_started", "script_unloaded")})  # fmt: skip
        self.module(
            "modules.sd_models", checkpoints_list={"model.safetensors": info},
            model_data=SimpleNamespace(sd_model=None),
            get_closet_checkpoint_match=lambda name: info if name == "model.safetensors" else None,
        )  # fmt: skip
        self.module("modules.extra_networks", parse_prompts=_parse_prompts)
        self.module(
            "modules.processing",
            process_images=processing.process_images,
            process_images_inner=processing.process_images_inner,
        )

    def _callback(self, name: str) -> Any:
        return lambda function: self.callbacks.setdefault(name, []).append(function)


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
