"""The figures of a failure, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from lib_vram.diagnosis.sizes import STAND_IN_BYTES

ROUNDING = 0.01
"""torch prints two decimals: a hundredth of a GiB may be missing in each figure of a sum."""


@dataclass(frozen=True)
class Numbers:
    """What the text says, in bytes; ``None`` where it says nothing, or nothing that can be."""

    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        """Return the contract's form."""
        return asdict(self)

    @property
    def unallocated_bytes(self) -> int | None:
        """What PyTorch holds and nothing uses."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)

    @property
    def others_bytes(self) -> int | None:
        """What of the card is neither free nor PyTorch's: other programs, and the driver's own part."""
        held = self.process_bytes if self.process_bytes is not None else self.reserved_bytes
        if self.capacity_bytes is None or self.free_bytes is None or held is None:
            return None
        return max(0, self.capacity_bytes - self.free_bytes - held)


def numbers_of(figures: Mapping[str, int]) -> tuple[Numbers, bool]:
    """Return the figures, without those that cannot be, and whether they contradict each other."""
    reserved = figures.get("reserved")
    if reserved is None and "unallocated" in figures and "allocated" in figures:
        unused = figures["unallocated"]
        reserved = figures["allocated"] + unused if unused >= 0 else unused
    found = Numbers(
        figures.get("requested"), figures.get("capacity"), figures.get("free"), figures.get("allocated"), reserved,
        figures.get("process"),
    )  # fmt: skip
    kept = replace(found, **{name: None for name, value in found.to_dict().items() if _stands_in(value)})
    if kept.free_bytes is not None and kept.capacity_bytes is not None and kept.free_bytes > kept.capacity_bytes:
        kept = replace(kept, free_bytes=None)
    return kept, kept != found or _contradict(kept)


def _stands_in(value: int | None) -> bool:
    return value is not None and not 0 <= value < STAND_IN_BYTES


def _contradict(numbers: Numbers) -> bool:
    """Whether figures that can be do not go together: room enough for what failed, or more held than there is."""
    requested, capacity, free = numbers.requested_bytes, numbers.capacity_bytes, numbers.free_bytes
    if requested is not None and free is not None and 0 < requested <= free:
        return True
    held = [
        item for item in (numbers.allocated_bytes, numbers.reserved_bytes, numbers.process_bytes) if item is not None
    ]
    if capacity is not None and held and max(held) + (free or 0) > capacity * (1 + ROUNDING):
        return True
    reserved, allocated = numbers.reserved_bytes, numbers.allocated_bytes
    return reserved is not None and allocated is not None and allocated > reserved * (1 + ROUNDING)
