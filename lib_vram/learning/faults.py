"""What a failed run teaches: where it ran out, and how much it would have needed there at the least."""

from __future__ import annotations

from collections.abc import Collection

from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.learning.record import COVERS, Fault, context_bytes_of
from lib_vram.units import MIB

TEXT_CHARACTERS = 32 * 1024
"""Of a failure's text, from its end: the error and the traceback above it."""
MOVED_BYTES = 64 * MIB
"""Other programs that took more than this since the run was looked at are the cause, not the run."""


def fault_of(text: str, expected: Estimate, done: Collection[str], stretch: str | None) -> tuple[Fault | None, str]:
    """Return the fault that the error ``text`` shows, and its kind (``"gpu_memory"``, ``"disk"``, …).

    ``done`` names the phases that had ended; ``stretch`` the one between two hooks in which it happened, ``None`` where
    phases are known by name. No fault when it was no lack of the card's memory, or other programs took it.
    """
    from lib_vram.diagnosis.diagnosis import diagnose

    found = diagnose(text[-TEXT_CHARACTERS:])
    if found.kind != "gpu_memory" or found.recovered:
        return None, found.kind
    phase = _phase(expected, found.phase, done, stretch)
    if phase is None:
        return None, found.kind
    numbers, context_bytes = found.numbers, context_bytes_of(phase)
    room_bytes = expected.available_bytes
    others_bytes = numbers.others_bytes
    if numbers.capacity_bytes is not None and others_bytes is not None:
        own_context_bytes = 0 if numbers.process_bytes is not None else context_bytes
        seen_bytes = numbers.capacity_bytes - max(0, others_bytes - own_context_bytes)
        if seen_bytes < room_bytes - MOVED_BYTES:
            return None, "other_processes"
        if seen_bytes > room_bytes + MOVED_BYTES:
            room_bytes = seen_bytes  # they have given some back meanwhile, and it was not enough
    block_bytes = min(numbers.requested_bytes or 0, room_bytes)  # one that is larger than the card says no more
    wanted_bytes = context_bytes + (numbers.allocated_bytes or 0) + block_bytes
    demand_bytes = max(room_bytes, wanted_bytes) + 1
    return Fault(phase.name, demand_bytes, room_bytes, numbers.requested_bytes, numbers.free_bytes), found.kind


def rescued_fault(text: str, expected: Estimate, phase: str) -> Fault | None:
    """Return the fault of a run that was rescued in ``phase`` from the error ``text``; ``""`` where that is not known.

    ``None`` where nothing is computed for the phase, or other programs had taken the memory.
    """
    names = [item.name for item in expected.phases]
    if phase not in names:
        return None
    fault, kind = fault_of(text, expected, [name for name in names if name != phase], None)
    if fault is None and kind != "other_processes":
        return Fault(phase, expected.available_bytes + 1, expected.available_bytes)
    return fault


def _phase(expected: Estimate, said: str | None, done: Collection[str], stretch: str | None) -> PhaseEstimate | None:
    """Return the phase that failed: by the traceback, else the one that needs most where it happened."""
    if stretch is None:
        return next((phase for phase in expected.phases if phase.name not in done), None)
    named = next((phase for phase in expected.phases if phase.name == said), None)
    among = [phase for phase in expected.phases if phase.name in COVERS.get(stretch, ())]
    return named or max(among, key=lambda phase: phase.needs_bytes, default=None)
