from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lib_vram.machine import torch_cuda
from lib_vram.machine.torch_cuda import OWN_CONTEXT_BYTES, TorchReading

GIB = 1024**3


def fake_torch(*, initialised: bool = True, fault: Exception | None = None, cuda: str | None = "12.8") -> Any:
    def mem_get_info(index: int) -> tuple[int, int]:
        if fault:
            raise fault
        return 5 * GIB, 12 * GIB

    properties = SimpleNamespace(name="RTX 3060", uuid="1111", pci_domain_id=0, pci_bus_id=0x65, pci_device_id=0)
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda, hip=None),
        cuda=SimpleNamespace(
            is_initialized=lambda: initialised,
            current_device=lambda: 0,
            get_device_properties=lambda index: properties,
            mem_get_info=mem_get_info,
            memory_reserved=lambda index: 4 * GIB,
        ),
    )


def test_what_torch_says_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    reading = torch_cuda.read()
    assert reading == TorchReading("RTX 3060", "GPU-1111", "00000000:65:00", 12 * GIB, 5 * GIB, 4 * GIB, False)
    assert reading.card().used_by_others_bytes == 3 * GIB - OWN_CONTEXT_BYTES


def test_others_hold_nothing_less_than_nothing() -> None:
    reading = TorchReading("RTX 3060", None, None, 12 * GIB, 12 * GIB, 0, False)
    assert reading.card().used_by_others_bytes == 0


def test_a_card_that_torch_does_not_use_yet_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(initialised=False))
    assert torch_cuda.read() is None


@pytest.mark.parametrize("fault", [RuntimeError("CUDA error: device-side assert"), AssertionError("no CUDA")])
def test_a_card_in_a_broken_state_is_not_known(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(fault=fault))
    assert torch_cuda.read() is None


def test_half_loaded_torch_is_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert torch_cuda.read() is None
    assert not torch_cuda.loaded_without_gpu()


def test_a_torch_for_the_cpu_computes_on_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(cuda=None))
    assert torch_cuda.loaded_without_gpu()


def test_the_machine_is_read_without_importing_torch() -> None:
    code = "import sys; from lib_vram.machine.cards import cards; cards(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
