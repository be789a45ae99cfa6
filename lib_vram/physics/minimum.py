"""The smallest device on which a trace still runs, by replay.

A replay under a limit is the replay without one until the limit is first reached, so each
attempt starts from a copy of the state that was kept there. And what an attempt shows holds for
a whole range of limits: one that succeeds, down to what it reserved; one that fails, up to the
next limit at which anything would have gone differently. A handful of attempts is enough.
"""

from __future__ import annotations

from fractions import Fraction

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import SEGMENT_ROUNDING, AllocatorConf, CachingAllocator
from lib_vram.physics.program import EventTrace

STRETCH = 80
"""Operations between two looks at how much is reserved. In longer stretches less is copied, and more is run again."""

FIRST_GUESS = Fraction(7, 6)
"""Of the floor: where the first attempt is made. UNets' minima lie about there; another guess gives the same answer."""

Kept = tuple[int, CachingAllocator, dict[int, int]]
"""A state on the way: the next operation's place, the allocator, and the blocks held by slot."""


class LimitSearch:
    """Replays one trace under many limits."""

    def __init__(self, trace: EventTrace, conf: AllocatorConf, start: CachingAllocator | None = None) -> None:
        """Prepare for attempts from ``start``, an allocator without a limit; from an empty one where it is ``None``."""
        self._trace = trace
        start = start or CachingAllocator(None, conf)
        self._kept: list[Kept] = [(0, start.copy(), {})]
        self.unlimited = self._run_unlimited(start.copy())

    def attempt(self, limit_bytes: int) -> CachingAllocator | None:
        """Return the allocator at the end of a run under ``limit_bytes``, ``None`` when it ran out.

        The allocator at the point of failure is kept in :attr:`failed`.
        """
        place, start, held = next(item for item in reversed(self._kept) if item[1].reserved_bytes <= limit_bytes)
        allocator = start.copy()
        allocator.limit_bytes = limit_bytes
        try:
            self._trace.run(allocator, held.copy(), place)
        except DeviceOutOfMemory:
            self.failed = allocator
            return None
        return allocator

    def _run_unlimited(self, allocator: CachingAllocator) -> CachingAllocator:
        """Run in stretches, and keep the state before each in which more was reserved."""
        held: dict[int, int] = {}
        for place in range(0, len(self._trace.operations), STRETCH):
            before = (place, allocator.copy(), held.copy())
            self._trace.run(allocator, held, place, place + STRETCH)
            if allocator.reserved_bytes != before[1].reserved_bytes:
                self._kept.append(before)
        return allocator


def minimum_and_comfortable(
    trace: EventTrace, conf: AllocatorConf, floor_bytes: int, start: CachingAllocator | None = None,
    guess_bytes: int | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Return the smallest limit found at which ``trace`` runs, and what it reserves without a limit, in bytes.

    ``start`` is an allocator without a limit in which the model's weights lie already, ``None`` for an empty one.
    Both figures are on top of what is reserved there; of the driver's pool, on top of what is allocated there, since
    the free tails of its chunks are as large as those of any segment and belong to nobody. ``guess_bytes`` is where
    the first attempt is made: the closer it is, the fewer attempts there are.
    """
    if start is not None and not conf.collects:
        before = start.allocated_bytes if conf.stream_ordered else start.reserved_bytes
        minimum, comfortable = _searched(LimitSearch(trace, conf, start), floor_bytes + before)
        return max(minimum - before, floor_bytes), max(comfortable - before, floor_bytes)
    search = LimitSearch(trace, conf)
    if conf.collects:
        comfortable = search.unlimited.peak_reserved_bytes
        return _bisected(trace, conf, floor_bytes, comfortable), comfortable
    return _searched(search, floor_bytes, guess_bytes)


def _searched(search: LimitSearch, floor_bytes: int, guess_bytes: int | None = None) -> tuple[int, int]:
    """Return the smallest limit found, from ``floor_bytes`` on, and what is reserved without one."""
    comfortable = search.unlimited.peak_reserved_bytes
    low, high = min(floor_bytes, comfortable), comfortable
    if guess_bytes is not None and low < guess_bytes < high:
        low, high = _around(search, guess_bytes, low, high)
    limit = max(floor_bytes, min(int(floor_bytes * FIRST_GUESS), comfortable - 1))
    if not low <= limit < high:
        limit = (low + high) // 2
    while low < high:
        done = search.attempt(limit)
        if done is not None:
            high = done.peak_reserved_bytes
        else:
            low = search.failed.next_limit_bytes or high
        limit = (low + high) // 2
    return high, comfortable


def _around(search: LimitSearch, guess_bytes: int, low: int, high: int) -> tuple[int, int]:
    """Return between which limits the smallest lies, after attempts at the guess and right below it."""
    done = search.attempt(guess_bytes)
    if done is None:
        return search.failed.next_limit_bytes or high, high
    high = done.peak_reserved_bytes
    if high - 1 > low and search.attempt(high - 1) is None:
        low = min(high, search.failed.next_limit_bytes or high)
    return low, high


def _bisected(trace: EventTrace, conf: AllocatorConf, low_bytes: int, high_bytes: int) -> int:
    """Return the smallest limit found at which ``trace`` runs, where what is collected depends on the limit itself."""
    while high_bytes - low_bytes > SEGMENT_ROUNDING:
        middle = (low_bytes + high_bytes) // 2
        if runs_in(trace, middle, conf):
            high_bytes = middle
        else:
            low_bytes = middle
    return high_bytes


def runs_in(trace: EventTrace, limit_bytes: int, conf: AllocatorConf) -> bool:
    """Return whether ``trace`` runs on a device that can give ``limit_bytes``."""
    try:
        trace.replay(CachingAllocator(limit_bytes, conf))
    except DeviceOutOfMemory:
        return False
    return True
