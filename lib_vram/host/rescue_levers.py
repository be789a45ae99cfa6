"""What can be changed on each host in the middle of a run, and how memory is freed there; undone when the run ends."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib_vram.estimate.result import PhaseName
from lib_vram.guard.rescue import DECODES
from lib_vram.host import freeing
from lib_vram.host.forge import one_by_one
from lib_vram.plan.result import Plan
from lib_vram.request import Request

CHAIN_LIMIT = 8


def release(error: BaseException) -> None:
    """Clear the frames of ``error`` and of those behind it: their variables keep the failed step's tensors."""
    waiting: list[BaseException | None] = [error]
    for _ in range(CHAIN_LIMIT):
        if not waiting:
            return
        now = waiting.pop()
        if now is None:
            continue
        if now.__traceback__ is not None:
            traceback.clear_frames(now.__traceback__)
        waiting += [now.__cause__, now.__context__]


def free(host: Any, phase: PhaseName, tried: int) -> None:
    """Give back what the step in ``phase`` can do without; the host loads again what it needs.

    A decode needs little in tiles, so other models stay where they are until its second try.
    """
    freeing.clear_pinned_frames()
    gc.collect()
    if host.name == "a1111":
        _send_spare_checkpoints_away()
    elif phase not in DECODES or tried > 1:
        host.unload_models()
    gc.collect()
    host.empty_caches()


def _send_spare_checkpoints_away() -> None:
    """Move the checkpoints that A1111 keeps on the card beside the one in use to the computer's RAM."""
    from modules import sd_models

    data = sd_models.model_data
    for model in list(getattr(data, "loaded_sd_models", ())):
        if model is not data.sd_model:
            sd_models.send_model_to_cpu(model)


def change(host: Any, p: Any, before: Request, after: Request) -> None:
    """Make what differs between the two requests true for the rest of the run of ``p``, except its batch and tiles."""
    if before.batch_cond_uncond and not after.batch_cond_uncond:
        if host.name == "a1111":
            host.hold_option(p, "batch_cond_uncond", False)  # read at every step
        else:
            _APART[host.name](host.runs.of(p).of_run)
    if after.forge.inference_memory_bytes > before.forge.inference_memory_bytes:
        _keep_free(host, p, after.forge.inference_memory_bytes)
    if after.hires != before.hires:
        _smaller_second_pass(host, p, before, after)


def _apart_forge(patches: Any) -> None:
    from backend.sampling import sampling_function

    together = sampling_function.calc_cond_uncond_batch
    patches.set_attribute(sampling_function, "calc_cond_uncond_batch", one_by_one(together))


def _apart_classic(patches: Any) -> None:
    from ldm_patched.modules import samplers

    patches.set_attribute(samplers, "calc_cond_uncond_batch", one_by_one(samplers.calc_cond_uncond_batch))


def _apart_reforge(patches: Any) -> None:
    from ldm_patched.modules import samplers

    from lib_vram.host import reforge

    patches.set_attribute(samplers, "calc_cond_batch", reforge._one_by_one(samplers.calc_cond_batch))


_APART: dict[str, Callable[[Any], None]] = {
    "forge": _apart_forge, "neo": _apart_forge, "classic": _apart_classic, "reforge": _apart_reforge,
}  # fmt: skip


def _keep_free(host: Any, p: Any, wanted_bytes: int) -> None:
    """Have the host keep ``wanted_bytes`` for computing; it loads the UNet anew with so much less on the card."""
    if host.name == "forge":
        from backend import memory_management

        host.runs.of(p).of_run.set_attribute(memory_management, "current_inference_memory", wanted_bytes)
    elif host.name == "neo":
        host._keep_free(p, wanted_bytes)
    elif host.name in ("reforge", "classic"):
        host.reserve(p, wanted_bytes)


def _smaller_second_pass(host: Any, p: Any, before: Request, after: Request) -> None:
    """Let the second passes to come be smaller; the host computes their size from the fields once, in ``p.init``."""
    host.apply(p, Plan(True, (), before.replace(hires=after.hires), _nothing()), before)
    p.truncate_x = p.truncate_y = 0
    p.calculate_target_resolution()


def _nothing() -> Any:
    from lib_vram.estimate.result import Estimate

    return Estimate("unknown", 0)


@dataclass(frozen=True)
class Begun:
    """Where the host was when a step began."""

    checkpoint: Any
    job_number: int | None

    @classmethod
    def now(cls) -> Begun:
        """Return where the host is."""
        return cls(_checkpoint(), getattr(_state(), "job_no", None))

    def has_other_model(self) -> bool:
        """Whether a refiner or a second pass has put another checkpoint in the place of that one."""
        return _checkpoint() != self.checkpoint

    def again(self, p: Any, *, is_second_pass: bool) -> bool:
        """Put the run of ``p`` back to here; whether the prompts were encoded anew, for the model that was loaded."""
        state = _state()
        if self.job_number is not None:
            state.job_no, state.sampling_step = self.job_number, 0
        from modules import extra_networks, sd_models

        if is_second_pass:
            if self.has_other_model() and not hasattr(sd_models, "forge_model_reload"):
                with sd_models.SkipWritingToConfig():
                    sd_models.reload_model_weights(info=self.checkpoint)
            return False
        other, was_second_pass = self.has_other_model(), bool(getattr(p, "is_hr_pass", False))
        if was_second_pass:
            p.is_hr_pass = False
        if other:
            (getattr(sd_models, "forge_model_reload", None) or sd_models.reload_model_weights)()
        if (other or was_second_pass) and not p.disable_extra_networks:
            extra_networks.activate(p, p.extra_network_data)
        if other:
            p.setup_conds()
        return other


def is_interrupted() -> bool:
    """Whether the user has pressed *Interrupt*."""
    return bool(getattr(_state(), "interrupted", False))


def _checkpoint() -> Any:
    data = getattr(sys.modules.get("modules.sd_models"), "model_data", None)
    return getattr(getattr(data, "sd_model", None), "sd_checkpoint_info", None)


def _state() -> Any:
    return getattr(sys.modules.get("modules.shared"), "state", None)
