"""A smaller reserve for a run that fits: the hosts' default makes them swap weights that would have had room.

Not a plan: it raises peaks, up to what is free, and changes nothing that a person sees but the time. A change of the
reserve makes the host load its models anew, so it is only worth it where much is swapped at every step.
"""

from __future__ import annotations

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate
from lib_vram.plan.host_rungs import FINE_RESERVE_STEP_BYTES, RESERVE
from lib_vram.plan.levers import has_lever
from lib_vram.plan.search import RESERVE_MARGIN_STEPS, first_true
from lib_vram.request import Request
from lib_vram.units import MIB

SAMPLING = ("sampling", "hires_sampling")
LEAST_BYTES = 256 * MIB
"""No reserve is made smaller than this: drivers and other programs take that much from one moment to the next."""
WORTH_IT = 0.25
"""Of the UNet, what must come to stay on the card: at 20 steps, five times the UNet is then not moved, and it is moved
twice for the change. A rule; pictures more than one make it worth more."""


def without_needless_swaps(request: Request, physics: Physics = COMPUTED) -> Request | None:
    """Return ``request`` with the least reserve that is enough, and a margin; ``None`` where that would not matter.

    ``request`` is one that fits. It still does with the result, without a retry of the allocator.
    """
    if not has_lever(request.host, "reserve"):
        return None
    before = estimate(request, physics)
    if before.verdict == "wont_fit" or not _swaps(before):
        return None
    now = RESERVE.value(request)
    sizes = range(LEAST_BYTES, now, FINE_RESERVE_STEP_BYTES)
    least = first_true(sizes, lambda size: estimate(RESERVE.apply(request, size), physics).verdict == "fits")
    if least + RESERVE_MARGIN_STEPS >= len(sizes):
        return None
    lighter = RESERVE.apply(request, sizes[least + RESERVE_MARGIN_STEPS])
    after = estimate(lighter, physics)
    if after.verdict != "fits":
        return None
    gained = _on_card(after) - _on_card(before)
    return lighter if gained * request.batch_count >= WORTH_IT * _on_card(after) else None


def _swaps(result: Estimate) -> bool:
    return any("swap" in dict(phase.resident_parts) for phase in result.phases if phase.name in SAMPLING)


def _on_card(result: Estimate) -> int:
    """Return how much of the UNet is on the card in the sampling that has least of it."""
    parts = [dict(phase.resident_parts) for phase in result.phases if phase.name in SAMPLING]
    return min((part.get("unet", 0) for part in parts), default=0)
