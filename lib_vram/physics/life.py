"""One allocator's life over several generations: what weights, and what earlier runs leave behind, do to the next one.

A replay of one part alone starts with an empty allocator. A running WebUI's has the weights'
segments, whose free tails serve small requests, and the cache of earlier generations, cut into
pieces that fit those generations and not the next: fragmentation, which is predicted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import DEFAULT, AllocatorConf, CachingAllocator
from lib_vram.physics.program import EventTrace


@dataclass(frozen=True)
class AllocatorState:
    """An allocator at rest between two parts. ``weights_reserved_bytes`` is what it had reserved for weights alone."""

    allocator: CachingAllocator
    weights_reserved_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """What the process holds of the device, the cache included."""
        return self.allocator.reserved_bytes

    @property
    def cached_bytes(self) -> int:
        """What is reserved and not in use: there for later requests as far as it fits them."""
        return self.allocator.reserved_bytes - self.allocator.allocated_bytes

    def peak_of(self, trace: EventTrace) -> int:
        """Return the peak of reserved when ``trace`` runs from here, in bytes, the weights included.

        Raises:
            DeviceOutOfMemory: the device has no room for it from here.
        """
        allocator = self.allocator.copy()
        allocator.peak_reserved_bytes = allocator.reserved_bytes
        trace.replay(allocator)
        return allocator.peak_reserved_bytes

    def runs(self, trace: EventTrace) -> bool:
        """Return whether ``trace`` runs from here, on the device as it is."""
        try:
            self.peak_of(trace)
        except DeviceOutOfMemory:
            return False
        return True

    def then(self, trace: EventTrace) -> AllocatorState:
        """Return the state after ``trace`` as well.

        Raises:
            DeviceOutOfMemory: the device has no room for it from here.
        """
        allocator = self.allocator.copy()
        trace.replay(allocator)
        return AllocatorState(allocator, self.weights_reserved_bytes)


def loaded(weights: Iterable[int], conf: AllocatorConf = DEFAULT, limit_bytes: int | None = None) -> AllocatorState:
    """Return the state after a model was loaded: one block a parameter, in the order of its state dict, sizes in bytes.

    Raises:
        DeviceOutOfMemory: the weights alone do not fit.
    """
    allocator = CachingAllocator(limit_bytes, conf)
    for size in weights:
        allocator.malloc(size)
    return AllocatorState(allocator, allocator.reserved_bytes)


def after(traces: Iterable[EventTrace], conf: AllocatorConf = DEFAULT, *, weights: Iterable[int] = (),
          limit_bytes: int | None = None) -> AllocatorState:  # fmt: skip
    """Return the state that ``traces`` leave behind, run one after the other over ``weights``.

    Raises:
        DeviceOutOfMemory: one of them has no room.
    """
    state = loaded(weights, conf, limit_bytes)
    for trace in traces:
        state = state.then(trace)
    return state
