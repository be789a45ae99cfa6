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
from dataclasses import dataclass

from lib_vram.errors import BadInput, DeviceOutOfMemory, NotReady
from lib_vram.units import MIB

MIN_BLOCK = 512
SMALL_LIMIT = 1 * MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT_FROM = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB
NO_SPLIT_LIMIT = 2**62
MIN_SPLIT_SIZE_MB = 20
"""PyTorch refuses a ``max_split_size_mb`` that is not larger than the 20 MiB segment."""

_CONF_KEYS = ("backend", "expandable_segments", "max_split_size_mb", "garbage_collection_threshold",
              "roundup_power2_divisions", "roundup_bypass_threshold_mb", "release_lock_on_cudamalloc",
              "pinned_use_cuda_host_register", "pinned_num_register_threads")  # fmt: skip
_HOST_MEMORY_KEYS = frozenset(
    ("release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads")
)


@dataclass(frozen=True)
class AllocatorConf:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` says, as far as it moves blocks. Sizes in bytes."""

    max_split_bytes: int = NO_SPLIT_LIMIT
    expandable: bool = False

    @classmethod
    def parse(cls, text: str) -> AllocatorConf:
        """Return the configuration that ``text`` (``"expandable_segments:True,max_split_size_mb:128"``) sets.

        Raises:
            BadInput: an option does not exist, or its value is not one it takes.
            NotReady: an option that changes the replay is understood and not modelled.
        """
        values: dict[str, int | bool] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            key, found, value = (part.strip() for part in item.partition(":"))
            if key not in _CONF_KEYS or not found:
                raise BadInput("alloc_conf", got=item, takes=f"option:value with the options {', '.join(_CONF_KEYS)}")
            values.update(_option(key, value))
        return cls(**values)  # type: ignore[arg-type]


def _option(key: str, value: str) -> dict[str, int | bool]:
    if key in _HOST_MEMORY_KEYS or (key == "backend" and value == "native"):
        return {}
    if key == "expandable_segments":
        if value not in ("True", "False"):
            raise BadInput("alloc_conf", got=f"{key}:{value}", takes=f"{key}:True or {key}:False")
        return {"expandable": value == "True"}
    if key == "max_split_size_mb":
        if not value.isdecimal() or int(value) <= MIN_SPLIT_SIZE_MB:
            raise BadInput("alloc_conf", got=f"{key}:{value}", takes=f"a whole number above {MIN_SPLIT_SIZE_MB}")
        return {"max_split_bytes": int(value) * MIB}
    raise NotReady("alloc_conf", got=f"{key}:{value}", takes="options whose effect is modelled: "
                   "expandable_segments, max_split_size_mb, backend:native")  # fmt: skip


def rounded(size_bytes: int) -> int:
    """Return the bytes that a request of ``size_bytes`` occupies."""
    return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK if size_bytes > MIN_BLOCK else MIN_BLOCK


def segment_bytes(size_bytes: int) -> int:
    """Return the size of the segment that is asked of the driver for a block of ``size_bytes``."""
    if size_bytes <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size_bytes < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-size_bytes // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


class Block:
    """A stretch of one segment: in use, or free and waiting to be used again. Sizes in bytes."""

    __slots__ = ("address", "free", "next", "prev", "size")

    def __init__(self, size: int, address: int, prev: Block | None = None, after: Block | None = None) -> None:
        self.size = size
        self.address = address
        self.free = False
        self.prev = prev
        self.next = after


FreeList = list[tuple[int, int, Block]]
"""Free blocks of one pool, sorted by size and then by address."""


class CachingAllocator:
    """One device's allocator. ``limit_bytes`` is what the driver can give; ``None`` is no limit."""

    def __new__(cls, limit_bytes: int | None = None, conf: AllocatorConf = AllocatorConf()) -> CachingAllocator:
        if cls is CachingAllocator and conf.expandable:
            from lib_vram.physics.expandable import ExpandableAllocator

            return super().__new__(ExpandableAllocator)
        return super().__new__(cls)

    def __init__(self, limit_bytes: int | None = None, conf: AllocatorConf = AllocatorConf()) -> None:
        self.limit_bytes = limit_bytes
        self.conf = conf
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self._small: FreeList = []
        self._large: FreeList = []
        self._next_address = 0

    def malloc(self, size_bytes: int) -> Block:
        """Take a block of at least ``size_bytes``.

        Raises:
            DeviceOutOfMemory: the device has no room, even after the cache was released.
        """
        size = rounded(size_bytes)
        pool = self._small if size <= SMALL_LIMIT else self._large
        block = self._cached(pool, size)
        if block is None:
            block = self._new_segment(size)
        block.free = False
        self._split(block, size, pool)
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Give ``block`` back; it is merged with free neighbours and kept."""
        self.allocated_bytes -= block.size
        small = self._is_small(block)
        pool = self._small if small else self._large
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.free:
                del pool[bisect_left(pool, (neighbour.size, neighbour.address))]
                block = _merge(block, neighbour)
        block.free = True
        insort(pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Give whole free segments back to the driver."""
        for pool in (self._small, self._large):
            kept = [item for item in pool if item[2].prev is not None or item[2].next is not None]
            self.reserved_bytes -= sum(item[0] for item in pool) - sum(item[0] for item in kept)
            pool[:] = kept

    def _cached(self, pool: FreeList, size: int) -> Block | None:
        place = bisect_left(pool, (size,))
        if place == len(pool):
            return None
        found = pool[place][0]
        limit = self.conf.max_split_bytes
        if (size < limit <= found) or (size >= limit and found >= size + LARGE_SEGMENT):
            return None
        return pool.pop(place)[2]

    def _new_segment(self, size: int) -> Block:
        wanted = segment_bytes(size)
        if not self._fits(wanted):
            self._release_oversize(wanted)
        if not self._fits(wanted):
            self.empty_cache()
        if not self._fits(wanted):
            raise DeviceOutOfMemory(
                requested_bytes=size, limit_bytes=self.limit_bytes or 0,
                allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes,
            )  # fmt: skip
        return self._grow(wanted)

    def _fits(self, wanted: int) -> bool:
        return self.limit_bytes is None or self.reserved_bytes + wanted <= self.limit_bytes

    def _grow(self, wanted: int) -> Block:
        self.reserved_bytes += wanted
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = Block(wanted, self._next_address)
        self._next_address += wanted
        return block

    def _release_oversize(self, wanted: int) -> None:
        """With a split limit, blocks above it are given back first: one that is enough, or the largest until it is."""
        limit = self.conf.max_split_bytes
        if limit == NO_SPLIT_LIMIT:
            return
        key = max(wanted, limit)
        place = bisect_left(self._large, (key,))
        chosen = self._large[place:place + 1] or [item for item in reversed(self._large) if item[0] >= limit]
        released = 0
        for item in chosen:
            if released >= wanted:
                break
            self._large.remove(item)
            self.reserved_bytes -= item[0]
            released += item[0]

    def _split(self, block: Block, size: int, pool: FreeList) -> None:
        left_over = block.size - size
        if pool is self._small:
            if left_over < MIN_BLOCK:
                return
        elif left_over <= SMALL_LIMIT or size >= self.conf.max_split_bytes:
            return
        rest = Block(left_over, block.address + size, block, block.next)
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = size
        rest.free = True
        insort(pool, (left_over, rest.address, rest))

    @staticmethod
    def _is_small(block: Block) -> bool:
        return block.size <= SMALL_LIMIT


def _merge(block: Block, neighbour: Block) -> Block:
    low, high = (block, neighbour) if block.address < neighbour.address else (neighbour, block)
    low.size += high.size
    low.next = high.next
    if high.next is not None:
        high.next.prev = low
    return low
