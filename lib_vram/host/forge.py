"""Forge: it swaps weights to keep a reserve for computing, and brings its own tiled VAE (*Never OOM*)."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from lib_vram.guard.fail_open import fail_open
from lib_vram.host import levers_storage, units
from lib_vram.host.asked import Asked
from lib_vram.host.backend_line import BackendLine
from lib_vram.host.headers import inspect_file
from lib_vram.host.levers import levers_of
from lib_vram.host.patches import Patches, Run
from lib_vram.host.webui import WebUI, dtype_name, stands_in
from lib_vram.machine.card import Card
from lib_vram.physics.weights import storage_type
from lib_vram.request import HostName, Mode, Request
from lib_vram.units import MIB

NEVER_OOM = "never oom integrated"
RESERVE_OPTION = "forge_inference_memory"
NEW_RESERVE = "need_global_unload"
"""What Forge notes in ``modules.processing`` when the reserve has changed: all models leave before the next run."""
_FORMS_REMEMBERED = 64
UNET, VAE = 0, 1
"""Positions of the two switches in that script's arguments."""

SMALLEST_TILED_SIDE = 128
"""Pixels: with a side below its overlap of 16 latent pixels Forge's tiled decode ends in an error (June 2025)."""

_ATTENTION = {
    "attention_xformers": "xformers", "attention_pytorch": "sdpa",
    "attention_split": "split", "attention_sub_quad": "sub_quad", "attention_basic": "math",
}  # fmt: skip
_QUANTISED = ("fp8", "q8_0", "q4_k", "q4_0", "nf4", "int8")


class Forge(BackendLine):
    """lllyasviel's Forge."""

    name: HostName = "forge"
    title = "Forge"
    own_controls = WebUI.own_controls | {"reserve_mb", "fp8_weights"}
    loads_anew = (*BackendLine.loads_anew, "forge_inference_memory", "forge_async_loading", "forge_pin_shared_memory")
    memory_flags = frozenset(
        {
            "always-gpu", "always-high-vram", "always-normal-vram", "always-low-vram", "always-no-vram",
            "always-offload-from-vram", "all-in-fp32", "all-in-fp16", "unet-in-bf16", "unet-in-fp16",
            "unet-in-fp8-e4m3fn", "unet-in-fp8-e5m2", "vae-in-fp16", "vae-in-fp32", "vae-in-bf16", "vae-in-cpu",
            "clip-in-fp8-e4m3fn", "clip-in-fp8-e5m2", "clip-in-fp16", "clip-in-fp32", "attention-split",
            "attention-quad", "attention-pytorch", "cuda-malloc", "cuda-stream", "pin-shared-memory",
        }
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._with_gpu_weights: OrderedDict[Request, None] = OrderedDict()
        """Requests of pages that show *GPU Weights*: some of Forge's presets do not."""

    def version(self) -> str:
        """Return Forge's version."""
        from modules_forge import forge_version

        return str(forge_version.version)

    def asked(self, p: Any) -> Asked:
        """Return what ``p`` asks for, with the switches of *Never OOM*; our own tiled switch is the same lever here."""
        want = super().asked(p)
        switches = units.arguments_of(p, NEVER_OOM)
        unet, vae = (bool(switches[UNET]), bool(switches[VAE])) if len(switches) > VAE else (False, False)
        return dataclasses.replace(want, never_oom_unet=unet, never_oom_vae=vae)

    def request_from_form(self, tab: Mode, form: Mapping[str, Any]) -> Request:
        """Return the request of the page's fields, and remember whether *GPU Weights* is one. Raises as all hosts'."""
        request = super().request_from_form(tab, form)
        self._with_gpu_weights.pop(request, None)
        if form.get("gpu_weights_mb") is not None:
            self._with_gpu_weights[request] = None
        while len(self._with_gpu_weights) > _FORMS_REMEMBERED:
            self._with_gpu_weights.popitem(last=False)
        return request

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the VAE, Forge's own memory settings and whether cond and uncond go together."""
        chosen = self.chosen(want)
        return {
            "vae": {"dtype": self._vae_dtype(card), "checkpoint": chosen.vae_checkpoint},
            "text_encoders": list(chosen.text_encoders),
            "batch_cond_uncond": not want.apart,
            "forge": {
                "inference_memory_bytes": self._inference_memory_bytes(want),
                "never_oom_vae": want.never_oom_vae or (want.tiled and _can_tile(want.width, want.height)),
                "never_oom_unet": want.never_oom_unet,
                "online_lora": self.online_lora(),
            },
        }

    def _inference_memory_bytes(self, want: Asked) -> int:
        """Return the reserve for computing: the run's own, that of the page's *GPU Weights*, or Forge's current one."""
        from backend import memory_management

        if want.reserve_mb:
            return int(want.reserve_mb) * MIB
        if want.inference_memory_mb is not None:
            return int(want.inference_memory_mb) * MIB
        if want.gpu_weights_mb is not None:
            return max(0, int(memory_management.total_vram) - int(want.gpu_weights_mb)) * MIB
        if RESERVE_OPTION in self.meanwhile:
            return int(self.meanwhile[RESERVE_OPTION]) * MIB
        return int(memory_management.current_inference_memory)

    def _vae_dtype(self, card: Card) -> str:
        from backend import memory_management
        from backend.args import args

        if stands_in(card) and not (args.vae_in_fp32 or args.all_in_fp32):
            return "fp16" if args.vae_in_fp16 else "bf16"
        return dtype_name(memory_management.vae_dtype(), "fp16")

    def weights_dtype(self, path: str | None, card: Card) -> str:
        """Return the UNet's type: of *Diffusion in Low Bits*, of a quantised file, else fp16 (fp32 by a flag)."""
        from backend.args import args

        chosen = str(self.option("forge_unet_storage_dtype", "Automatic"))
        if "nf4" in chosen or "fp4" in chosen:
            return "nf4"
        if "float8" in chosen or args.unet_in_fp8_e4m3fn or args.unet_in_fp8_e5m2:
            return "fp8"
        stored = storage_type(self._stored_dtype(path))
        if stored in _QUANTISED:
            return stored
        if args.all_in_fp32:
            return "fp32"
        return "bf16" if args.unet_in_bf16 else "fp16"

    @staticmethod
    def _stored_dtype(path: str | None) -> str:
        parts = inspect_file(path).components if path else ()
        return next((part.dtype for part in parts if part.name in ("unet", "transformer")), "")

    def attention(self, card: Card) -> str:
        """Return the attention that Forge chose at its start, on a stand-in card what it would choose there."""
        from backend import attention
        from backend.args import args

        if stands_in(card) and not (args.attention_split or args.attention_quad):
            return "sdpa"
        return _ATTENTION.get(getattr(attention.attention_function, "__name__", ""), "sdpa")

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return Forge's own switches, and ours for cond and uncond."""
        before, after = original.forge, changed.forge
        reserve = self.reserve_pair(original, changed)
        if original in self._with_gpu_weights:
            weights = (self._gpu_weights_mb(item.inference_memory_bytes) for item in (before, after))
            reserve = [("gpu_weights_mb", *weights)]
        return [
            ("never_oom_vae", before.never_oom_vae, after.never_oom_vae),
            ("never_oom_unet", before.never_oom_unet, after.never_oom_unet),
            *reserve,
            *super().lever_pairs(original, changed),
        ]

    @staticmethod
    def _gpu_weights_mb(inference_memory_bytes: int) -> int:
        from backend import memory_management

        return max(0, int(memory_management.total_vram) - -(-inference_memory_bytes // MIB))

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on what ``request`` asks for in the run of ``p``, on top of what all hosts have."""
        super().prepare_run(p, request)
        want = self.asked(p)
        if levers_of(request, want).stores_fp8 and levers_storage.can_store_fp8():
            levers_storage.forge_in_fp8(self, p)
        if request is None:
            apart, wanted = want.apart, {VAE: want.tiled}
        else:
            apart = not request.batch_cond_uncond
            wanted = {UNET: request.forge.never_oom_unet, VAE: request.forge.never_oom_vae}
        if not _can_tile(p.width, p.height):
            wanted.pop(VAE)
        self._never_oom(p, wanted)
        self._reserve(p, request.forge.inference_memory_bytes if request else self._inference_memory_bytes(want))
        if apart:
            run = self.runs.of(p)
            run.wrap(p, "sample", sampling_apart(p.sample, run))

    def _never_oom(self, p: Any, wanted: dict[int, bool]) -> None:
        """Switch on what is wanted and not on yet. The script reads its arguments in its ``process``, after us."""
        present = units.arguments_of(p, NEVER_OOM)
        missing = {place: True for place, on in wanted.items() if on and not (len(present) > place and present[place])}
        fields = self.runs.of(p).of_fields
        if missing and not units.with_arguments(p, NEVER_OOM, missing, fields) and VAE in missing:
            from backend import memory_management

            self.runs.of(p).of_run.set_attribute(memory_management, "VAE_ALWAYS_TILED", True)

    def _reserve(self, p: Any, wanted_bytes: int) -> None:
        """Give this one generation another reserve than Forge's current one, in whole MiB as its option has it."""
        from backend import memory_management

        now_bytes = memory_management.current_inference_memory
        if wanted_bytes == now_bytes or p.override_settings.get(RESERVE_OPTION) == wanted_bytes // MIB:
            return
        if self.applies_overrides(p):
            self.override(p, RESERVE_OPTION, -(-wanted_bytes // MIB))
        else:
            self._reserve_at_once(p, wanted_bytes)

    def _reserve_at_once(self, p: Any, wanted_bytes: int) -> None:
        """Set the reserve itself: the option alone reaches nothing, and with frozen settings Forge refuses overrides.

        As when Forge changes it, the models are loaded anew beside it, and again in the next run.
        """
        from backend import memory_management
        from modules import processing

        changes = self.runs.of(p).of_run
        changes.call_when_undone(functools.partial(setattr, processing, NEW_RESERVE, True))
        changes.set_item(self.meanwhile, RESERVE_OPTION, int(memory_management.current_inference_memory) // MIB)
        changes.set_attribute(memory_management, "current_inference_memory", wanted_bytes)
        setattr(processing, NEW_RESERVE, True)


def _can_tile(width: int, height: int) -> bool:
    return min(width, height) >= SMALLEST_TILED_SIDE


def sampling_apart(sample: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Return ``p.sample`` during which Forge computes cond and uncond one after the other; undone when it ends."""

    def sample_apart(*arguments: Any, **named: Any) -> Any:
        patches = Patches()
        _set_apart(patches)
        try:
            return sample(*arguments, **named)
        finally:
            patches.undo()

    return sample_apart


@fail_open(instead=lambda *_: None)
def _set_apart(patches: Patches) -> None:
    from backend.sampling import sampling_function

    patches.set_attribute(
        sampling_function, "calc_cond_uncond_batch", one_by_one(sampling_function.calc_cond_uncond_batch)
    )


def one_by_one(together: Callable[..., Any]) -> Callable[..., Any]:
    """Return Forge's function for both halves as two calls with one half each."""

    def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, *rest: Any) -> Any:
        if uncond is None:
            return together(model, cond, uncond, *rest)
        cond_result, _ = together(model, cond, None, *rest)
        _, uncond_result = together(model, [], uncond, *rest)
        return cond_result, uncond_result

    return calc_cond_uncond_batch
