"""What reForge and Forge Classic share: the memory manager in ``ldm_patched`` and the thread that runs the page.

Both come from the Forge of early 2024. What they decide about memory can be changed for one run in three places:
the reserve that their manager keeps free in every phase (``minimum_inference_memory``, looked up at every load),
the arguments of *Never OOM*, and the sampler's function for cond and uncond.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

from lib_vram.guard.fail_open import fail_open
from lib_vram.host import levers_idle, owners, swallowed, units
from lib_vram.host.asked import Asked
from lib_vram.host.forge import NEVER_OOM, UNET, VAE
from lib_vram.host.patches import Patches
from lib_vram.host.webui import WebUI, dtype_name, stands_in
from lib_vram.machine.card import Card
from lib_vram.request import Request
from lib_vram.units import MIB

_ATTENTION = {
    "attention_xformers": "xformers", "attention_pytorch": "sdpa", "attention_flash": "sdpa", "attention_sage": "sdpa",
    "attention_sage3": "sdpa", "attention_split": "split", "attention_sub_quad": "sub_quad", "attention_basic": "math",
}  # fmt: skip
_WITHOUT_BF16 = ("gtx", "rtx 20", "titan", "quadro", "tesla")
"""Parts of the names of NVIDIA cards before compute capability 8, on which these hosts run the VAE in fp32."""


class LdmPatched(WebUI):
    """A host whose memory manager is ``ldm_patched.modules.model_management``."""

    own_controls = WebUI.own_controls | {"reserve_mb"}
    memory_flags = frozenset(
        {
            "always-gpu", "always-high-vram", "always-normal-vram", "always-low-vram", "always-no-vram",
            "always-offload-from-vram", "disable-smart-memory", "reserve-vram", "all-in-fp32", "all-in-fp16",
            "unet-in-bf16", "unet-in-fp16", "fp32-unet", "unet-in-fp8-e4m3fn", "unet-in-fp8-e5m2", "vae-in-fp16",
            "vae-in-fp32", "vae-in-bf16", "vae-in-cpu", "clip-in-cpu", "clip-in-fp8-e4m3fn", "clip-in-fp8-e5m2",
            "clip-in-fp16", "clip-in-fp32", "attention-split", "attention-quad", "attention-pytorch",
            "disable-xformers", "cuda-malloc", "cuda-stream", "pin-shared-memory",
        }
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._lasting = Patches()
        self._loaded_with_bytes: int | None = None

    def start(self) -> None:
        """Let what a generation raises reach the page, for as long as the extension is loaded."""
        self._lasting.undo()
        swallowed.tell_the_cause(self._lasting, lambda: self.settings().language, self._failed)

    def restore(self, p: Any = None) -> None:
        """Undo what was changed for the run of ``p``; for ``None`` everything, the telling of causes too."""
        super().restore(p)
        if p is None:
            self._lasting.undo()

    def version(self) -> str:
        """Return the version of the host's own ``modules_forge``."""
        from modules_forge import forge_version

        return str(forge_version.version)

    def asked(self, p: Any) -> Asked:
        """Return what ``p`` asks for, with the switches of *Never OOM*."""
        want = super().asked(p)
        switches = units.arguments_of(p, NEVER_OOM)
        unet, vae = (bool(switches[UNET]), bool(switches[VAE])) if len(switches) > VAE else (False, False)
        return dataclasses.replace(want, never_oom_unet=unet, never_oom_vae=vae)

    # types and attention

    def loaded_parts(self) -> Iterable[owners.Named]:
        """Return the parts of the checkpoint in use, and what else the memory manager has loaded."""
        from ldm_patched.modules import model_management

        return owners.of_forge_line(self.loaded_model(), model_management.current_loaded_models)

    def unload_models(self) -> None:
        """Move every model to the computer's RAM; the host loads what the next run needs."""
        from ldm_patched.modules import model_management

        model_management.unload_all_models()

    def empty_caches(self) -> None:
        """Give PyTorch's cache back to the driver, in the host's own way."""
        from ldm_patched.modules import model_management

        model_management.soft_empty_cache()

    def vae_dtype(self, card: Card) -> str:
        """Return the VAE's type: the loaded one's; on a stand-in card what the host would choose there."""
        flag = self.vae_dtype_by_flag()
        if flag is not None:
            return flag
        if stands_in(card):
            return "fp32" if any(name in card.name.lower() for name in _WITHOUT_BF16) else "bf16"
        loaded = self._loaded_objects()
        dtype = loaded.vae.vae_dtype if loaded is not None else self.vae_dtype_to_come()
        return dtype_name(dtype, "bf16")

    @staticmethod
    def vae_dtype_by_flag() -> str | None:
        """Return the VAE's type that a flag asks for, ``None`` when none does."""
        from ldm_patched.modules.args_parser import args

        for name in ("fp16", "bf16", "fp32"):
            if getattr(args, f"vae_in_{name}", False):
                return name
        return None

    def vae_dtype_to_come(self) -> Any:
        """Return the torch type in which the host would load a VAE."""
        raise AttributeError(f"{type(self).__name__} does not say its VAE's type")

    def weights_dtype(self, path: str | None, card: Card) -> str:
        """Return the UNet's type: the loaded one's when it is of ``path``, else by the flags, else fp16."""
        from ldm_patched.modules.args_parser import args

        if any(getattr(args, name, False) for name in ("unet_in_fp8_e4m3fn", "unet_in_fp8_e5m2")):
            return "fp8"
        if args.all_in_fp32 or getattr(args, "fp32_unet", False):
            return "fp32"
        if args.unet_in_bf16:
            return "bf16"
        loaded = self._loaded_objects()
        if loaded is None or stands_in(card) or not self.is_loaded(path):
            return self.weights_dtype_to_come()
        return dtype_name(loaded.unet.model_dtype(), "fp16")

    def weights_dtype_to_come(self) -> str:
        """Return the type in which the host would load a UNet on a card with half precision."""
        return "fp16"

    def _loaded_objects(self) -> Any | None:
        return getattr(self.loaded_model(), "forge_objects", None)

    def attention(self, card: Card) -> str:
        """Return the attention that the host chose at its start, on a stand-in card what it would choose there."""
        from ldm_patched.ldm.modules import attention
        from ldm_patched.modules.args_parser import args

        if stands_in(card) and not (args.attention_split or args.attention_quad):
            return "sdpa"
        return _ATTENTION.get(getattr(attention.optimized_attention, "__name__", ""), "sdpa")

    # what a run changes

    @staticmethod
    def reserve_bytes() -> int:
        """Return what the host itself keeps free for computing."""
        from ldm_patched.modules import model_management

        own = getattr(model_management.minimum_inference_memory, "vram_guard_original", None)
        return int((own or model_management.minimum_inference_memory)())

    def reserve_asked(self, want: Asked) -> int:
        """Return what ``want`` has kept free: our own control's figure, else the host's."""
        return int(want.reserve_mb) * MIB or self.reserve_bytes()

    def idle_models(self, want: Asked) -> list[levers_idle.Idle]:
        """Return what the memory manager and others keep on the card and ``want`` does not use."""
        from ldm_patched.modules import model_management

        return [*super().idle_models(want), *self.managed_idle(model_management, want)]

    def reserve(self, p: Any, wanted_bytes: int) -> None:
        """Keep ``wanted_bytes`` free in every phase of the run of ``p``.

        Neither host takes weights back from a model that is on the card already, and Classic never adds any to a
        model that is there in part: models that were loaded beside another reserve are sent away first.
        """
        from ldm_patched.modules import model_management

        own_bytes = self.reserve_bytes()
        if wanted_bytes != (self._loaded_with_bytes or own_bytes):
            model_management.unload_all_models()
        self._loaded_with_bytes = wanted_bytes
        if wanted_bytes == own_bytes:
            return

        def minimum_inference_memory() -> int:
            return wanted_bytes

        vars(minimum_inference_memory)["vram_guard_original"] = model_management.minimum_inference_memory
        self.runs.of(p).of_run.set_attribute(model_management, "minimum_inference_memory", minimum_inference_memory)

    def never_oom(self, p: Any, wanted: dict[int, bool]) -> None:
        """Switch on what is wanted and not on yet. The script reads its arguments in its ``process``, after us."""
        present = units.arguments_of(p, NEVER_OOM)
        missing = {place: True for place, on in wanted.items() if on and not (len(present) > place and present[place])}
        if missing:
            units.with_arguments(p, NEVER_OOM, missing, self.runs.of(p).of_fields)

    def sample_apart(self, p: Any, name: str, one_by_one: Callable[[Any], Any]) -> None:
        """Compute cond and uncond one after the other in the run of ``p``: ``name`` is the sampler's function."""
        run = self.runs.of(p)
        run.wrap(p, "sample", _sampling_apart(p.sample, name, one_by_one))

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return *Never OOM*'s switches that work here, and ours for cond and uncond."""
        before, after = original.forge, changed.forge
        unet = ("never_oom_unet", before.never_oom_unet, after.never_oom_unet)
        return [unet, *self.reserve_pair(original, changed), *super().lever_pairs(original, changed)]


def _sampling_apart(sample: Callable[..., Any], name: str, one_by_one: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return ``p.sample`` during which ``name`` in the sampler's module is wrapped; undone however it ends."""

    def sample_apart(*arguments: Any, **named: Any) -> Any:
        patches = Patches()
        _set_apart(patches, name, one_by_one)
        try:
            return sample(*arguments, **named)
        finally:
            patches.undo()

    return sample_apart


@fail_open(instead=lambda *_: None)
def _set_apart(patches: Patches, name: str, one_by_one: Callable[[Any], Any]) -> None:
    samplers = sys.modules["ldm_patched.modules.samplers"]
    patches.set_attribute(samplers, name, one_by_one(getattr(samplers, name)))
