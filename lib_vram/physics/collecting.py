"""The caching allocator with ``garbage_collection_threshold``: free segments go before the device is full.

Follows ``garbage_collect_cached_blocks`` of ``c10/cuda/CUDACachingAllocator.cpp``. It runs where no cached
block is large enough and more is reserved than the threshold's share of what the process may have.
PyTorch runs it only in a process with a memory fraction; a block's age is how often a large
block was asked for since it became free.
"""

from __future__ import annotations

from lib_vram.physics.allocator import (
    _NUMBER_MASK,
    DEFAULT,
    NOTHING,
    SMALL_LIMIT,
    AllocatorConf,
    Block,
    CachingAllocator,
)


class CollectingAllocator(CachingAllocator):
    """The same interface. ``limit_bytes`` stands for what the process may have."""

    def __init__(self, limit_bytes: int | None = None, conf: AllocatorConf = DEFAULT) -> None:
        super().__init__(limit_bytes, conf)
        self._asked = 0
        self._free_since: dict[Block, int] = {}

    def copy(self) -> CachingAllocator:
        twin = super().copy()
        twin.__dict__.update(_free_since=self._free_since.copy())
        return twin

    def take(self, size: int) -> Block:
        self._asked += size > SMALL_LIMIT
        block = super().take(size)
        rest = self._after[block]
        if rest != NOTHING and self._is_free[rest]:
            self._free_since[rest] = self._asked
        return block

    def touch(self, size: int) -> None:
        self.free(self.take(size))

    def touch_two(self, first: int, second: int) -> None:
        for block in (self.take(first), self.take(second)):
            self.free(block)

    def free(self, block: Block) -> None:
        before = self._before[block]
        merged = before if before != NOTHING and self._is_free[before] else block
        super().free(block)
        self._free_since[merged] = self._asked

    def _new_segment(self, size: int) -> Block:
        if self.limit_bytes is not None:
            self._collect(self.reserved_bytes - int((self.conf.collect_above or 1) * self.limit_bytes))
        return super()._new_segment(size)

    def _collect(self, target_bytes: int) -> None:
        """Give whole free segments back, those of more than average age first, until ``target_bytes`` are gone."""
        ages = {
            key: self._asked - self._free_since[key & _NUMBER_MASK]
            for key in self._large
            if self._before[key & _NUMBER_MASK] == NOTHING and self._after[key & _NUMBER_MASK] == NOTHING
        }
        while target_bytes > 0 and ages:
            average = sum(ages.values()) / len(ages)
            for key in [key for key, age in ages.items() if age >= average]:
                if target_bytes <= 0:
                    break
                del ages[key]
                self._large.remove(key)
                target_bytes -= self._size[key & _NUMBER_MASK]
                self._give_segment_back(key & _NUMBER_MASK)
