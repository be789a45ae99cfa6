"""Whether a generation that has room would fail all the same, because the room is in pieces.

The allocator's pieces as they are now are built up again, and what the generation asks for is replayed on them. It
fails for lack of one piece alone when its blocks together are less than what is free, when they do run in an
allocator that begins anew with the same models, and when they do not run from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.live.pieces import Pieces
from lib_vram.machine.torch_memory import Segment, Snapshot
from lib_vram.physics.alloc_conf import NO_SPLIT_LIMIT, AllocatorConf
from lib_vram.physics.allocator import SEGMENT_ROUNDING, SMALL_LIMIT, SMALL_SEGMENT, CachingAllocator
from lib_vram.physics.program import EventTrace
from lib_vram.units import MIB, round_up

SAME_BYTES = 128 * MIB
SAME_SHARE = 0.03
"""What is in use now is taken for the models of a step when it differs by no more than either of these."""


@dataclass(frozen=True)
class Step:
    """A piece of work: the models on the card meanwhile, what else is kept, and the blocks it asks for."""

    weights_bytes: int
    kept_bytes: int
    trace: EventTrace


@dataclass(frozen=True)
class Shortage:
    """A step that would fail. Sizes in bytes: what is free for it, and the largest piece of that."""

    free_bytes: int
    largest_bytes: int


def allocator_of(segments: Iterable[Segment], limit_bytes: int | None = None) -> CachingAllocator:
    """Return an allocator with these pieces, which can have ``limit_bytes`` in all."""
    allocator = CachingAllocator()
    free = []
    for segment in segments:
        size_bytes = sum(size for size, _ in segment)
        if size_bytes > SMALL_SEGMENT:
            allocator.free(allocator.take(round_up(size_bytes, SEGMENT_ROUNDING)))
        for size, in_use in segment:  # everything before is full, so these come from this piece, in order
            blocks = [allocator.take(part) for part in _parts(size, is_small=size_bytes <= SMALL_SEGMENT)]
            if not in_use:
                free += blocks
    for block in free:
        allocator.free(block)
    allocator.limit_bytes = limit_bytes
    return allocator


def _parts(size: int, *, is_small: bool) -> list[int]:
    """Return a block's size as sizes that are served from the same kind of piece."""
    if not is_small:
        return [size]
    return [min(SMALL_LIMIT, size - start) for start in range(0, size, SMALL_LIMIT)]


def shortage(
    snapshot: Snapshot, steps: Iterable[Step], limit_bytes: int, conf: AllocatorConf | None = None
) -> Shortage | None:
    """Return the first of ``steps`` that would fail for lack of one piece alone, ``None`` when none is sure to.

    ``limit_bytes`` is what this process's allocator can have of the card in all. Nothing is said of an allocator
    that splits or grows its pieces otherwise, or of a step whose models are not what is on the card now: the host
    would move models first.
    """
    if snapshot.expandable or not _is_plain(conf or AllocatorConf()) or not Pieces.of(snapshot).matters:
        return None
    now = allocator_of(snapshot.segments, limit_bytes)
    for step in steps:
        if not _is_same(step.weights_bytes, now.allocated_bytes):
            continue
        free_bytes = limit_bytes - now.allocated_bytes
        if step.kept_bytes + step.trace.floor_bytes > free_bytes:
            continue  # not even in one piece: that is another matter
        if not _runs(now.copy(), step) and _runs(_anew(step, limit_bytes), step):
            return Shortage(free_bytes, _largest(now, limit_bytes))
    return None


def _is_plain(conf: AllocatorConf) -> bool:
    special = conf.expandable or conf.stream_ordered or conf.collects
    return not special and conf.max_split_bytes == NO_SPLIT_LIMIT


def _is_same(weights_bytes: int, allocated_bytes: int) -> bool:
    return abs(weights_bytes - allocated_bytes) <= max(SAME_BYTES, SAME_SHARE * weights_bytes)


def _anew(step: Step, limit_bytes: int) -> CachingAllocator:
    """Return an allocator that has just loaded the models of ``step``, in one piece."""
    fresh = CachingAllocator()
    if step.weights_bytes:
        fresh.take(round_up(step.weights_bytes, SEGMENT_ROUNDING))
    fresh.limit_bytes = limit_bytes
    return fresh


def _runs(allocator: CachingAllocator, step: Step) -> bool:
    try:
        if step.kept_bytes:
            allocator.malloc(step.kept_bytes)
        step.trace.replay(allocator)
    except DeviceOutOfMemory:
        return False
    return True


def _largest(allocator: CachingAllocator, limit_bytes: int) -> int:
    """Return the largest block that could be had: of what is stuck, or of what the driver has once all else is back."""
    emptied = allocator.copy()
    emptied.empty_cache()
    stuck = [size for segment in emptied.segments() for size, in_use in segment if not in_use]
    return max(max(stuck, default=0), limit_bytes - emptied.reserved_bytes)
