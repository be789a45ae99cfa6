"""How the allocator's memory is cut up: what is free in it, and which of that can never be one block."""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.machine.torch_memory import Snapshot
from lib_vram.units import MIB

WORTH_BYTES = 256 * MIB
"""Less than this between things in use is usual after any generation, and no reason for anything to fail."""


@dataclass(frozen=True)
class Pieces:
    """What is free in the cache. Sizes in bytes."""

    free_bytes: int
    """All free blocks together."""
    largest_bytes: int
    """The largest of them."""
    stuck_bytes: int
    """Those that have something in use in the same piece of the card: they cannot go back to the driver."""
    expandable: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot) -> Pieces:
        """Return what ``snapshot`` comes to."""
        free = [size for segment in snapshot.segments for size, in_use in segment if not in_use]
        stuck = [
            size
            for segment in snapshot.segments
            if any(in_use for _, in_use in segment)
            for size, in_use in segment
            if not in_use
        ]
        return cls(sum(free), max(free, default=0), sum(stuck), snapshot.expandable)

    @property
    def scattered(self) -> float:
        """Of what is free, how much lies outside the largest block: 0 is one piece, near 1 is crumbs."""
        return 1 - self.largest_bytes / self.free_bytes if self.free_bytes else 0.0

    @property
    def matters(self) -> bool:
        """Whether enough is stuck that it can make a difference."""
        return self.stuck_bytes >= WORTH_BYTES and not self.expandable
