"""Opens the journal of this session in the extension's own data folder, and says how the last session ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.journal.journal import Journal
from lib_vram.journal.last_session import LastSession, last_session
from lib_vram.machine.card import Card
from lib_vram.request import Request

FOLDER = Path(__file__).resolve().parents[2] / "data" / "journal"
"""Beside the extension's code; made with the first event."""


def open_journal(
    host: str, card: Callable[[], Card | None], look: Callable[[], None], folder: Path = FOLDER
) -> tuple[Journal, LastSession | None]:
    """Return this session's journal and how the last session of ``host`` ended. Makes no file or folder yet.

    ``look`` is called with each reading of the memory, to find out whether the run has failed meanwhile.
    """
    header = {"host": host, "ram_total": _ram()[0]}

    def sample() -> dict[str, int | None]:
        look()
        return _memory(card)

    journal = Journal(folder, header, sample)
    before = last_session(folder, host, journal.path, _is_running, _booted_at()) if folder.is_dir() else None
    return journal, before


def settings_of(request: Request) -> dict[str, Any]:
    """Return what of ``request`` is worth keeping: no prompt, no path."""
    hires = request.hires_size()
    return {
        "family": request.model.family,
        "width": request.width,
        "height": request.height,
        "batch_size": request.batch_size,
        "batch_count": request.batch_count,
        "hires": f"{hires[0]}x{hires[1]}" if hires else None,
        "controlnets": len(request.controlnets),
        "loras": len(request.loras),
        "frames": request.frames,
    }


def _memory(card: Callable[[], Card | None]) -> dict[str, int | None]:
    try:
        found = card()
    except BadInput:  # the virtual card is described wrongly
        found = None
    return {"ram_free": _ram()[1], "card_free": found.free_bytes if found else None}


def _ram() -> tuple[int | None, int | None]:
    try:
        import psutil
    except ImportError:
        return None, None
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _booted_at() -> float | None:
    try:
        import psutil
    except ImportError:
        return None
    return float(psutil.boot_time())


def _is_running(pid: int) -> bool:
    try:
        import psutil
    except ImportError:
        return _answers(pid)
    return bool(psutil.pid_exists(pid))


def _answers(pid: int) -> bool:
    if os.name == "nt":  # there os.kill ends a process whatever the signal
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
