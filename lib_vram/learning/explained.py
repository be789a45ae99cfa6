"""Whether what a run needed explains its failure, or whether the failure says something about the moment it came in.

Another program can take the card for a second, a container or Windows can limit what one program may have, a driver
can refuse for reasons of its own. Then torch's error is the same, and a small run seems to need all that was free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lib_vram.units import GIB

if TYPE_CHECKING:
    from lib_vram.learning.record import Fault, Run

MOST_TIMES = 2
"""Activations of so many times what is computed can be: those of a phase that works in fp32 instead of half precision,
or of an operation that holds its input twice. What they reserve when nothing limits them is taken, so that holes
between blocks are in it. The soak's machines (``tools/soak_card.py``) take up to 1.45 times."""
MOST_UNSEEN_BYTES = GIB
"""On top at every size: a library's workspace and what the driver holds. The soak's machines take 512 MiB, and with
the peaks' own variation not 700."""
BLOCK_TIMES = 2
"""A block that was asked for explains so much of what was missing: an operation's input and output are alike."""
MOST_BLOCK_TIMES = 16
"""Of the card's room: no failure's figure beyond that is a block's. Attention over a picture that is far too large
asks for several times the card."""
UNUSED_BYTES = GIB
"""With so much free on the card beyond the block that was asked for, it was not the run that filled the card. Torch
gives back what it keeps for later before it reads what is free."""

LIMIT_NOTE = "learning.note_doubts"
"""What an estimate says that is called tight for failures which look like a limit."""


class Computed(Protocol):
    """The figures of a phase, as an estimate has them and as they are kept of a run."""

    @property
    def minimum_bytes(self) -> int:
        """Activations with which it still runs."""

    @property
    def comfortable_bytes(self) -> int:
        """What it reserves for them when nothing limits it."""


def most_more_bytes(phase: Computed) -> int:
    """Return how much more than was computed ``phase`` can need for reasons that lie in itself."""
    return max(0, MOST_TIMES * phase.comfortable_bytes - phase.minimum_bytes) + MOST_UNSEEN_BYTES


def block_bytes(fault: Fault) -> int:
    """Return how much of what was missing the block explains that ``fault`` says was asked for; 0 where it says none.

    No more than the room counts: what is larger than the card is no measure of how much a run needs.
    """
    requested_bytes = fault.requested_bytes or 0
    if requested_bytes > MOST_BLOCK_TIMES * fault.room_bytes:
        return 0
    return BLOCK_TIMES * min(requested_bytes, fault.room_bytes)


def is_explained(fault: Fault, more_bytes: int, most_bytes: int) -> bool:
    """Whether a run that can need ``most_bytes`` beyond the computed can have failed for want of ``more_bytes``."""
    if fault.free_bytes is not None and fault.free_bytes - (fault.requested_bytes or 0) >= UNUSED_BYTES:
        return False
    return more_bytes <= most_bytes


def unused_bytes(fault: Fault, needs_bytes: int) -> int:
    """Return what was left of the card when a run that was computed to need ``needs_bytes`` failed."""
    return fault.free_bytes if fault.free_bytes is not None else max(0, fault.room_bytes - needs_bytes)


def left_in(run: Run) -> int | None:
    """Return how much was left of the card where ``run`` failed, ``None`` where its own need explains the failure."""
    fault = run.fault
    predicted = next((item.predicted for item in run.phases if fault is not None and item.name == fault.phase), None)
    if fault is None or predicted is None or predicted.needs_bytes > fault.room_bytes:
        return None
    more_bytes = fault.demand_bytes - predicted.needs_bytes
    if is_explained(fault, more_bytes, most_more_bytes(predicted) + block_bytes(fault)):
        return None
    return unused_bytes(fault, predicted.needs_bytes)
