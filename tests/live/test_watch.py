from __future__ import annotations

import threading
import time

import pytest

from lib_vram.errors import BadInput
from lib_vram.live import watch as module
from lib_vram.live.picture import Holding
from lib_vram.live.watch import Watch
from lib_vram.machine.torch_memory import TorchMemory
from lib_vram.units import GIB
from tests.live.stand_in import TORCH, Clock, Host


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(host, clock):
    return Watch(host, clock)


def wait_for(true):
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until, "it did not happen within ten seconds"
        time.sleep(0.005)


def test_two_questions_within_a_second_are_one_look(watch, host, clock):
    watch.now()
    clock.now += 0.5
    watch.now()
    assert host.asked.count("card") == 1
    clock.now += 0.5
    watch.now()
    assert host.asked.count("card") == 2
    assert len(watch.curve.samples()) == 2


def test_nothing_is_looked_at_before_somebody_asks(watch, host):
    assert host.asked == []
    assert threading.active_count() < 50
    assert watch.curve.samples() == ()


def test_parameters_are_counted_only_when_memory_has_changed(watch, host, clock):
    watch.now()
    clock.now += 100
    watch.now()
    assert host.asked.count("weights") == 1
    host.memory = TorchMemory(5 * GIB, 7 * GIB)
    clock.now += 1
    watch.now()
    assert host.asked.count("weights") == 2


def test_parameters_are_seldom_counted_while_a_generation_runs(watch, host, clock):
    host.busy = True
    for second in range(60):
        host.memory = TorchMemory(second * GIB, 80 * GIB)
        clock.now += 1
        watch.now()
    assert host.asked.count("weights") == 2


def test_parameters_are_counted_again_where_a_phase_begins(watch, host, clock):
    host.busy = True
    watch.now()
    watch.heard("done", {})  # a mark as every other, without a thread of its own
    host.memory = TorchMemory(GIB, 80 * GIB)
    clock.now += 3
    watch.now()
    assert host.asked.count("weights") == 2


@pytest.mark.parametrize("fault", [BadInput("VRAM_GUARD_DEVICE", got="x", takes="a card"), RuntimeError("lost")])
def test_a_card_that_cannot_be_read_is_not_known(watch, host, fault):
    host.found = fault
    assert watch.now().card is None


def test_a_host_whose_objects_are_half_made_costs_one_reading(watch, host, clock):
    watch.now()
    host.memory = None
    host.weights = None
    host.is_busy = lambda: 1 / 0
    clock.now += 5
    assert watch.now() == Holding(host.found, TORCH, Host().weights)
    assert len(watch.curve.samples()) == 1


def test_the_pieces_are_taken_at_rest_alone_and_once_for_each_state(watch, host):
    first = watch.pieces()
    watch.pieces()
    assert host.asked.count("snapshot") == 1
    host.memory = TorchMemory(1, 2, changes=6)
    host.busy = True
    assert watch.pieces() is first
    assert host.asked.count("snapshot") == 1
    host.busy = False
    watch.pieces()
    assert host.asked.count("snapshot") == 2


def test_without_an_allocator_there_are_no_pieces(watch, host):
    host.memory = None
    assert watch.pieces() is None


def test_a_generation_is_followed_to_its_end_and_the_thread_ends_with_it(host):
    watch, host.busy = Watch(host), True
    watch.heard("run", {"request": None, "settings": {}})
    watch.heard("phase", {"name": "sampling"})
    wait_for(lambda: watch.curve.samples())
    assert watch.is_running
    seen = len(watch.curve.samples())
    watch.heard("phase", {"name": "vae_decode"})
    wait_for(lambda: len(watch.curve.samples()) > seen)
    watch.heard("done", {})
    wait_for(lambda: watch._thread is None)
    assert not watch.is_running
    assert [mark.name for mark in watch.curve.last_run()] == ["run", "sampling", "vae_decode", "done"]


def test_a_generation_that_ended_without_a_word_is_given_up(host, monkeypatch):
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.005)
    monkeypatch.setattr(module, "LOST_SECONDS", 0.05)
    watch = Watch(host)
    watch.heard("run", {})
    wait_for(lambda: watch._thread is None)
    assert not watch.is_running


def test_only_what_belongs_to_a_generation_is_marked(watch):
    for event, values in (("memory", {}), ("refused", {}), ("phase", {"name": None}), ("end", {})):
        watch.heard(event, values)
    assert watch.curve.marks() == ()
    assert not watch.is_running


def test_a_fixed_generation_is_known_by_what_it_really_computes(watch):
    watch.curve.mark(module.Mark(1.0, "run", "asked"))
    watch.computes("fixed")
    assert [mark.request for mark in watch.curve.last_run()] == ["asked", "fixed"]


def test_marking_a_generation_costs_its_thread_next_to_nothing(watch, host):
    """The hook only leaves a mark: it asks neither the card nor the host."""
    watch.heard("done", {})
    assert host.asked == []


def test_processes_are_asked_what_they_are_every_few_seconds(watch, host, clock, monkeypatch):
    asked = []
    monkeypatch.setattr(watch.reader, "programs", lambda holders, *_, **__: asked.append(holders) or ())
    for _ in range(6):
        clock.now += 1
        watch.programs()
    assert len(asked) == 2
    watch.end(7, 1.0)
    watch.programs()
    assert len(asked) == 3


def test_models_that_cannot_be_counted_leave_the_cards_figures(watch, host, monkeypatch):
    monkeypatch.setattr(host, "loaded_weights", lambda: 1 / 0)
    assert watch.now().card is not None
    assert watch.now().weights == ()


def test_where_nothing_can_be_read_a_generation_that_is_over_is_given_up_all_the_same(host, monkeypatch):
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(module, "LOST_SECONDS", 0.05)
    monkeypatch.setattr(host, "torch_memory", lambda: 1 / 0)
    watch = Watch(host)
    watch.heard("run", {"request": None})
    wait_for(lambda: not watch.is_running)
    wait_for(lambda: watch._thread is None)


def test_a_fault_in_looking_for_spill_does_not_end_the_thread(watch, host, monkeypatch):
    monkeypatch.setattr(watch, "_look_for_spill", lambda: 1 / 0)
    assert watch.now().card is not None
