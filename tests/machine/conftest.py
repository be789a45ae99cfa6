"""Machines that cannot be had on a desk: a fake ``pynvml`` for each, as a named fixture."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1024**3
OWN_PID = 4242
UUID = "GPU-11111111-2222-3333-4444-555555555555"


class FakeNvmlError(Exception):
    """Stands in for ``pynvml.NVMLError``."""


@dataclass
class FakeGpu:
    """One card of the fake driver; a field that is an exception is raised when it is asked for."""

    name: Any = "NVIDIA GeForce RTX 3060"
    uuid: Any = UUID
    bus: Any = "00000000:65:00.0"
    total: int = 12 * GIB
    free: int = 7 * GIB
    memory_fault: Exception | None = None
    processes: Any = ((OWN_PID, 3 * GIB), (77, 2 * GIB))
    graphics: Any = ()
    capability: Any = (8, 6)
    instances: tuple[FakeGpu, ...] = ()
    driver_model: Any = field(default_factory=lambda: FakeNvmlError("not supported"))


class FakeNvml:
    """The calls of ``pynvml`` that are used, and a count of the queries."""

    NVMLError = FakeNvmlError

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.gone: Exception | None = None
        self.queries = 0
        self.initialised = 0

    def nvmlInit(self) -> None:
        self._check()
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self._check()

    def nvmlDeviceGetCount(self) -> int:
        self.queries += 1
        self._check()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        if gpu.memory_fault:
            raise gpu.memory_fault
        return SimpleNamespace(total=gpu.total, free=gpu.free, used=gpu.total - gpu.free)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> Any:
        return _value(gpu.name)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> Any:
        return _value(gpu.uuid)

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(busId=_value(gpu.bus))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> Any:
        return _value(gpu.capability)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if not gpu.instances:
            raise FakeNvmlError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.instances):
            raise FakeNvmlError("not found")
        return gpu.instances[index]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _value(gpu.processes)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _value(gpu.graphics)]

    def nvmlSystemGetProcessName(self, pid: int) -> Any:
        if pid == 404:
            raise FakeNvmlError("not found")
        return b"/opt/apps/game.exe\0" if pid == 77 else "/usr/bin/other"

    def nvmlDeviceGetCurrentDriverModel(self, gpu: FakeGpu) -> Any:
        return _value(gpu.driver_model)

    def _check(self) -> None:
        if self.gone:
            raise self.gone


def _value(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def no_real_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the names of this machine's own programs out of the answers."""
    monkeypatch.setattr("lib_vram.machine.nvml.name_of", lambda pid: "python main.py" if pid == OWN_PID else "")


@pytest.fixture
def healthy() -> FakeNvml:
    return FakeNvml(FakeGpu())


@pytest.fixture
def broken_gpu() -> FakeNvml:
    """The first of two cards has fallen off the bus."""
    return FakeNvml(FakeGpu(memory_fault=FakeNvmlError("GPU is lost")), FakeGpu(name="NVIDIA RTX A4000"))


@pytest.fixture
def wddm() -> FakeNvml:
    """Windows: no figures per process, and the driver's memory manager in charge."""
    return FakeNvml(FakeGpu(processes=((OWN_PID, None), (77, 2**64 - 1)), graphics=((9, None),), driver_model=0))


@pytest.fixture
def vanished_process() -> FakeNvml:
    """A program that ended between two questions."""
    return FakeNvml(FakeGpu(processes=((404, GIB),)))


@pytest.fixture
def old_binding() -> FakeNvml:
    """A binding of years ago: names as bytes, and calls that it does not have."""
    nvml = FakeNvml(FakeGpu(name=b"Tesla T4\0\0", uuid=UUID.encode(), bus=b"0000:65:00.0", capability=FakeNvmlError()))
    nvml.nvmlDeviceGetMigMode = None  # type: ignore[assignment, method-assign]
    return nvml


@pytest.fixture
def mig() -> FakeNvml:
    """A card divided into two instances."""
    parts = tuple(FakeGpu(name="NVIDIA A100 MIG 3g.20gb", uuid=f"MIG-{n}", total=20 * GIB, free=19 * GIB) for n in "ab")
    return FakeNvml(FakeGpu(name="NVIDIA A100", instances=parts))
