from __future__ import annotations

from typing import Any

import pytest

from lib_vram.errors import BadInput
from lib_vram.machine import cards as module
from lib_vram.machine.card import Card
from lib_vram.machine.cards import CardReader
from lib_vram.machine.nvml import NvmlReader
from lib_vram.machine.torch_cuda import OWN_CONTEXT_BYTES, TorchReading

GIB = 1024**3
OWN_PID = 4242
UUID = "GPU-11111111-2222-3333-4444-555555555555"
AMD = Card("AMD GPU", 16 * GIB, 15 * GIB, GIB, "amdgpu")


def torch_says(**changes: Any) -> TorchReading:
    values = {
        "name": "NVIDIA GeForce RTX 3060", "uuid": UUID, "pci": "00000000:65:00", "total_bytes": int(11.8 * GIB),
        "free_bytes": 6 * GIB, "reserved_bytes": 2 * GIB, "spills": False,
    }  # fmt: skip
    return TorchReading(**{**values, **changes})


def reader(
    nvml: Any = None,
    torch: TorchReading | None = None,
    amd: tuple[Card, ...] = (),
    clock: Any = None,
    **environment: str,
) -> CardReader:
    def load() -> Any:
        if nvml is None:
            raise ImportError
        return nvml

    return CardReader(
        NvmlReader(load=load, clock=clock or (lambda: 0.0), pid=OWN_PID), lambda index: torch, lambda: amd, environment
    )


@pytest.fixture(autouse=True)
def torch_that_can_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch_cuda, "loaded_without_gpu", lambda: False)


def test_nothing_is_no_card() -> None:
    assert reader().current_card() is None
    assert reader().cards() == ()


def test_a_virtual_card_goes_before_the_real_ones(healthy: Any) -> None:
    machine = reader(healthy, VRAM_GUARD_DEVICE="RTX 4090:24GiB")
    assert machine.current_card() == Card("RTX 4090", 24 * GIB, 24 * GIB, 0, "virtual")
    assert [card.source for card in machine.cards()] == ["virtual", "nvml"]
    assert healthy.queries == 1


def test_a_virtual_card_that_is_none_says_so() -> None:
    with pytest.raises(BadInput, match="VRAM_GUARD_DEVICE"):
        reader(VRAM_GUARD_DEVICE="RTX 4090:0").current_card()


def test_nvmls_card_is_matched_to_torchs_by_uuid(broken_gpu: Any) -> None:
    broken_gpu.gpus[0].memory_fault = None
    broken_gpu.gpus[0].uuid = "GPU-other"
    card = reader(broken_gpu, torch_says(uuid=UUID.upper())).current_card()
    assert card is not None
    assert card.name == "NVIDIA RTX A4000"


@pytest.mark.parametrize("bus", ["00000000:65:00.0", b"0000:65:00.0"])
def test_without_a_uuid_it_is_matched_by_its_place_on_the_bus(healthy: Any, bus: Any) -> None:
    healthy.gpus[0].bus = bus
    card = reader(healthy, torch_says(uuid=None)).current_card()
    assert card is not None
    assert card.source == "nvml"


def test_torchs_figures_of_memory_go_with_nvmls_of_processes(healthy: Any) -> None:
    card = reader(healthy, torch_says()).current_card()
    assert card is not None
    assert card.total_bytes == int(11.8 * GIB)
    assert card.used_by_others_bytes == int(11.8 * GIB) - 6 * GIB - 3 * GIB
    assert len(card.holders) == 2


def test_where_processes_have_no_figures_torchs_own_share_is_taken_off(wddm: Any) -> None:
    card = reader(wddm, torch_says()).current_card()
    assert card is not None
    assert card.used_by_others_bytes == int(11.8 * GIB) - 6 * GIB - 2 * GIB - OWN_CONTEXT_BYTES


def test_a_card_that_nvml_does_not_list_is_torchs_alone(healthy: Any) -> None:
    card = reader(healthy, torch_says(uuid="GPU-x", pci="00000000:01:00")).current_card()
    assert card is not None
    assert card.source == "torch"


def test_nvml_gone_in_mid_session_leaves_torchs_figures(healthy: Any, clock: Any) -> None:
    machine = reader(healthy, torch_says(), clock=clock)
    first = machine.current_card()
    assert first is not None
    assert first.source == "nvml"
    assert machine.current_card() is first
    healthy.gone = healthy.NVMLError("GPU is lost")
    clock.now += 2
    later = machine.current_card()
    assert later is not None
    assert (later.source, later.total_bytes) == ("torch", first.total_bytes)
    healthy.gone = None
    clock.now += 60
    again = machine.current_card()
    assert again is not None
    assert again.source == "nvml"


def test_before_torch_uses_a_card_the_first_visible_one_is_meant(broken_gpu: Any) -> None:
    broken_gpu.gpus[0].memory_fault = None
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    card = reader(broken_gpu, **environment).current_card()
    assert card is not None
    assert card.name == "NVIDIA RTX A4000"
    assert reader(broken_gpu, CUDA_VISIBLE_DEVICES="").current_card() is None


def test_a_torch_for_the_cpu_means_no_card_although_there_is_one(healthy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch_cuda, "loaded_without_gpu", lambda: True)
    assert reader(healthy).current_card() is None


def test_an_amd_card_is_found_where_nothing_else_is() -> None:
    machine = reader(amd=(AMD,))
    assert machine.current_card() == AMD
    assert machine.cards() == (AMD,)
