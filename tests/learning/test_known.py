"""Which of the machines in the file a request is of, when no WebUI is at work to say so."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lib_vram
from lib_vram.learning.known import lessons_in, machine_of_request
from lib_vram.learning.lessons import NOTHING
from lib_vram.learning.store import Store
from lib_vram.units import GIB
from tests.learning.makers import MACHINE, REQUEST, run

HERE = replace(MACHINE, guard_version=lib_vram.__version__)


def driver():
    return "551.0"


def test_a_request_of_the_same_host_card_and_flags_is_of_that_machine():
    assert machine_of_request(REQUEST, (HERE,), driver) == HERE


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "forge"},
        {"card": "NVIDIA GeForce RTX 3070"},
        {"total_bytes": 8 * GIB},
        {"flags": ("--medvram",)},
        {"alloc_conf": "expandable_segments:True"},
        {"guard_version": "0.0.1"},
        {"driver": "560.1"},
    ],
)
def test_any_difference_is_another_machine(changed):
    assert machine_of_request(REQUEST, (replace(HERE, **changed),), driver) is None


def test_the_order_of_flags_makes_no_other_machine():
    there = replace(HERE, flags=("--medvram", "--opt-sdp-attention"))
    asked = REQUEST.replace(host_args=("--opt-sdp-attention", "--medvram"))
    assert machine_of_request(asked, (there,), driver) == there


def test_after_a_new_driver_the_runs_under_the_old_one_do_not_count():
    assert machine_of_request(REQUEST, (replace(HERE, driver="560.1"), HERE), driver) is None


def test_where_no_driver_tells_its_version_the_newest_runs_count():
    assert machine_of_request(REQUEST, (HERE,), lambda: "") == HERE


def test_the_newest_pytorch_of_the_same_machine_counts(tmp_path):
    store = Store(tmp_path)
    for torch, count in (("2.3", 1), ("2.6", 2), ("2.3", 4), ("2.6", 1)):
        for _ in range(count):
            store.add(run(machine=replace(HERE, torch=torch)))
    assert store.machines() == (replace(HERE, torch="2.6"), replace(HERE, torch="2.3"))
    assert lessons_in(store, driver)(REQUEST).runs == 3


def test_an_empty_file_teaches_nothing_and_makes_no_folder(tmp_path):
    store = Store(tmp_path / "none")
    assert lessons_in(store, driver)(REQUEST) == NOTHING
    assert not (tmp_path / "none").exists()
