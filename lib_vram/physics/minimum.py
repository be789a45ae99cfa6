"""The smallest device on which a trace still runs, by replay."""

from __future__ import annotations

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.physics.program import EventTrace
from lib_vram.units import MIB

STEP_BYTES = 1 * MIB


def runs_in(trace: EventTrace, limit_bytes: int, conf: AllocatorConf) -> bool:
    """Return whether ``trace`` runs on a device that can give ``limit_bytes``."""
    try:
        trace.replay(CachingAllocator(limit_bytes, conf))
    except DeviceOutOfMemory:
        return False
    return True


def minimum_and_comfortable(trace: EventTrace, conf: AllocatorConf) -> tuple[int, int]:
    """Return the smallest limit at which ``trace`` runs, and what it reserves without a limit."""
    free = CachingAllocator(None, conf)
    trace.replay(free)
    high = free.peak_reserved_bytes
    low = trace.floor_bytes - 1
    while high - low > STEP_BYTES:
        middle = (low + high) // 2
        if runs_in(trace, middle, conf):
            high = middle
        else:
            low = middle
    return high, free.peak_reserved_bytes
