"""The caching allocator with ``expandable_segments:True``: one growing segment per pool, in pages.

Each pool has one stretch of addresses. Memory is mapped into it in pages of 2 MiB (small pool)
or 20 MiB (large pool), so that a block can grow over what was free and what was not there yet;
when the device is full, pages that lie wholly in free blocks are unmapped.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import (
    MIN_BLOCK,
    NOTHING,
    SMALL_LIMIT,
    SMALL_SEGMENT,
    Block,
    CachingAllocator,
)

FREE, TAKEN, UNMAPPED = range(3)
ENDLESS = 2**80


@dataclass
class Stretch:
    """A pool's addresses: blocks in order, each free, taken, or not mapped. The last one, unmapped, has no end."""

    page: int
    starts: list[int] = field(default_factory=lambda: [0])
    states: list[int] = field(default_factory=lambda: [UNMAPPED])
    ends: list[int] = field(default_factory=lambda: [ENDLESS])

    def copy(self) -> Stretch:
        """Return the same state with a later life of its own."""
        return Stretch(self.page, self.starts[:], self.states[:], self.ends[:])

    def index(self, start: int) -> int:
        """Return the place of the block that starts at ``start``."""
        return bisect_left(self.starts, start)

    def best_free(self, size: int) -> int | None:
        """Return the place of the smallest free block of at least ``size``, the lowest among equals."""
        fits = [
            (end - start, place)
            for place, (start, end, state) in enumerate(zip(self.starts, self.ends, self.states))
            if state == FREE and end - start >= size
        ]
        return min(fits)[1] if fits else None

    def growable(self, size: int) -> int:
        """Return the place from which on there is room for ``size``: the lowest unmapped, or a free block before it."""
        for place, state in enumerate(self.states):
            if state != UNMAPPED:
                continue
            first = place - 1 if place and self.states[place - 1] == FREE else place
            last = first
            while self.states[last] != TAKEN and self.ends[last] - self.starts[first] < size:
                last += 1
            if self.states[last] != TAKEN:
                return first
        return len(self.states) - 1

    def set_state(self, start: int, end: int, state: int) -> None:
        """Give ``start`` to ``end``, which lies in one block, its own state; free and unmapped neighbours merge."""
        place = self._cut(end, self._cut(start, bisect_left(self.starts, start + 1) - 1)) - 1
        self.states[place] = state
        for low in (place, place - 1):
            if state != TAKEN and low >= 0 and low + 1 < len(self.states) and self.states[low] == self.states[low + 1]:
                self.ends[low] = self.ends[low + 1]
                del self.starts[low + 1], self.ends[low + 1], self.states[low + 1]

    def _cut(self, at: int, place: int) -> int:
        """Make a block start at ``at``, in the block at ``place``; return the place that starts there."""
        if self.starts[place] == at:
            return place
        if self.ends[place] == at:
            return place + 1
        self.starts.insert(place + 1, at)
        self.ends.insert(place + 1, self.ends[place])
        self.states.insert(place + 1, self.states[place])
        self.ends[place] = at
        return place + 1


class ExpandableAllocator(CachingAllocator):
    """The same interface over pages. A block's number is its address with the pool in the lowest bit."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self._stretches = [Stretch(SMALL_SEGMENT), Stretch(self.conf.large_segment_bytes)]
        self._sizes: dict[Block, int] = {}

    def copy(self) -> CachingAllocator:
        twin = super().copy()
        twin.__dict__.update(_stretches=[item.copy() for item in self._stretches], _sizes=self._sizes.copy())
        return twin

    def take(self, size: int) -> Block:
        pool = int(size > SMALL_LIMIT)
        stretch = self._stretches[pool]
        place = stretch.best_free(size)
        if place is None:
            place = self._grow_or_release(stretch, size)
        start = stretch.starts[place]
        taken = size if stretch.ends[place] - start - size >= MIN_BLOCK else stretch.ends[place] - start
        stretch.set_state(start, start + taken, TAKEN)
        block = start | pool
        self._sizes[block] = taken
        self.allocated_bytes += taken
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def touch(self, size: int) -> None:
        self.free(self.take(size))

    def touch_two(self, first: int, second: int) -> None:
        for block in (self.take(first), self.take(second)):
            self.free(block)

    def free(self, block: Block) -> None:
        size = self._sizes.pop(block)
        start = block & ~1
        self.allocated_bytes -= size
        self._stretches[block & 1].set_state(start, start + size, FREE)

    def empty_cache(self) -> None:
        for stretch in self._stretches:
            for start, end in [
                (start, end) for start, end, state in zip(stretch.starts, stretch.ends, stretch.states) if state == FREE
            ]:
                first, last = -(-start // stretch.page) * stretch.page, end // stretch.page * stretch.page
                if first < last:
                    stretch.set_state(first, last, UNMAPPED)
                    self.reserved_bytes -= last - first

    def _grow_or_release(self, stretch: Stretch, size: int) -> int:
        place = self._grow_to(stretch, size)
        if place == NOTHING:
            self.empty_cache()
            place = self._grow_to(stretch, size)
        if place == NOTHING:
            raise DeviceOutOfMemory(
                requested_bytes=size, limit_bytes=self.limit_bytes or 0,
                allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes,
            )  # fmt: skip
        return place

    def _grow_to(self, stretch: Stretch, size: int) -> int:
        """Map pages until there is a free block of ``size``; return its place, or ``NOTHING`` at the device's end."""
        start = stretch.starts[stretch.growable(size)]
        while True:
            place = stretch.index(start)
            mapped = stretch.ends[place] - start if stretch.states[place] == FREE else 0
            if mapped >= size:
                return place
            end = min(-(-(start + size) // stretch.page) * stretch.page, stretch.ends[place + (mapped > 0)])
            wanted = end - start - mapped
            if self.limit_bytes is not None and self.reserved_bytes + wanted > self.limit_bytes:
                self._note_limit(self.reserved_bytes + wanted)
                return NOTHING
            self.reserved_bytes += wanted
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
            stretch.set_state(start + mapped, end, FREE)
