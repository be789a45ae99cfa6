"""Windows' own counters of each program's share of a card, where the driver keeps NVML from telling (WDDM).

They are the performance counters ``\\GPU Process Memory(*)\\Dedicated Usage`` and ``Shared Usage``, read through
``pdh.dll``: no program is started. Source of the calls and structures: Microsoft, "Using the PDH Functions to
Consume Counter Data" and ``pdh.h``; of the counters' meaning: "GPUs in the task manager" (DirectX Developer Blog).
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lib_vram.units import MIB

AGAIN_SECONDS = 3.0
"""A collection goes through every program on every adapter."""
LEAST_BYTES = MIB
"""Every window has some pages on the card; less than this is not worth a line."""

_DEDICATED = r"\GPU Process Memory(*)\Dedicated Usage"
_SHARED = r"\GPU Process Memory(*)\Shared Usage"
_INSTANCE = re.compile(r"pid_(\d+)_luid_(0x[0-9a-fA-F]+_0x[0-9a-fA-F]+)_phys_\d+")
_MORE_DATA = 0x800007D2
_LARGE = 0x00000400


class _Value(ctypes.Structure):
    """``PDH_FMT_COUNTERVALUE`` with a 64-bit number in its union."""

    _fields_ = (("status", ctypes.c_uint32), ("large", ctypes.c_int64))


class _Item(ctypes.Structure):
    """``PDH_FMT_COUNTERVALUE_ITEM_W``."""

    _fields_ = (("name", ctypes.c_wchar_p), ("value", _Value))


@dataclass(frozen=True)
class Shares:
    """What each program, by its number, holds of one card: on it, and moved to RAM. Sizes in bytes."""

    dedicated: dict[int, int] = field(default_factory=dict)
    shared: dict[int, int] = field(default_factory=dict)


class PdhReader:
    """Reads the counters at most every few seconds; ``None`` on other systems and where they are missing."""

    def __init__(
        self,
        load: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        own: int | None = None,
    ) -> None:
        self._load = load or _load
        self._clock = clock
        self._own = os.getpid() if own is None else own
        self._lock = threading.Lock()
        self._library: Any = None
        self._tried = False
        self._read_at = float("-inf")
        self._shares: Shares | None = None

    def shares(self) -> Shares | None:
        """Return the shares of the card that this process is on, of the most used one when it is on none."""
        with self._lock:
            if not self._tried:
                self._library, self._tried = self._load(), True
            if self._library is not None and self._clock() - self._read_at >= AGAIN_SECONDS:
                self._read_at = self._clock()
                self._shares = self._read()
            return self._shares

    def _read(self) -> Shares | None:
        try:
            dedicated, shared = (_collected(self._library, path) for path in (_DEDICATED, _SHARED))
        except OSError:
            return None
        adapter = _adapter(dedicated, self._own)
        if adapter is None:
            return None
        return Shares(
            {pid: size for (pid, luid), size in dedicated.items() if luid == adapter and size >= LEAST_BYTES},
            {pid: size for (pid, luid), size in shared.items() if luid == adapter and size >= LEAST_BYTES},
        )


def _adapter(sizes: dict[tuple[int, str], int], own: int) -> str | None:
    """Return the adapter on which process ``own`` holds most, else the one that is used most."""
    totals: dict[str, tuple[int, int]] = {}
    for (pid, luid), size in sizes.items():
        of_own, of_all = totals.get(luid, (0, 0))
        totals[luid] = of_own + (size if pid == own else 0), of_all + size
    return max(totals, key=lambda luid: totals[luid], default=None)


def _collected(library: Any, path: str) -> dict[tuple[int, str], int]:
    """Return one counter by process and adapter, in bytes.

    Raises:
        OSError: PDH refuses; its status is the error's number.
    """
    query, counter = ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.PdhOpenQueryW(None, 0, ctypes.byref(query)))
    try:
        _check(library.PdhAddEnglishCounterW(query, path, 0, ctypes.byref(counter)))
        _check(library.PdhCollectQueryData(query))
        return _summed(library, counter)
    finally:
        library.PdhCloseQuery(query)


def _summed(library: Any, counter: Any) -> dict[tuple[int, str], int]:
    size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
    asked = library.PdhGetFormattedCounterArrayW
    status = asked(counter, _LARGE, ctypes.byref(size), ctypes.byref(count), None)
    if status & 0xFFFFFFFF != _MORE_DATA:
        _check(status)
        return {}
    buffer = ctypes.create_string_buffer(size.value)
    _check(asked(counter, _LARGE, ctypes.byref(size), ctypes.byref(count), buffer))
    items = ctypes.cast(buffer, ctypes.POINTER(_Item))
    sizes: dict[tuple[int, str], int] = {}
    for item in items[: count.value]:
        found = _INSTANCE.match(item.name or "")
        if found is not None and item.value.status in (0, 1):  # valid, or new since the last collection
            key = int(found[1]), found[2].lower()
            sizes[key] = sizes.get(key, 0) + max(0, int(item.value.large))
    return sizes


def _check(status: int) -> None:
    if status & 0xFFFFFFFF:
        raise OSError(status & 0xFFFFFFFF, "PDH refused")


def _load() -> Any:
    """Return ``pdh.dll`` with its functions' types, ``None`` where there is none."""
    loader = getattr(ctypes, "WinDLL", None)
    if loader is None:
        return None
    try:
        library = loader("pdh.dll")
        pointer = ctypes.POINTER(ctypes.c_void_p)
        number = ctypes.POINTER(ctypes.c_uint32)
        library.PdhOpenQueryW.argtypes = (ctypes.c_wchar_p, ctypes.c_size_t, pointer)
        library.PdhAddEnglishCounterW.argtypes = (ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_size_t, pointer)
        library.PdhCollectQueryData.argtypes = (ctypes.c_void_p,)
        library.PdhGetFormattedCounterArrayW.argtypes = (
            ctypes.c_void_p, ctypes.c_uint32, number, number, ctypes.c_void_p,
        )  # fmt: skip
        library.PdhCloseQuery.argtypes = (ctypes.c_void_p,)
    except (OSError, AttributeError):
        return None
    return library
