from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from lib_vram.machine.card import Card, Holder
from lib_vram.machine.nvml import NvmlReader

GIB = 1024**3
OWN_PID = 4242
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def reader(nvml: Any, clock: Any) -> NvmlReader:
    return NvmlReader(load=lambda: nvml, clock=clock, pid=OWN_PID)


def test_a_card_has_its_memory_and_its_holders(healthy: Any, clock: Any) -> None:
    (gpu,) = reader(healthy, clock).gpus()
    assert gpu.card == Card(
        name="NVIDIA GeForce RTX 3060",
        total_bytes=12 * GIB,
        free_bytes=7 * GIB,
        used_by_others_bytes=2 * GIB,
        source="nvml",
        uuid=UUID,
        holders=(Holder(OWN_PID, "python main.py", 3 * GIB), Holder(77, "game.exe", 2 * GIB)),
    )
    assert gpu.own_bytes == 3 * GIB
    assert gpu.pci == "00000000:65:00"
    assert gpu.capability == (8, 6)


def test_a_program_that_computes_and_draws_is_one_holder(healthy: Any, clock: Any) -> None:
    healthy.gpus[0].graphics = ((77, GIB), (78, GIB))
    (gpu,) = reader(healthy, clock).gpus()
    assert [(item.pid, item.used_bytes) for item in gpu.card.holders] == [
        (OWN_PID, 3 * GIB), (77, 2 * GIB), (78, GIB),
    ]  # fmt: skip


def test_a_broken_gpu_does_not_hide_the_others(broken_gpu: Any, clock: Any) -> None:
    assert [gpu.card.name for gpu in reader(broken_gpu, clock).gpus()] == ["NVIDIA RTX A4000"]


def test_a_vanished_process_has_no_name(vanished_process: Any, clock: Any) -> None:
    (gpu,) = reader(vanished_process, clock).gpus()
    assert gpu.card.holders == (Holder(404, "", GIB),)


def test_under_wddm_the_memory_of_a_process_is_not_known(wddm: Any, clock: Any) -> None:
    (gpu,) = reader(wddm, clock).gpus()
    assert gpu.own_bytes is None
    assert {(item.pid, item.used_bytes) for item in gpu.card.holders} == {(OWN_PID, None), (77, None), (9, None)}
    assert gpu.card.used_by_others_bytes == 5 * GIB


@pytest.mark.parametrize(("system", "model", "spills"), [("nt", 0, True), ("nt", 1, False), ("posix", 0, False)])
def test_only_windows_own_memory_manager_spills(
    wddm: Any, clock: Any, monkeypatch: pytest.MonkeyPatch, system: str, model: int, spills: bool
) -> None:
    wddm.gpus[0].driver_model = model
    monkeypatch.setattr("lib_vram.machine.nvml.os", type("os", (), {"name": system, "getpid": os.getpid}))
    assert reader(wddm, clock).gpus()[0].card.spills is spills


def test_an_old_binding_is_understood(old_binding: Any, clock: Any) -> None:
    (gpu,) = reader(old_binding, clock).gpus()
    assert (gpu.card.name, gpu.card.uuid, gpu.pci, gpu.capability) == ("Tesla T4", UUID, "0000:65:00", (0, 0))


def test_instances_stand_in_for_a_divided_card(mig: Any, clock: Any) -> None:
    assert [gpu.card.uuid for gpu in reader(mig, clock).gpus()] == ["MIG-a", "MIG-b"]


def test_nvml_is_asked_once_a_second_at_most(healthy: Any, clock: Any) -> None:
    nvml = reader(healthy, clock)
    first = nvml.gpus()
    clock.now += 0.9
    assert nvml.gpus() is first
    assert healthy.queries == 1
    clock.now += 0.2
    assert nvml.gpus() is not first
    assert healthy.queries == 2


def test_nvml_gone_in_mid_session_is_tried_again_ever_more_seldom_and_comes_back(healthy: Any, clock: Any) -> None:
    nvml = reader(healthy, clock)
    assert len(nvml.gpus()) == 1
    healthy.gone = healthy.NVMLError("GPU is lost")
    tries = []
    for _ in range(200):
        clock.now += 1
        before = healthy.queries + healthy.initialised
        assert nvml.gpus() == ()
        tries.append(healthy.queries + healthy.initialised > before)
    assert sum(tries) == 1  # the later ones fail in nvmlInit, before any query
    healthy.gone = None
    clock.now += 60
    assert len(nvml.gpus()) == 1
    assert healthy.initialised == 2


def test_the_wait_after_a_fault_doubles_up_to_a_minute(clock: Any) -> None:
    times = []

    def load() -> Any:
        times.append(clock.now)
        raise ImportError("No module named 'pynvml'")

    nvml = NvmlReader(load=load, clock=clock)
    for _ in range(300):
        assert nvml.gpus() == ()
        clock.now += 1
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]


def test_any_fault_of_the_library_is_no_fault_of_ours(clock: Any) -> None:
    def load() -> Any:
        raise OSError("libnvidia-ml.so.1: wrong ELF class")

    assert NvmlReader(load=load, clock=clock).gpus() == ()
