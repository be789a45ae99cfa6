"""Forge Neo: it keeps a reserve of its own free, rounds sizes to 64, and loads the checkpoint after our hook."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from lib_vram.errors import NotReady
from lib_vram.host import levers_storage, neo_references, units
from lib_vram.host.asked import Asked
from lib_vram.host.backend_line import BackendLine
from lib_vram.host.forge import sampling_apart
from lib_vram.host.headers import inspect_file
from lib_vram.host.levers import levers_of
from lib_vram.host.neo_failure import show_the_cause
from lib_vram.host.patches import Patches, Run
from lib_vram.host.webui import WebUI, dtype_name, stands_in
from lib_vram.machine.card import Card
from lib_vram.physics.weights import storage_type
from lib_vram.request import Hires, HostName, Mode, Request
from lib_vram.units import MIB

LOGGER = "vram_guard"
RESERVED_BEFORE = "vram_guard_original"
"""Attribute of our figure for what is reserved that holds Neo's own."""
CPU_UPSCALER = "None"
"""Neo's name for enlarging the picture itself, which is what it does where no Latent upscaler is known."""
FRAMES_STEP = 4
"""Wan computes groups of four frames, and one (``process_images_inner``)."""
WAN_WIDTH_OF_14B = 5120

_ATTENTION = {
    "attention_xformers": "xformers", "attention_pytorch": "sdpa", "attention_flash": "sdpa",
    "attention_sage": "sage", "attention_basic": "math",
}  # fmt: skip
_QUANTISED = ("fp8", "q8_0", "q4_k", "q4_0", "nf4", "int8")
_HALF_FIRST = ("sd15", "sdxl", "sdxl_refiner", "wan21_1b", "wan21_14b")
"""Families that Neo computes in fp16 where it can; the others in bf16 (``supported_inference_dtypes``)."""

_FAMILIES = {
    "SD15": "sd15", "SDXL": "sdxl", "SDXLRefiner": "sdxl_refiner", "Flux": "flux1", "FluxSchnell": "flux1",
    "Flux2K4B": "flux2_klein_4b", "Flux2K9B": "flux2_klein_9b", "Chroma": "chroma", "Lumina2": "lumina2",
    "ZImage": "zimage", "QwenImage": "qwen_image",
}  # fmt: skip
"""Classes of Neo's model list, by which a loaded model is known whose header says nothing."""


class Neo(BackendLine):
    """Haoming02's Forge Neo and bundles of it."""

    name: HostName = "neo"
    title = "Forge Neo"
    own_controls = WebUI.own_controls | {"tiled", "reserve_mb", "fp8_weights"}
    cheap_preview = "RGB"
    memory_flags = frozenset(
        {
            "gpu-only", "highvram", "normalvram", "lowvram", "novram", "neveroom", "cpu", "cpu-vae", "cpu-text-enc",
            "force-fp32", "force-fp16", "fp32-unet", "bf16-unet", "fp16-unet", "fp8_e4m3fn-unet", "fp8_e5m2-unet",
            "fp32-vae", "bf16-vae", "fp16-vae", "disable-smart-memory", "use-pytorch-cross-attention",
            "force-upcast-attention", "cuda-malloc", "cuda-stream", "pin-shared-memory", "expandable-segments",
            "directml", "tiled-conv2d", "vae-device", "text-enc-device",
        }
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.tiles_are_ours = False
        """Whether Neo's switch for tiles is on because a run of ours has set it."""
        self._lasting = Patches()

    def start(self) -> None:
        """Let the log have our warnings, which Neo's own level hides, and the page the cause of a failure."""
        logger = logging.getLogger(LOGGER)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
        self._lasting.undo()
        show_the_cause(self._lasting, lambda: self.settings().language, self._failed)

    def restore(self, p: Any = None) -> None:
        """Undo what was changed for the run of ``p``; for ``None`` everything, the telling of causes too."""
        super().restore(p)
        if p is None:
            self._lasting.undo()

    def version(self) -> str:
        """Return Neo's version: ``neo-2.26``."""
        from modules_forge import forge_version

        return f"{forge_version.version}-{getattr(forge_version, 'release', '')}".rstrip("-")

    def host_arguments(self) -> list[str]:
        """Return the flags that decide about memory; the one with a figure carries it."""
        from backend.args import args

        reserve = getattr(args, "reserve_vram", None)
        return super().host_arguments() + ([f"--reserve-vram={reserve:g}"] if reserve is not None else [])

    # requests

    def checkpoint_path(self, name: str | None) -> str | None:
        """Return the file of the checkpoint that the run will load: at this moment another one may be in memory."""
        from modules import sd_models

        chosen = getattr(sd_models.model_data, "forge_loading_parameters", {}).get("checkpoint_info")
        if name or chosen is None:
            return super().checkpoint_path(name)
        return os.path.abspath(chosen.filename)

    def _common(self, want: Asked, card: Card) -> dict[str, Any]:
        if self.option("forge_model_mode", "local") == "api":
            raise NotReady("model", got="a model of another service", takes="a model that runs here")
        data = super()._common(want, card)
        if data["model"]["family"].startswith("wan"):
            data["frames"], data["batch_size"] = _whole_groups(want.batch_size), 1
        return data

    def asked(self, p: Any) -> Asked:
        """Return what ``p`` asks for, with the pictures of *ImageStitch*."""
        return dataclasses.replace(super().asked(p), references=neo_references.stitched(p))

    def asked_by_form(self, tab: Mode, form: Mapping[str, Any]) -> Asked:
        """Return what the page's fields ask for. Raises as all hosts'."""
        want = super().asked_by_form(tab, form)
        return dataclasses.replace(want, references=neo_references.on_page(want.references))

    def references(self, want: Asked, family: str, path: str | None) -> tuple[tuple[int, int], ...]:
        """Return the sizes of img2img's own picture and the others', where the model takes any."""
        return neo_references.seen(want, family, path, self.option)

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the VAE, what stays free, and whether cond and uncond go together."""
        chosen = self.chosen(want)
        return {
            "vae": {"dtype": self._vae_dtype(card), "checkpoint": chosen.vae_checkpoint},
            "text_encoders": list(chosen.text_encoders),
            "batch_cond_uncond": not want.apart,
            "forge": {
                "inference_memory_bytes": self._reserve_asked(want),
                "never_oom_vae": want.tiled or self._always_tiled(),
                "online_lora": self.online_lora(),
            },
        }

    def _always_tiled(self) -> bool:
        """Whether Neo decodes everything in tiles by its own choice (``--neveroom``)."""
        from backend import memory_management

        return bool(memory_management.VAE_ALWAYS_TILED) and not self.tiles_are_ours

    def _sizes(self, want: Asked) -> tuple[int, int, Hires | None]:
        width, height, hires = super()._sizes(want)
        if hires is not None and not self._is_latent_upscaler(hires.upscaler):
            hires = dataclasses.replace(hires, upscaler=_picture_upscaler(hires.upscaler))
        return width, height, hires

    @staticmethod
    def _is_latent_upscaler(name: str) -> bool:
        from modules import shared

        return name in (getattr(shared, "latent_upscale_modes", None) or {})

    def _vae_dtype(self, card: Card) -> str:
        from backend import memory_management
        from backend.args import args

        if stands_in(card) and not (args.fp32_vae or args.force_fp32):
            return "fp16" if args.fp16_vae else "bf16"
        return dtype_name(memory_management.vae_dtype(), "bf16")

    def weights_dtype(self, path: str | None, card: Card) -> str:
        """Return the UNet's type: of *Diffusion in Low Bits*, of a quantised file, else the family's half precision."""
        from backend.args import args

        chosen = str(self.option("forge_unet_storage_dtype", "Automatic"))
        if "nf4" in chosen or "fp4" in chosen:
            return "nf4"
        if "float8" in chosen or args.fp8_e4m3fn_unet or args.fp8_e5m2_unet:
            return "fp8"
        if args.fp32_unet or args.force_fp32:
            return "fp32"
        if args.bf16_unet or args.fp16_unet:
            return "bf16" if args.bf16_unet else "fp16"
        return _as_stored(path)

    def attention(self, card: Card) -> str:
        """Return the attention that Neo chose at its start, on a stand-in card what it would choose there."""
        from backend import attention

        if stands_in(card):
            return "sdpa"
        return _ATTENTION.get(getattr(attention.attention_function, "__name__", ""), "sdpa")

    def _loaded_family(self, path: str | None) -> str | None:
        model = self.loaded_model()
        if not self.is_loaded(path):
            return None
        config = getattr(model, "model_config", None)
        names = [kind.__name__ for kind in type(config).__mro__]
        if "WAN21_T2V" in names:
            width = getattr(config, "unet_config", {}).get("dim", WAN_WIDTH_OF_14B)
            return "wan21_14b" if width >= WAN_WIDTH_OF_14B else "wan21_1b"
        return _FAMILIES.get(names[0]) or super()._loaded_family(path)

    # levers

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return the switches of our own accordion: Neo has none for tiles."""
        tiles = ("vae_tiled", original.forge.never_oom_vae, changed.forge.never_oom_vae)
        return [tiles, *self.reserve_pair(original, changed), *super().lever_pairs(original, changed)]

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on what ``request`` asks for in the run of ``p``, on top of what all hosts have."""
        super().prepare_run(p, request)
        want = self.asked(p)
        if levers_of(request, want).stores_fp8 and levers_storage.can_store_fp8():
            levers_storage.forge_in_fp8(self, p)
        argument = units.own_argument(p)
        apart = not request.batch_cond_uncond if request else argument.apart
        tiled = request.forge.never_oom_vae if request else argument.tiled
        if tiled and not self._always_tiled():
            run = self.runs.of(p)
            run.wrap(p, "init", self._then_in_tiles(p.init, run))
        self._keep_free(p, request.forge.inference_memory_bytes if request else self._reserve_asked(want))
        if apart:
            run = self.runs.of(p)
            run.wrap(p, "sample", sampling_apart(p.sample, run))

    def _then_in_tiles(self, init: Callable[..., Any], run: Run) -> Callable[..., Any]:
        """Return ``p.init`` that first switches tiles on: after every script's ``process``, before the first encode."""

        def init_in_tiles(*arguments: Any, **named: Any) -> Any:
            from backend import memory_management

            if run.active:
                run.of_run.set_attribute(memory_management, "VAE_ALWAYS_TILED", True)
                run.of_run.set_attribute(self, "tiles_are_ours", True)
            return init(*arguments, **named)

        return init_in_tiles

    def _reserve_asked(self, want: Asked) -> int:
        """Return what ``want`` has kept free: our own control's figure where that is more than Neo's."""
        return max(int(want.reserve_mb) * MIB, self._own_reserve())

    @staticmethod
    def _own_reserve() -> int:
        from backend import memory_management

        now = memory_management.minimum_inference_memory() - memory_management.extra_reserved_memory()
        return int(now + _reserved_before(memory_management)())

    def _keep_free(self, p: Any, wanted_bytes: int) -> None:
        """Have Neo keep ``wanted_bytes`` free in every phase of the run of ``p``: it looks its figure up each time.

        What it keeps is a minimum of its own and, on top, what it reserves for others: the second one is set.
        A model that is on the card already gives back as much as is missing.
        """
        from backend import memory_management

        own_bytes = self._own_reserve()
        if wanted_bytes <= own_bytes:
            return
        before = _reserved_before(memory_management)
        reserved = before() + wanted_bytes - own_bytes

        def extra_reserved_memory() -> float:
            return reserved

        vars(extra_reserved_memory)[RESERVED_BEFORE] = before
        self.runs.of(p).of_run.set_attribute(memory_management, "extra_reserved_memory", extra_reserved_memory)


def _reserved_before(memory: Any) -> Callable[[], float]:
    """Return Neo's own function for what it reserves, from below ours where that lies over it."""
    return getattr(memory.extra_reserved_memory, RESERVED_BEFORE, memory.extra_reserved_memory)


def _whole_groups(frames: int) -> int:
    return max(0, frames - 1) // FRAMES_STEP * FRAMES_STEP + 1


def _picture_upscaler(name: str) -> str:
    """Return the upscaler that runs: the hosts' old default names one that Neo does not have."""
    return CPU_UPSCALER if not name or name.lower().startswith("latent") else name


def _as_stored(path: str | None) -> str:
    """Return the type in which Neo keeps the UNet of a file by itself."""
    checkpoint = inspect_file(path) if path else None
    parts = checkpoint.components if checkpoint else ()
    stored = storage_type(next((part.dtype for part in parts if part.name in ("unet", "transformer")), ""))
    if stored in _QUANTISED:
        return stored
    family = checkpoint.family if checkpoint else None
    return "fp16" if family is None or family in _HALF_FIRST or stored == "fp16" else "bf16"
