"""What torch's allocator counts, read as it is: the host keeps its own statistics and resets them when it wants to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Counters:
    """One reading, in bytes. The peaks are since somebody last reset them, whenever that was."""

    allocated_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int


def device_index() -> int | None:
    """Return torch's number of the card that the calling thread computes on, ``None`` when it uses none."""
    cuda = _cuda()
    try:
        return int(cuda.current_device()) if cuda is not None else None
    except (RuntimeError, AssertionError, AttributeError):
        return None


def read(index: int | None = None) -> Counters | None:
    """Return what torch counts on card ``index``; ``None`` when it uses no card, or cannot say.

    About 0.1 ms. Nothing here imports torch or makes it touch a card.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    try:
        counted = cuda.memory_stats(index)
    except (RuntimeError, AssertionError, AttributeError, TypeError, ValueError):
        return None  # a card in a broken state raises on every call
    values = [counted.get(f"{name}_bytes.all.{what}") for what in ("current", "peak") for name in _NAMES]
    return None if None in values else Counters(*map(int, values))


_NAMES = ("allocated", "reserved")


def _cuda() -> Any:
    """Return ``torch.cuda`` where torch is loaded and has begun to use a card."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except (RuntimeError, AttributeError):
        return None
