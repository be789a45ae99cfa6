"""PyTorch's CUDA caching allocator, replayed: which blocks share which segments, and when it runs out.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.0 to 2.13, one stream):
sizes are rounded to 512 bytes; a request of at most 1 MiB is served from 2 MiB segments, one
below 10 MiB from 20 MiB segments, a larger one from a segment of its own rounded to 2 MiB; the
smallest free block that is large enough is taken, the lowest address among equals; what is left
over is split off when it is worth keeping; freed neighbours are merged; and when the device is
full, whole free segments are given back to the driver before the request is tried once more.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.alloc_conf import LARGE_SEGMENT, MIN_BLOCK, NO_SPLIT_LIMIT, AllocatorConf
from lib_vram.units import MIB

__all__ = ("LARGE_SEGMENT", "MIN_BLOCK", "NO_SPLIT_LIMIT", "AllocatorConf", "CachingAllocator")

SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT_FROM = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB

DEFAULT = AllocatorConf()
"""PyTorch without an environment variable."""


def rounded(size_bytes: int) -> int:
    """Return the bytes that a request of ``size_bytes`` occupies, without ``roundup_power2_divisions``."""
    return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK if size_bytes > MIN_BLOCK else MIN_BLOCK


def segment_bytes(size_bytes: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Return the size of the segment that is asked of the driver for a block of ``size_bytes``."""
    if size_bytes <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size_bytes < min(OWN_SEGMENT_FROM, large_segment):
        return large_segment
    return -(-size_bytes // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


Block = int
"""A block's number. Numbers of blocks that are gone are used again."""

_UNIT = 9
_ADDRESS_BITS = 64
_NUMBER_BITS = 16
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_SIZE_SHIFT = _ADDRESS_BITS + _NUMBER_BITS - _UNIT
_ADDRESS_SHIFT = _NUMBER_BITS - _UNIT
"""A free block is one number that sorts by size, then by address, and carries the block's number in its lowest bits.

Sizes and addresses are multiples of 512 = 2 ** _UNIT.
"""

NOTHING = -1


class CachingAllocator:
    """One device's allocator. ``limit_bytes`` is what the driver can give; ``None`` is no limit.

    Blocks are numbers into parallel lists, so that the whole state can be copied in microseconds.
    """

    def __new__(cls, limit_bytes: int | None = None, conf: AllocatorConf = DEFAULT) -> CachingAllocator:
        return super().__new__(_class_for(conf) if cls is CachingAllocator else cls)

    def __init__(self, limit_bytes: int | None = None, conf: AllocatorConf = DEFAULT) -> None:
        self.limit_bytes = limit_bytes
        self.conf = conf
        self._always_splits = conf.max_split_bytes == NO_SPLIT_LIMIT
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.next_limit_bytes: int | None = None
        """The smallest larger limit under which this life would have gone differently, ``None`` when none would."""
        self._small: list[int] = []
        self._large: list[int] = []
        self._size: list[int] = []
        self._address: list[int] = []
        self._before: list[Block] = []
        self._after: list[Block] = []
        self._is_free: list[bool] = []
        self._unused: list[Block] = []
        self._next_address = 0

    def copy(self) -> CachingAllocator:
        """Return an allocator in the same state, whose later life is its own."""
        twin = object.__new__(type(self))
        twin.__dict__.update({key: value[:] if isinstance(value, list) else value for key, value in vars(self).items()})
        return twin

    def malloc(self, size_bytes: int) -> Block:
        """Take a block of at least ``size_bytes``.

        Raises:
            DeviceOutOfMemory: the device has no room, even after the cache was released.
        """
        return self.take(self.conf.rounded(size_bytes))

    def take(self, size: int) -> Block:
        """Take a block of ``size``, which is rounded already. Written out in full: replays spend their time here."""
        small = size <= SMALL_LIMIT
        pool = self._small if small else self._large
        sizes = self._size
        place = bisect_left(pool, size << _SIZE_SHIFT)
        if place < len(pool) and self._always_splits:
            block = pool.pop(place) & _NUMBER_MASK
        else:
            block = self._cached(pool, size)
            if block == NOTHING:
                block = self._new_segment(size)
        self._is_free[block] = False
        taken = sizes[block]
        left_over = taken - size
        if left_over >= MIN_BLOCK if small else (left_over > SMALL_LIMIT and size < self.conf.max_split_bytes):
            after, address = self._after[block], self._address[block] + size
            if self._unused:
                rest = self._unused.pop()
                sizes[rest], self._address[rest] = left_over, address
                self._before[rest], self._after[rest] = block, after
            else:
                rest = self._new_block(left_over, address, block, after)
            if after != NOTHING:
                self._before[after] = rest
            self._after[block] = rest
            self._is_free[rest] = True
            sizes[block] = taken = size
            insort(pool, left_over << _SIZE_SHIFT | address << _ADDRESS_SHIFT | rest)
        allocated = self.allocated_bytes = self.allocated_bytes + taken
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        return block

    def touch(self, size: int) -> None:
        """Take a block of ``size`` and give it back at once; a cached block that is large enough changes nothing."""
        pool = self._small if size <= SMALL_LIMIT else self._large
        place = bisect_left(pool, size << _SIZE_SHIFT)
        if place < len(pool) and self._always_splits:
            found = self._size[pool[place] & _NUMBER_MASK]
            taken = size if found - size > SMALL_LIMIT or size <= SMALL_LIMIT else found
            self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes + taken)
        else:
            self.free(self.take(size))

    def touch_two(self, first: int, second: int) -> None:
        """Take two blocks one after the other and give both back; a cached block with room for both changes nothing."""
        pool = self._small if first <= SMALL_LIMIT else self._large
        both = first + second
        if (first <= SMALL_LIMIT) == (second <= SMALL_LIMIT) and self._always_splits:
            place = bisect_left(pool, both << _SIZE_SHIFT)
            if place < len(pool):
                self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes + both)
                return
        blocks = self.take(first), self.take(second)
        for block in blocks:
            self.free(block)

    def free(self, block: Block) -> None:
        """Give ``block`` back; it is merged with free neighbours and kept."""
        sizes, addresses, is_free = self._size, self._address, self._is_free
        size = sizes[block]
        self.allocated_bytes -= size
        pool = self._small if size <= SMALL_LIMIT else self._large
        before, after = self._before[block], self._after[block]
        if after != NOTHING and is_free[after]:
            gone = sizes[after]
            del pool[bisect_left(pool, gone << _SIZE_SHIFT | addresses[after] << _ADDRESS_SHIFT)]
            self._unused.append(after)
            size = sizes[block] = size + gone
            after = self._after[block] = self._after[after]
            if after != NOTHING:
                self._before[after] = block
        if before != NOTHING and is_free[before]:
            had = sizes[before]
            del pool[bisect_left(pool, had << _SIZE_SHIFT | addresses[before] << _ADDRESS_SHIFT)]
            self._unused.append(block)
            size = sizes[before] = had + size
            self._after[before] = after
            if after != NOTHING:
                self._before[after] = before
            block = before
        is_free[block] = True
        insort(pool, size << _SIZE_SHIFT | addresses[block] << _ADDRESS_SHIFT | block)

    def empty_cache(self) -> None:
        """Give whole free segments back to the driver."""
        for pool in (self._small, self._large):
            kept = []
            for key in pool:
                block = key & _NUMBER_MASK
                if self._before[block] == NOTHING and self._after[block] == NOTHING:
                    self._give_segment_back(block)
                else:
                    kept.append(key)
            pool[:] = kept

    def segments(self) -> tuple[tuple[tuple[int, bool], ...], ...]:
        """Return the pieces taken from the driver, by address, each as its blocks: (bytes, whether one is in use)."""
        gone = set(self._unused)
        heads = [block for block in range(len(self._size)) if block not in gone and self._before[block] == NOTHING]
        return tuple(self._blocks_from(head) for head in sorted(heads, key=self._address.__getitem__))

    def _blocks_from(self, block: Block) -> tuple[tuple[int, bool], ...]:
        blocks = []
        while block != NOTHING:
            blocks.append((self._size[block], not self._is_free[block]))
            block = self._after[block]
        return tuple(blocks)

    def _cached(self, pool: list[int], size: int) -> Block:
        place = bisect_left(pool, size << _SIZE_SHIFT)
        if place == len(pool):
            return NOTHING
        block = pool[place] & _NUMBER_MASK
        limit = self.conf.max_split_bytes
        if limit != NO_SPLIT_LIMIT:
            found = self._size[block]
            if (size < limit <= found) or (size >= limit and found >= size + self.conf.non_split_rounding_bytes):
                return NOTHING
        del pool[place]
        return block

    def _new_segment(self, size: int) -> Block:
        wanted = segment_bytes(size, self.conf.large_segment_bytes)
        limit = self.limit_bytes
        if limit is not None and self.reserved_bytes + wanted > limit:
            self._note_limit(self.reserved_bytes + wanted)
            self._release_oversize(size)
            if self.reserved_bytes + wanted > limit:
                self.empty_cache()
            if self.reserved_bytes + wanted > limit:
                self._note_limit(self.reserved_bytes + wanted)
                raise DeviceOutOfMemory(
                    requested_bytes=size, limit_bytes=limit,
                    allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes,
                )  # fmt: skip
        self.reserved_bytes += wanted
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self._next_address += wanted
        return self._new_block(wanted, self._next_address - wanted, NOTHING, NOTHING)

    def _note_limit(self, needed: int) -> None:
        known = self.next_limit_bytes
        self.next_limit_bytes = needed if known is None else min(known, needed)

    def _new_block(self, size: int, address: int, before: Block, after: Block) -> Block:
        if self._unused:
            block = self._unused.pop()
            self._size[block], self._address[block] = size, address
            self._before[block], self._after[block] = before, after
            return block
        self._size.append(size)
        self._address.append(address)
        self._before.append(before)
        self._after.append(after)
        self._is_free.append(False)
        return len(self._size) - 1

    def _give_segment_back(self, block: Block) -> None:
        self.reserved_bytes -= self._size[block]
        self._is_free[block] = False
        self._unused.append(block)

    def _release_oversize(self, size: int) -> None:
        """Give back blocks above the split limit first: one that is enough, or the largest until they are."""
        limit = self.conf.max_split_bytes
        if limit == NO_SPLIT_LIMIT:
            return
        enough = max(size, limit)
        place = bisect_left(self._large, enough << _SIZE_SHIFT)
        oversize = self._large[bisect_left(self._large, limit << _SIZE_SHIFT) :]
        released = 0
        for key in self._large[place : place + 1] or reversed(oversize):
            if released >= enough:
                break
            block = key & _NUMBER_MASK
            self._large.remove(key)
            released += self._size[block]
            self._give_segment_back(block)


def _class_for(conf: AllocatorConf) -> type[CachingAllocator]:
    """Return the allocator that PyTorch runs under ``conf``. ``backend`` goes before everything else."""
    if conf.stream_ordered:
        from lib_vram.physics.cuda_malloc_async import StreamOrderedPool

        return StreamOrderedPool
    if conf.expandable:
        from lib_vram.physics.expandable import ExpandableAllocator

        return ExpandableAllocator
    if conf.collects:
        from lib_vram.physics.collecting import CollectingAllocator

        return CollectingAllocator
    return CachingAllocator
