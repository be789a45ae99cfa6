"""What the sections know of this session and this machine."""

from __future__ import annotations

import shutil
from typing import Any, NamedTuple

from lib_vram.diagnosis.context import Context
from lib_vram.errors import BadInput
from lib_vram.journal.session import Failure
from lib_vram.ui.answers import GuardLike


class SystemMemory(NamedTuple):
    """RAM and swap, in bytes."""

    ram_total_bytes: int
    ram_free_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


def last_failure(guard: GuardLike) -> Failure | None:
    """Return the last generation of this session that failed."""
    session = getattr(guard, "session", None)
    return session.last_failure if session is not None else None


def system_memory() -> SystemMemory | None:
    """Return RAM and swap as they are now, ``None`` where psutil is not there to ask."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        ram, swap = psutil.virtual_memory(), psutil.swap_memory()
    except (OSError, RuntimeError):  # some containers, and Windows without its counters, refuse to tell
        return None
    return SystemMemory(int(ram.total), int(ram.available), int(swap.total), int(swap.free))


def disk_free_bytes() -> int | None:
    """Return what is free on the disk that the WebUI runs from."""
    try:
        return shutil.disk_usage(".").free
    except OSError:
        return None


def context(guard: GuardLike) -> Context:
    """Return what this session knows beside an error text."""
    session: Any = getattr(guard, "session", None)
    failure = last_failure(guard)
    memory = system_memory()
    try:
        card = guard.host.card()
    except BadInput:  # the virtual card is described wrongly; the card's own section says so
        card = None
    return Context(
        host=guard.host.name,
        failed=failure.request if failure else None,
        last_good=session.last_good if session is not None else None,
        good_runs=session.good_runs if session is not None else 0,
        card=card,
        ram_free_bytes=memory.ram_free_bytes if memory else None,
        ram_total_bytes=memory.ram_total_bytes if memory else None,
        disk_free_bytes=disk_free_bytes(),
    )
