"""The questions that estimating and planning ask of physics, and what answers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.estimate.work import Working
from lib_vram.physics.addons import Addon, addon_memory, addon_trace
from lib_vram.physics.allocator import SEGMENT_ROUNDING, AllocatorConf, CachingAllocator
from lib_vram.physics.component import ComponentMemory
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.physics.program import EventTrace


@dataclass(frozen=True)
class Physics:
    """``memory`` is the full answer; ``floor`` and ``runs`` are the cheap parts of it that a search needs.

    ``runs(component, limit_bytes)`` is whether the part runs when the activations can have ``limit_bytes``:
    one replay, where the minimum takes a bisection of them.
    """

    memory: Callable[[Working], ComponentMemory]
    floor: Callable[[Working], int]
    runs: Callable[[Working, int], bool]

    @classmethod
    def of(cls, memory: Callable[[Working], ComponentMemory]) -> Physics:
        """Return the physics that ``memory`` alone describes."""
        return cls(
            memory,
            lambda component: memory(component).floor_bytes,
            lambda component, limit_bytes: memory(component).minimum_bytes <= limit_bytes,
        )


def trace_of(component: Working) -> EventTrace:
    """Return the blocks that ``component`` takes and gives back.

    Raises:
        NotReady: there is no profile of it yet.
    """
    return addon_trace(component) if isinstance(component, Addon) else component_trace(component)


@lru_cache(maxsize=128)
def _trace(component: Working) -> EventTrace:
    return trace_of(component)


@lru_cache(maxsize=4096)
def _memory(component: Working) -> ComponentMemory:
    """The replay reserves whole segments, so the true minimum is the multiple of 2 MiB at or below the one found."""
    found = addon_memory(component) if isinstance(component, Addon) else component_memory(component)
    whole_bytes = found.minimum_bytes // SEGMENT_ROUNDING * SEGMENT_ROUNDING
    return replace(found, minimum_bytes=whole_bytes if whole_bytes >= found.floor_bytes else found.minimum_bytes)


@lru_cache(maxsize=16384)
def _floor(component: Working) -> int:
    return _trace(component).floor_bytes


@lru_cache(maxsize=16384)
def _runs(component: Working, limit_bytes: int) -> bool:
    if _floor(component) > limit_bytes:
        return False
    try:
        _trace(component).replay(CachingAllocator(limit_bytes, AllocatorConf.parse(component.alloc_conf)))
    except DeviceOutOfMemory:
        return False
    return True


def forget() -> None:
    """Forget every answer: a profile has come that was not there before."""
    for answers in (addon_memory, component_memory, _trace, _memory, _floor, _runs):
        answers.cache_clear()


COMPUTED = Physics(_memory, _floor, _runs)
"""Physics as it is shipped: profiles and replays."""
