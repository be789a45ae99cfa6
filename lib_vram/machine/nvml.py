"""NVIDIA's cards through the driver's own library, NVML (package nvidia-ml-py, module ``pynvml``).

NVML may be missing, refuse a card, or vanish in mid-session (driver update, a card lost from the bus):
every fault ends in "not known" and in waiting a little longer before the next try, never in an exception,
and never for good.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lib_vram.machine.card import Card, Holder
from lib_vram.machine.processes import name_of

INTERVAL_SECONDS = 1.0
"""NVML is asked at most this often: a query takes a lock in the driver that generations wait for."""
FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0
_NOT_SAID_FROM = 2**60
"""Older bindings pass the driver's "not available" on as a number near 2**64."""


@dataclass(frozen=True)
class Gpu:
    """One card as NVML sees it, or one MIG instance of it."""

    card: Card
    pci: str | None
    own_bytes: int | None
    """What this process holds; ``None`` where the driver does not say (Windows) or numbers processes
    otherwise than we do (containers)."""
    capability: tuple[int, int] = (0, 0)


class NvmlReader:
    """Asks NVML, remembers the answer for a second, and waits after faults. Usable from several threads."""

    def __init__(
        self,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        clock: Callable[[], float] = time.monotonic,
        pid: int | None = None,
    ) -> None:
        self._load = load
        self._clock = clock
        self._pid = os.getpid() if pid is None else pid
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._gpus: tuple[Gpu, ...] = ()
        self._next_query = float("-inf")
        self._wait_seconds = FIRST_WAIT_SECONDS

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards; none while NVML is missing or at fault. The same object until it is asked anew."""
        with self._lock:
            now = self._clock()
            if now < self._next_query:
                return self._gpus
            self._gpus = self._query()
            if self._gpus:
                self._next_query, self._wait_seconds = now + INTERVAL_SECONDS, FIRST_WAIT_SECONDS
            else:
                self._next_query = now + self._wait_seconds
                self._wait_seconds = min(LONGEST_WAIT_SECONDS, 2 * self._wait_seconds)
            return self._gpus

    def _query(self) -> tuple[Gpu, ...]:
        try:
            if self._nvml is None:
                nvml = self._load()
                nvml.nvmlInit()
                self._nvml = nvml
            gpus = tuple(gpu for handle in _handles(self._nvml) if (gpu := self._gpu(handle)))
        except Exception:  # noqa: BLE001 - which errors there are is known only once the module is loaded
            gpus = ()
        if not gpus:
            self._close()
        return gpus

    def _close(self) -> None:
        """Let go of NVML so that the next try begins afresh."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        with contextlib.suppress(*_faults(nvml)):
            nvml.nvmlShutdown()

    def _gpu(self, handle: Any) -> Gpu | None:
        """Return what one card says; ``None`` when it cannot even tell its memory."""
        nvml = self._nvml
        memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
        if memory is None or not memory.total:
            return None
        total_bytes, free_bytes = int(memory.total), int(memory.free)
        holders = tuple(sorted(_holders(nvml, handle, total_bytes), key=lambda item: -(item.used_bytes or 0)))
        own_bytes = next((item.used_bytes for item in holders if item.pid == self._pid), None)
        card = Card(
            name=_text(_ask(nvml, "nvmlDeviceGetName", handle)) or "NVIDIA GPU",
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            used_by_others_bytes=max(0, total_bytes - free_bytes - (own_bytes or 0)),
            source="nvml",
            uuid=_text(_ask(nvml, "nvmlDeviceGetUUID", handle)) or None,
            holders=holders,
            spills=_spills(nvml, handle),
        )
        place = _ask(nvml, "nvmlDeviceGetPciInfo", handle)
        return Gpu(
            card=card,
            pci=_text(place.busId).split(".")[0].upper() if place is not None else None,
            own_bytes=own_bytes,
            capability=_capability(_ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)),
        )


def _faults(nvml: Any) -> tuple[type[Exception], ...]:
    """Return what a call of ``nvml`` raises; the last ones when the module is older than the call."""
    return (nvml.NVMLError, OSError, AttributeError, TypeError, ValueError)


def _ask(nvml: Any, question: str, *arguments: Any) -> Any:
    """Return the answer to one question about one card, ``None`` when the card does not give it."""
    try:
        return getattr(nvml, question)(*arguments)
    except _faults(nvml):
        return None


def _handles(nvml: Any) -> Iterator[Any]:
    """Yield every card, and in place of one that is divided (MIG) its instances."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            continue
        mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            yield handle
            continue
        for number in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is not None:
                yield instance


def _holders(nvml: Any, handle: Any, total_bytes: int) -> Iterator[Holder]:
    held: dict[int, int | None] = {}
    for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in _ask(nvml, question, handle) or ():
            used = process.usedGpuMemory
            known = None if used is None or int(used) >= _NOT_SAID_FROM else min(int(used), total_bytes)
            pid = int(process.pid)
            held[pid] = known if held.get(pid) is None else max(held[pid] or 0, known or 0)
    for pid, used_bytes in held.items():
        yield Holder(pid, name_of(pid) or _short(_text(_ask(nvml, "nvmlSystemGetProcessName", pid))), used_bytes)


def _short(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _spills(nvml: Any, handle: Any) -> bool:
    """Whether Windows' memory manager is in charge (WDDM): it moves what does not fit into RAM."""
    if os.name != "nt":
        return False
    model = _ask(nvml, "nvmlDeviceGetCurrentDriverModel", handle)
    if model is None:
        model = (_ask(nvml, "nvmlDeviceGetDriverModel", handle) or [0])[0]
    return bool(model == 0)


def _capability(answer: Any) -> tuple[int, int]:
    return (int(answer[0]), int(answer[1])) if answer else (0, 0)


def _text(value: Any) -> str:
    """Return a name as text; older bindings give bytes."""
    if isinstance(value, bytes):
        return value.split(b"\0")[0].decode("utf-8", errors="replace")
    return "" if value is None else str(value)
