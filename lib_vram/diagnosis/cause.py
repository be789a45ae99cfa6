"""The cause of a full card, by the evidence of the figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lib_vram.diagnosis.numbers import Numbers
from lib_vram.message import Message, say
from lib_vram.units import GIB

Cause = Literal["capacity", "fragmentation", "size_cliff", "other_processes", "allocation_cap", "driver_report"]

DRIVER_BYTES = 6 * GIB // 10
"""Context and kernels of one process, 0.3 to 0.6 GiB: not another program's."""
OTHERS_SHARE = 0.18
"""Of the card: what other programs hold without anyone being to blame (desktop, one browser) is less."""
UNUSED_SHARE = 1 / 16
"""Of the card: PyTorch always keeps some blocks that are partly used; a few hundred MiB is no fragmentation."""
ROOM_SHARE = 0.05
"""Of the card: with more than this free, and more than was asked for, the driver refused for a reason of its own."""


@dataclass(frozen=True)
class Found:
    """A cause and what it was concluded from."""

    cause: Cause | None
    evidence: tuple[Message, ...]


def cause_of(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found:
    """Return the cause that the figures show, ``None`` when they do not decide.

    ``said`` is a cause that the words themselves name; ``allowed_bytes`` a limit that the user or a program set.
    """
    for rule in (_cap, _cliff, _driver, _unused, _others):
        found = rule(numbers, allowed_bytes, said)
        if found is not None:
            return found
    if numbers.requested_bytes is None or numbers.capacity_bytes is None or numbers.allocated_bytes is None:
        return Found(None, ())
    return Found("capacity", _full(numbers))


def _cap(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found | None:
    if said == "allocation_cap":
        return Found("allocation_cap", (say("diagnosis.evidence_one_block"),))
    requested, capacity, reserved = numbers.requested_bytes, numbers.capacity_bytes, numbers.reserved_bytes
    held = reserved if reserved is not None else numbers.allocated_bytes
    if allowed_bytes is None or requested is None or held is None or (capacity and allowed_bytes >= capacity):
        return None
    if held + requested <= allowed_bytes or (numbers.free_bytes is not None and numbers.free_bytes < requested):
        return None
    return Found("allocation_cap", (say("diagnosis.evidence_allowed", allowed_bytes=allowed_bytes),))


def _cliff(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found | None:
    requested, capacity = numbers.requested_bytes, numbers.capacity_bytes
    if requested is None or capacity is None or requested <= capacity:
        return None
    return Found(
        "size_cliff", (say("diagnosis.evidence_above_card", requested_bytes=requested, capacity_bytes=capacity),)
    )


def _driver(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found | None:
    requested, capacity, free = numbers.requested_bytes, numbers.capacity_bytes, numbers.free_bytes
    if requested is None or capacity is None or free is None:
        return None
    if free < requested or free < ROOM_SHARE * capacity:
        return None
    return Found("driver_report", (say("diagnosis.evidence_room", requested_bytes=requested, free_bytes=free),))


def _unused(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found | None:
    requested, capacity, unused = numbers.requested_bytes, numbers.capacity_bytes, numbers.unallocated_bytes
    if requested is None or unused is None or unused + (numbers.free_bytes or 0) < requested:
        return None
    if unused < requested / 2 or unused < UNUSED_SHARE * (capacity or numbers.reserved_bytes or 0):
        return None
    if unused < _beyond_driver(numbers):
        return None
    return Found("fragmentation", (say("diagnosis.evidence_unused", unused_bytes=unused, requested_bytes=requested),))


def _others(numbers: Numbers, allowed_bytes: int | None, said: str | None) -> Found | None:
    requested, capacity, free = numbers.requested_bytes, numbers.capacity_bytes, numbers.free_bytes
    others = _beyond_driver(numbers)
    if requested is None or capacity is None or free is None:
        return None
    if others < OTHERS_SHARE * capacity or free + others < requested:
        return None
    return Found("other_processes", (say("diagnosis.evidence_others", others_bytes=numbers.others_bytes or 0),))


def _beyond_driver(numbers: Numbers) -> int:
    driver_bytes = 0 if numbers.process_bytes is not None else DRIVER_BYTES
    return max(0, (numbers.others_bytes or 0) - driver_bytes)


def _full(numbers: Numbers) -> tuple[Message, ...]:
    return (
        say(
            "diagnosis.evidence_full",
            requested_bytes=numbers.requested_bytes or 0,
            allocated_bytes=numbers.allocated_bytes or 0,
            capacity_bytes=numbers.capacity_bytes or 0,
        ),
    )
