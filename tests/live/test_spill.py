from __future__ import annotations

import pytest

from lib_vram.live.picture import Holding
from lib_vram.live.spill import Load, SpillWatch, shared_of
from lib_vram.machine.system import System
from lib_vram.machine.torch_memory import TorchMemory
from lib_vram.message import say
from lib_vram.units import GIB, MIB
from tests.live.stand_in import card

RAM = System(ram_total_bytes=32 * GIB, ram_free_bytes=16 * GIB, swap_total_bytes=8 * GIB, swap_used_bytes=GIB)


def load(*, free=256 * MIB, reserved=7 * GIB, shared=None, spills=True, system=RAM):
    found = card(free_bytes=free, used_by_others_bytes=2 * GIB, spills=spills)
    return Load(Holding(found, TorchMemory(reserved, reserved)), system, shared)


@pytest.fixture
def watch():
    made = SpillWatch()
    made.begin(load(shared=300 * MIB))
    return made


def test_windows_counter_of_shared_memory_that_rises_on_a_full_card_is_a_spill(watch):
    assert watch.warnings(load(shared=2348 * MIB)) == (say("live.spill", spilled_bytes=2 * GIB),)


def test_memory_that_was_shared_before_is_no_spill(watch):
    assert watch.warnings(load(shared=600 * MIB)) == ()


def test_shared_memory_beside_room_on_the_card_is_pinned_memory(watch):
    assert watch.warnings(load(free=4 * GIB, shared=6 * GIB)) == ()


def test_torch_with_more_than_the_card_has_in_use_is_a_spill_without_any_counter(watch):
    assert watch.warnings(load(reserved=13 * GIB)) == (say("live.spill", spilled_bytes=1280 * MIB),)


def test_a_card_whose_driver_never_moves_memory_does_not_spill(watch):
    assert watch.warnings(load(reserved=13 * GIB, shared=9 * GIB, spills=False)) == ()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"swap_used_bytes": 3 * GIB}, "live.swapping"),
        ({"ram_free_bytes": 400 * MIB}, "live.ram_low"),
        ({"ram_free_bytes": 990 * MIB, "waiting_percent": 30.0}, "live.ram_low"),
        ({"ram_free_bytes": 990 * MIB, "waiting_percent": 1.0}, None),
        ({"ram_free_bytes": 4 * GIB, "waiting_percent": 30.0}, None),
        ({"swap_used_bytes": 1200 * MIB}, None),
        ({"swap_used_bytes": None, "ram_free_bytes": None}, None),
    ],
)
def test_swapping_and_ram_that_is_nearly_full_are_said(watch, changes, key):
    fields = {"ram_total_bytes": 32 * GIB, "ram_free_bytes": 16 * GIB, "swap_used_bytes": GIB} | changes
    found = watch.warnings(load(system=System(**fields)))
    assert [message.key for message in found] == ([key] if key else [])


def test_between_generations_nothing_is_said(watch):
    watch.end()
    assert watch.warnings(load(reserved=13 * GIB)) == ()
    assert SpillWatch().warnings(load(reserved=13 * GIB)) == ()


def test_a_process_that_the_counters_do_not_name_shares_nothing():
    assert shared_of({7: 5}, 7, known=True) == 5
    assert shared_of({7: 5}, 8, known=True) == 0
    assert shared_of({}, 7, known=False) is None
