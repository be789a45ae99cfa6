"""The computer beside the card: RAM, swap, and the disks of the folders that matter."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

PRESSURE_FILE = Path("/proc/pressure/memory")
"""Linux 4.20 and later: the share of time in which work waited for memory ("Pressure Stall Information")."""


@dataclass(frozen=True)
class Disk:
    """The disk under a folder; ``name`` says which folder: ``models``, ``temp``."""

    name: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class System:
    """RAM and swap at one moment. Sizes in bytes, ``None`` where they cannot be had."""

    ram_total_bytes: int | None = None
    ram_free_bytes: int | None = None
    """What programs can still have without swapping."""
    own_ram_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disks: tuple[Disk, ...] = ()
    waiting_percent: float | None = None
    """Of the last ten seconds, how much some program waited for RAM (Linux)."""


def read(folders: Mapping[str, str], pressure_file: Path = PRESSURE_FILE) -> System:
    """Return the state of this computer with the disks of ``folders`` (name to path)."""
    psutil = _psutil()
    disks = tuple(disk for name, path in folders.items() if (disk := _disk(name, path)))
    waiting = _waiting_percent(pressure_file)
    if psutil is None:
        return System(disks=disks, waiting_percent=waiting)
    ram, swap = psutil.virtual_memory(), _swap(psutil)
    return System(
        ram_total_bytes=int(ram.total),
        ram_free_bytes=int(ram.available),
        own_ram_bytes=_own_ram_bytes(psutil),
        swap_total_bytes=swap[0],
        swap_used_bytes=swap[1],
        disks=disks,
        waiting_percent=waiting,
    )


def _swap(psutil: ModuleType) -> tuple[int | None, int | None]:
    """Return total and used; some systems (containers, Windows without counters) refuse to tell."""
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return None, None
    return int(swap.total), int(swap.used)


def _own_ram_bytes(psutil: ModuleType) -> int | None:
    try:
        return int(psutil.Process(os.getpid()).memory_info().rss)
    except (psutil.Error, OSError):
        return None


def _disk(name: str, path: str) -> Disk | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return Disk(name, usage.total, usage.free)


def _waiting_percent(path: Path) -> float | None:
    """Return the figure of ``some avg10=1.23 …``."""
    try:
        first = path.read_text(encoding="ascii", errors="replace").partition("\n")[0]
        return float(first.split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _psutil() -> ModuleType | None:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None
