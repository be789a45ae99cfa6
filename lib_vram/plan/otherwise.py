"""What would help when no change of the request does: a flag, a switch of the host, a lighter model, a larger card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lib_vram.estimate.estimator import runs
from lib_vram.estimate.flags import has_flag, of_forge_line, offload_mode
from lib_vram.estimate.physics import Physics
from lib_vram.message import Message, say
from lib_vram.request import Request
from lib_vram.units import GIB

CARD_SIZES_GIB = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 192)
"""Memory of the cards that are sold or used."""

SWAP_FLAGS = {"neo": "--novram"}
"""Hosts of Forge's line without a switch for it: the flag under which all weights are swapped."""

CanFit = Callable[[Request, Physics], bool]


def what_would_fit(request: Request, physics: Physics, can_be_made_to_fit: CanFit) -> Message:
    """Return the honest answer for ``request``, which no change of its own makes fit."""
    for name, other in _restarts(request):
        if can_be_made_to_fit(other, physics):
            return say("plan.when_not_switch" if name.startswith("Never") else "plan.when_not_flag", flag=name)
    card_bytes = smallest_card(request, physics)
    if card_bytes is None:
        return say("plan.when_not_any_card")
    return say("plan.when_not_card", card_bytes=card_bytes)


def smallest_card(request: Request, physics: Physics) -> int | None:
    """Return the size of the smallest card on which ``request`` runs as it is, ``None`` when no card is enough."""
    for size in CARD_SIZES_GIB:
        card = replace(request.device, total_bytes=size * GIB)
        if size * GIB > request.device.total_bytes and runs(request.replace(device=card), {}, physics):
            return size * GIB
    return None


def _restarts(request: Request) -> tuple[tuple[str, Request], ...]:
    """The host's own ways to keep less on the device, from quick to slow."""
    if request.host in SWAP_FLAGS:
        flag = SWAP_FLAGS[request.host]
        return () if has_flag(request, flag) else ((flag, request.replace(host_args=(*request.host_args, flag))),)
    if of_forge_line(request):
        swapped = replace(request.forge, never_oom_unet=True)
        return () if request.forge.never_oom_unet else (("Never OOM: UNet", request.replace(forge=swapped)),)
    order = ("normal", "medvram", "lowvram")
    stronger = order[order.index(offload_mode(request)) + 1 :]
    return tuple((f"--{mode}", _restarted(request, f"--{mode}")) for mode in stronger)


def _restarted(request: Request, flag: str) -> Request:
    others = tuple(item for item in request.host_args if item not in ("--medvram", "--medvram-sdxl", "--lowvram"))
    return request.replace(host_args=(*others, flag))
