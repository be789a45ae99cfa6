"""Devices that are not CUDA's."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lib_vram.errors import NotReady
from lib_vram.guard.guard import reason_of
from lib_vram.machine import torch_other
from lib_vram.machine.card import Card
from lib_vram.machine.cards import CardReader
from lib_vram.machine.torch_cuda import OWN_CONTEXT_BYTES

GIB = 1024**3


class NoNvml:
    def gpus(self) -> tuple[()]:
        return ()


def a_torch(*, mps: int = 0, xpu: dict[str, Any] | None = None) -> Any:
    """Return a torch that is built without CUDA."""
    made = SimpleNamespace(
        version=SimpleNamespace(cuda=None, hip=None),
        cuda=SimpleNamespace(is_initialized=lambda: False),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: bool(mps))),
        mps=SimpleNamespace(recommended_max_memory=lambda: mps),
    )
    if xpu is not None:
        made.xpu = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: xpu.get("initialised", True),
            current_device=lambda: 0,
            get_device_properties=lambda index: SimpleNamespace(name="Intel Arc A770", total_memory=16 * GIB),
            memory_reserved=lambda index: 3 * GIB,
            **({"mem_get_info": lambda index: (10 * GIB, 16 * GIB)} if xpu.get("says_free", True) else {}),
        )
    return made


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> CardReader:
    monkeypatch.delitem(sys.modules, torch_other.DIRECTML, raising=False)
    return CardReader(nvml=NoNvml(), amd_cards=lambda: (), environment={})  # type: ignore[arg-type]


def test_on_the_cpu_there_is_no_card(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch())
    assert reader.current_card() is None
    assert str(reason_of(NotReady("device", got="no GPU", takes="a card"))) == "no GPU: nothing to compute"


def test_apples_mps_says_its_total_and_not_what_others_hold(
    reader: CardReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch(mps=21 * GIB))
    assert reader.current_card() == Card("Apple GPU", 21 * GIB, None, None, "torch")
    assert reader.cards() == (reader.current_card(),)


def test_intels_xpu_says_total_and_free(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch(xpu={}))
    others_bytes = 16 * GIB - 10 * GIB - 3 * GIB - OWN_CONTEXT_BYTES
    assert reader.current_card() == Card("Intel Arc A770", 16 * GIB, 10 * GIB, others_bytes, "torch")


def test_an_older_torch_does_not_say_what_is_free_on_xpu(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch(xpu={"says_free": False}))
    assert reader.current_card() == Card("Intel Arc A770", 16 * GIB, None, None, "torch")


def test_an_xpu_that_torch_does_not_use_yet_is_left_alone(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch(xpu={"initialised": False}))
    assert reader.current_card() is None


def test_a_device_in_a_broken_state_is_no_card(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = a_torch(mps=GIB)
    torch.mps = SimpleNamespace()  # a torch before 2.5
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert reader.current_card() is None


def test_directml_says_nothing_and_that_is_said(reader: CardReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch())
    monkeypatch.setitem(sys.modules, torch_other.DIRECTML, SimpleNamespace())
    assert reader.current_card() is None
    assert "DirectML does not say" in str(reason_of(NotReady("device", got="no GPU", takes="a card")))


def test_under_directml_a_card_that_another_source_sees_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch())
    monkeypatch.setitem(sys.modules, torch_other.DIRECTML, SimpleNamespace())
    seen = Card("Radeon RX 7800", 16 * GIB, 15 * GIB, GIB, "amdgpu")
    reader = CardReader(nvml=NoNvml(), amd_cards=lambda: (seen,), environment={})  # type: ignore[arg-type]
    assert reader.current_card() == seen
