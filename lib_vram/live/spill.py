"""Whether a generation at work has left the card, or the computer its RAM: then it goes on, many times slower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lib_vram.live.picture import Holding
from lib_vram.machine.system import System
from lib_vram.message import Message, say
from lib_vram.units import GIB, MIB

SPILLED_BYTES = 512 * MIB
"""So much more than at the start of the generation: pinned memory for moving models is shared memory too, and less."""
FULL_SHARE = 0.94
"""A card that is used up to here has no room for another large block."""
SWAPPED_BYTES = 512 * MIB
WAITING_PERCENT = 10.0
"""Of ten seconds, one was spent waiting for RAM: people notice."""
LOW_RAM_BYTES = 512 * MIB
LOW_RAM_SHARE = 0.03
"""Of all RAM: below either, systems begin to swap or to kill."""


@dataclass(frozen=True)
class Load:
    """The card and the computer at one moment of a generation; ``shared_bytes`` is this process's share of RAM that
    the driver uses for the card (Windows), ``None`` where nobody says."""

    holding: Holding
    system: System
    shared_bytes: int | None = None


class SpillWatch:
    """Compares each moment of a generation with its start."""

    def __init__(self) -> None:
        self._start: Load | None = None

    def begin(self, load: Load) -> None:
        """Take ``load`` for the state in which the generation began."""
        self._start = load

    def end(self) -> None:
        """Forget that generation."""
        self._start = None

    def warnings(self, now: Load) -> tuple[Message, ...]:
        """Return what makes the generation slow at this moment; nothing before it has begun."""
        if self._start is None:
            return ()
        found = [_spilled(self._start, now), _swapping(self._start.system, now.system)]
        return tuple(message for message in found if message is not None)


def _spilled(start: Load, now: Load) -> Message | None:
    """Return what the driver keeps in RAM for the card: by Windows' counter, or where torch has more than the card."""
    card, torch = now.holding.card, now.holding.torch
    if card is None or torch is None or not card.spills or now.holding.used_bytes is None:
        return None
    used_bytes = now.holding.used_bytes
    spilled_bytes = max(0, torch.reserved_bytes - used_bytes)
    is_full = used_bytes >= FULL_SHARE * card.total_bytes
    if now.shared_bytes is not None and start.shared_bytes is not None and is_full:
        spilled_bytes = max(spilled_bytes, now.shared_bytes - start.shared_bytes)
    return say("live.spill", spilled_bytes=spilled_bytes) if spilled_bytes >= SPILLED_BYTES else None


def _swapping(start: System, now: System) -> Message | None:
    swapped_bytes = (now.swap_used_bytes or 0) - (start.swap_used_bytes or 0)
    if swapped_bytes >= SWAPPED_BYTES:
        return say("live.swapping", swapped_bytes=swapped_bytes)
    free_bytes, total_bytes = now.ram_free_bytes, now.ram_total_bytes
    if free_bytes is None or total_bytes is None:
        return None
    is_low = free_bytes < max(LOW_RAM_BYTES, LOW_RAM_SHARE * total_bytes)
    waits = (now.waiting_percent or 0) >= WAITING_PERCENT and free_bytes < GIB
    return say("live.ram_low", free_bytes=free_bytes) if is_low or waits else None


def shared_of(shared: Mapping[int, int], pid: int, *, known: bool) -> int | None:
    """Return this process's part of ``shared``; 0 where the counters are ``known`` and do not name it."""
    return shared.get(pid, 0) if known else None
