"""What PyTorch's allocator holds, from its own counters: nothing here waits for the device or resets anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

FAULTS = (RuntimeError, AssertionError, AttributeError, TypeError, ValueError, KeyError)
"""What torch raises for a device in a broken state, or in a version that lacks a function."""

Segment = tuple[tuple[int, bool], ...]
"""One piece of the card that PyTorch has taken, as its blocks from the start: (bytes, whether one is in use)."""


@dataclass(frozen=True)
class TorchMemory:
    """The allocator at one moment. Sizes in bytes, ``None`` where this version of torch does not count."""

    allocated_bytes: int
    """Blocks in use: weights, and whatever else holds a tensor."""
    reserved_bytes: int
    """What was taken from the driver, those blocks included."""
    highest_bytes: int | None = None
    """The most that was ever allocated since whoever counts last began anew."""
    changes: int | None = None
    """A number that is another one after the next block that is taken."""
    driver_bytes: int | None = None
    """What the driver holds for this process beside that, where it is known from the start (a virtual card)."""


@dataclass(frozen=True)
class Snapshot:
    """The allocator's pieces. ``expandable`` pieces grow in place, so that holes in them matter little."""

    segments: tuple[Segment, ...]
    expandable: bool = False


def read(index: int | None = None) -> TorchMemory | None:
    """Return what torch's allocator holds on device ``index``; ``None`` while torch has not used a device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        for name in ("cuda", "xpu"):
            device = getattr(torch, name, None)
            if device is not None and device.is_available() and device.is_initialized():
                return _counted(device, index)
        return _of_mps(torch)
    except FAULTS:
        return None


def snapshot(index: int | None = None) -> Snapshot | None:
    """Return the pieces of device ``index``, ``None`` where they cannot be had (not CUDA, other allocators).

    Takes the allocator's lock for some milliseconds, so it is not asked while a generation runs.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_available() or not cuda.is_initialized():
            return None
        number = cuda.current_device() if index is None else index
        segments = [item for item in cuda.memory_snapshot() if item["device"] == number]
    except FAULTS:
        return None
    if not segments:
        return None
    return Snapshot(
        tuple(_blocks(item["blocks"]) for item in segments),
        expandable=any(item.get("is_expandable") for item in segments),
    )


def _blocks(blocks: list[Mapping[str, Any]]) -> Segment:
    return tuple((int(block["size"]), block["state"] != "inactive") for block in blocks)


def _counted(device: Any, index: int | None) -> TorchMemory:
    asked = getattr(device, "memory_stats_as_nested_dict", None)
    stats = asked(index) if asked is not None else None
    if not stats:
        return TorchMemory(int(device.memory_allocated(index)), int(device.memory_reserved(index)))
    allocated = stats["allocated_bytes"]["all"]
    return TorchMemory(
        allocated_bytes=int(allocated["current"]),
        reserved_bytes=int(stats["reserved_bytes"]["all"]["current"]),
        highest_bytes=int(allocated["peak"]),
        changes=int(allocated["allocated"]) + int(allocated["freed"]),
    )


def _of_mps(torch: ModuleType) -> TorchMemory | None:
    mps = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is None or not mps.is_available():
        return None
    allocated_bytes = int(torch.mps.current_allocated_memory())
    return TorchMemory(allocated_bytes, max(allocated_bytes, int(torch.mps.driver_allocated_memory())))
