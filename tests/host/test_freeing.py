"""Freeing memory and restarting, on every fake host."""

from __future__ import annotations

import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host import freeing
from lib_vram.host.freeing import Busy, Memory, what_stays
from lib_vram.host.lab import LabHost
from lib_vram.message import say
from lib_vram.units import GIB, MIB
from tests.fakehost.processing import page_run


class Thing:
    """Stands in for a tensor that a failed step holds."""


class Cuda:
    """PyTorch's counters: what is allocated and reserved now."""

    def __init__(self, allocated_bytes, reserved_bytes):
        self.allocated_bytes, self.reserved_bytes = allocated_bytes, reserved_bytes

    def is_available(self):
        return True

    def memory_allocated(self):
        return self.allocated_bytes

    def memory_reserved(self):
        return self.reserved_bytes

    def mem_get_info(self):
        return 11 * GIB - self.reserved_bytes, 12 * GIB


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda(4 * GIB, 7 * GIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    return made


@pytest.fixture
def log():
    return []


@pytest.fixture
def host(fake, cuda, log):
    """The host with its queue lock and its own ways of unloading, which ``log`` remembers."""

    def unload():
        log.append("unload")
        cuda.allocated_bytes = 0

    def empty():
        log.append("empty")
        cuda.reserved_bytes = cuda.allocated_bytes

    fake.lock = threading.Lock()
    fake.module("modules.call_queue", queue_lock=fake.lock)
    fake.modules["modules.shared"].state = SimpleNamespace(request_restart=lambda: log.append("reload"))
    fake.module("modules.devices", torch_gc=empty)
    for name in ("backend.memory_management", "ldm_patched.modules.model_management"):
        if name in fake.modules:
            vars(fake.modules[name]).update(unload_all_models=unload, soft_empty_cache=empty)
    models = fake.modules["modules.sd_models"]
    models.send_model_to_cpu = lambda model: unload()
    models.send_model_to_device = lambda model: log.append("device")
    models.model_data.sd_model = SimpleNamespace(sd_checkpoint_info=SimpleNamespace(filename="x"), lowvram=False)
    for name, module in fake.modules.items():
        sys.modules[name] = module
    yield callbacks.guard().host
    for name in fake.modules:
        sys.modules.pop(name, None)


def test_emptying_the_cache_leaves_the_models(host, log):
    freed = host.free("cache")
    assert log == ["empty"]
    assert (freed.before.cache_bytes, freed.after.cache_bytes) == (3 * GIB, 0)
    assert freed.freed_bytes == 3 * GIB
    assert say("free.kept_models", held_bytes=4 * GIB) in freed.kept


def test_freeing_the_models_empties_the_cache_behind_them(host, log):
    freed = host.free("models")
    assert log == ["unload", "empty"]
    assert freed.freed_bytes == 7 * GIB
    assert freed.after.free_bytes == 11 * GIB
    assert freed.kept == (say("free.kept_others", held_bytes=GIB),)


@pytest.mark.parametrize("action", [lambda host: host.free("models"), lambda host: host.restart("reload")])
def test_nothing_happens_while_a_generation_holds_the_queue(fake, host, log, action):
    with fake.lock, pytest.raises(Busy):
        action(host)
    assert log == []
    action(host)
    assert log
    assert not fake.lock.locked()


def test_the_queue_is_given_back_when_the_host_cannot_free(fake, host, monkeypatch):
    monkeypatch.setattr(type(host), "empty_caches", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        host.free("cache")
    assert not fake.lock.locked()


def test_the_queue_is_held_while_memory_is_freed(fake, host, monkeypatch):
    held = []
    monkeypatch.setattr(type(host), "empty_caches", lambda self: held.append(fake.lock.locked()))
    host.free("cache")
    assert held == [True]


def _failed():
    """Return an error whose frames hold a thing, and a weak reference to that thing."""
    found = []

    def step():
        thing = Thing()
        found.append(weakref.ref(thing))
        try:
            raise ValueError("first")
        except ValueError as first:
            raise RuntimeError("out of room") from first

    try:
        step()
    except RuntimeError as error:
        return error, found[0]


@pytest.mark.parametrize("place", ["main_thread", "last_value"])
def test_what_a_remembered_error_holds_is_let_go(monkeypatch, place):
    error, thing = _failed()
    if place == "main_thread":
        monkeypatch.setitem(sys.modules, "modules_forge.main_thread", SimpleNamespace(last_exception=error))
    else:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert thing() is not None
    freeing.clear_pinned_frames()
    assert thing() is None


def test_without_a_device_it_says_so_and_what_the_ram_came_to(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    now = freeing.memory(None)
    assert (now.allocated_bytes, now.reserved_bytes, now.free_bytes, now.cache_bytes) == (None,) * 4
    assert what_stays("models", now) == (say("free.kept_no_device"),)


def test_small_rests_are_not_worth_a_word():
    assert what_stays("models", Memory(64 * MIB, 128 * MIB, 64 * MIB, 0)) == ()


def test_what_cannot_be_freed_is_named_with_its_size():
    kept = what_stays("models", Memory(GIB, 3 * GIB, 4 * GIB, 0))
    assert kept == (
        say("free.kept_tensors", held_bytes=GIB),
        say("free.kept_cache", held_bytes=2 * GIB),
        say("free.kept_others", held_bytes=4 * GIB),
    )


def test_without_a_watching_launcher_the_steps_are_told(fake, host, log):
    assert host.restart("restart") == freeing.Restarting(started=False, steps=freeing.steps_by_hand())
    assert log == []


@pytest.mark.parametrize(("system", "key"), [("win32", "free.steps_windows"), ("linux", "free.steps_shell")])
def test_the_steps_are_those_of_the_system(monkeypatch, system, key):
    monkeypatch.setattr(sys, "platform", system)
    assert freeing.steps_by_hand() == say(key)


def test_a_real_restart_answers_first_and_lets_no_run_begin(fake, host, monkeypatch):
    over = threading.Event()
    locked = []

    def restart_program():
        locked.append(fake.lock.locked())
        over.set()

    module = fake.module("modules.restart", is_restartable=lambda: True, restart_program=restart_program)
    monkeypatch.setitem(sys.modules, "modules.restart", module)
    monkeypatch.setattr(freeing, "ANSWER_FIRST_SECONDS", 0.05)
    assert host.restart("restart") == freeing.Restarting(started=True)
    assert locked == []
    assert fake.lock.locked()
    assert over.wait(5)
    assert locked == [True]


class TestA1111:
    @pytest.fixture
    def host_name(self):
        return "a1111"

    def test_the_model_goes_back_before_the_next_run_once(self, fake, host, log):
        before = fake.modules["modules.processing"].process_images_inner
        host.free("models")
        host.free("models")
        page_run(fake.make())
        page_run(fake.make())
        assert log == ["unload", "empty", "unload", "empty", "device"]
        assert fake.modules["modules.processing"].process_images_inner is before

    def test_under_lowvram_the_parts_come_by_themselves(self, fake, host, log):
        fake.modules["modules.sd_models"].model_data.sd_model.lowvram = True
        host.free("models")
        page_run(fake.make())
        assert "device" not in log

    def test_without_a_model_none_is_loaded(self, fake, host, log):
        fake.modules["modules.sd_models"].model_data.sd_model = None
        host.free("models")
        assert log == ["empty"]


class TestLab:
    @pytest.fixture
    def lab(self):
        return LabHost()

    @pytest.fixture
    def request_(self, lab):
        return lab.request_from_form(
            "txt2img", {"width": 1024, "height": 1024, "lab_total_gib": 12, "lab_others_gib": 1}
        )

    def test_the_virtual_card_is_freed_of_what_a_run_left(self, lab, request_):
        with lab.working(request_):
            pass
        cache = lab.free("cache")
        models = lab.free("models")
        assert cache.before.cache_bytes > 0
        assert cache.after.cache_bytes == 0
        assert cache.after.allocated_bytes == models.before.allocated_bytes > GIB
        assert models.after == Memory(0, 0, GIB, 11 * GIB)

    def test_it_refuses_while_a_run_is_at_work(self, lab, request_):
        with lab.working(request_):
            for act in (lambda: lab.free("cache"), lambda: lab.restart("reload")):
                with pytest.raises(Busy):
                    act()
        lab.free("cache")

    def test_its_process_is_restarted_by_hand(self, lab):
        assert lab.restart("restart").steps == say("free.steps_lab")
        assert lab.restart("reload").started
