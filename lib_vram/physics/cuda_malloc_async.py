"""``backend:cudaMallocAsync``: blocks come from the driver's own pool, not from PyTorch's cache.

What NVIDIA documents (CUDA programming guide, stream-ordered memory allocator) and PyTorch sets: a freed
block is there at once for later work of the same stream; the pool keeps what it has (PyTorch
sets the release threshold to the largest number there is) and gives back only what is wholly unused
when the device is full. What it does not document was found from the published figures:

- everything published as reserved is a whole number of 32 MiB, so the pool grows by such chunks;
- chunks lie next to one another, and free neighbours merge across them;
- a request that no free block can serve gets chunks of its own, its size rounded up;
- blocks of up to 1 MiB have chunks apart from the larger ones.

With weights loaded first this gives 3232 MiB for SDXL's VAE decode in fp16 at 1024² (published:
3200 and 3232, InvokeAI pull requests 7673 and 7674), 5440 in fp32 with fp16 middle layers (5536 and 5568)
and 1664 for SD 1.5's in fp32 at 512² (1696): at most 2.3 % off.
"""

from __future__ import annotations

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import DEFAULT, SMALL_LIMIT, AllocatorConf, Block
from lib_vram.physics.expandable import FREE, TAKEN, UNMAPPED, ExpandableAllocator, Stretch
from lib_vram.units import MIB

CHUNK = 32 * MIB
"""What the pool grows by: InvokeAI's figures are 53, 100, 101, 173 and 174 times it."""


class StreamOrderedPool(ExpandableAllocator):
    """The driver's pool behind the interface of the caching allocator."""

    def __init__(self, limit_bytes: int | None = None, conf: AllocatorConf = DEFAULT) -> None:
        super().__init__(limit_bytes, conf)
        self._stretches = [Stretch(CHUNK), Stretch(CHUNK)]

    def take(self, size: int) -> Block:
        stretch = self._stretches[size > SMALL_LIMIT]
        return super().take(size) if stretch.best_free(size) is not None else self._take_chunks(stretch, size)

    def _take_chunks(self, stretch: Stretch, size: int) -> Block:
        wanted = -(-size // CHUNK) * CHUNK
        if self.limit_bytes is not None and self.reserved_bytes + wanted > self.limit_bytes:
            self._note_limit(self.reserved_bytes + wanted)
            self.empty_cache()
            if self.reserved_bytes + wanted > self.limit_bytes:
                self._note_limit(self.reserved_bytes + wanted)
                raise DeviceOutOfMemory(
                    requested_bytes=size, limit_bytes=self.limit_bytes,
                    allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes,
                )  # fmt: skip
        start = next(
            first
            for first, end, state in zip(stretch.starts, stretch.ends, stretch.states)
            if state == UNMAPPED and end - first >= wanted
        )
        stretch.set_state(start, start + wanted, TAKEN)
        if wanted > size:
            stretch.set_state(start + size, start + wanted, FREE)
        self.reserved_bytes += wanted
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = start | int(size > SMALL_LIMIT)
        self._sizes[block] = size
        self.allocated_bytes += size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block
