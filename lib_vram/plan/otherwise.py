"""What would help when no change of the request does: a flag, a switch of the host, a lighter model, a larger card."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lib_vram.estimate.estimator import runs
from lib_vram.estimate.physics import Physics
from lib_vram.message import Message, say
from lib_vram.plan import ram
from lib_vram.plan.advice import changes_for
from lib_vram.plan.table import seen_bytes
from lib_vram.request import Request
from lib_vram.units import GIB

CARD_SIZES_GIB = (2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 192)
"""Memory of the cards that are sold or used."""

SWITCHES = ("forge", "classic")
"""Hosts whose page has *Never OOM: UNet*, under which all weights are swapped. reForge has it too, to no effect."""
WORTH_NAMING = ("precision", "vae", "attention", "stays", "offload")
"""Changes of the start that can decide whether a request runs; the others save a little beside them."""

CanFit = Callable[[Request, Physics], bool]


def what_would_fit(request: Request, physics: Physics, can_be_made_to_fit: CanFit) -> Message:
    """Return the honest answer for ``request``, which no change of its own makes fit."""
    for said, other in _restarts(request):
        if not ram.never_enough(other, physics) and can_be_made_to_fit(other, physics):
            return said
    card_bytes = smallest_card(request, physics)
    if card_bytes is None:
        return say("plan.when_not_any_card")
    return say("plan.when_not_card", card_bytes=card_bytes)


def smallest_card(request: Request, physics: Physics) -> int | None:
    """Return the size of the smallest card on which ``request`` runs as it is, ``None`` when no card is enough.

    The size is the one on the box; what is computed with is what of it is left for programs.
    """
    for size in CARD_SIZES_GIB:
        card = replace(request.device, total_bytes=seen_bytes(size))
        if card.total_bytes > request.device.total_bytes and runs(request.replace(device=card), {}, physics):
            return size * GIB
    return None


def _restarts(request: Request) -> Iterator[tuple[Message, Request]]:
    """Yield what the host can do at another start or by a switch, the least harmful first, with how to say it."""
    for change in changes_for(request):
        if change.kind not in WORTH_NAMING or change.add == ("--xformers",):  # it may not be installed
            continue
        if change.kind == "offload":
            yield say("plan.when_not_flag", flag=change.add[0]), change.request
        elif change.add:
            yield say("advice.when_not_with", flag=change.add[0]), change.request
        else:
            yield say("advice.when_not_without", flag=" ".join(change.remove)), change.request
    yield from _two_changes(request)
    if request.host in SWITCHES and not request.forge.never_oom_unet:
        swapped = request.replace(forge=replace(request.forge, never_oom_unet=True))
        yield say("plan.when_not_switch", flag="Never OOM: UNet"), swapped


def _two_changes(request: Request) -> Iterator[tuple[Message, Request]]:
    """Yield half precision, where a flag forbids it, together with weights that leave the card."""
    for change in changes_for(request):
        if change.kind not in ("precision", "vae"):
            continue
        for then in changes_for(change.request):
            if then.kind == "offload":
                without = " ".join(change.remove)
                yield say("advice.when_not_both", without=without, flag=then.add[0]), then.request
