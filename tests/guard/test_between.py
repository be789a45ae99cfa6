"""What is freed between two generations, on every fake host: nothing by default, and never inside a run."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.guard import between as module
from lib_vram.guard.between import Between, is_in_pieces
from lib_vram.host.base import Settings
from lib_vram.host.freeing import Busy
from lib_vram.host.webui import FREE_BETWEEN_KEY
from lib_vram.machine.torch_memory import Snapshot
from lib_vram.units import GIB, MIB
from tests.fakehost.processing import page_run

CUT = Snapshot((((700 * MIB, False), (8 * MIB, True), (200 * MIB, False)), ((2 * GIB, True),)))
WHOLE = Snapshot((((2 * GIB, True),), ((900 * MIB, False),)))


class Host:
    """Remembers what it was asked to free."""

    def __init__(self, *chosen, pieces=WHOLE, switches=False):
        self.chosen, self.pieces, self.switches = chosen, pieces, switches
        self.done, self.busy = [], False

    def settings(self):
        return Settings(free_between=self.chosen)

    def snapshot(self):
        return self.pieces

    def switches_checkpoint(self, request):
        return self.switches

    def make_room(self, level):
        self.done.append(("room", level))

    def free(self, level):
        if self.busy:
            raise Busy("at work")
        self.done.append(("free", level))


def test_by_default_nothing_is_freed():
    host = Host(pieces=CUT, switches=True)
    between = Between(host)
    between.failed("CUDA out of memory.")
    assert between.before(None) is None
    assert host.done == []


@pytest.mark.parametrize(
    ("chosen", "changes", "why", "done"),
    [
        ("pieces", {"pieces": CUT}, "pieces", [("room", "models")]),
        ("pieces", {"pieces": WHOLE}, None, []),
        ("pieces", {"pieces": None}, None, []),
        ("before_switch", {"switches": True}, "before_switch", [("room", "models")]),
        ("before_switch", {}, None, []),
        ("after_oom", {}, None, []),
    ],
)
def test_each_choice_frees_in_its_own_case_alone(chosen, changes, why, done):
    host = Host(chosen, **changes)
    assert Between(host).before(None) == why
    assert host.done == done


@pytest.mark.parametrize(
    ("size", "rest", "expected"), [(600, 1024, True), (600, 8192, False), (300, 512, False), (2000, 8192, True)]
)
def test_the_threshold_is_a_size_and_a_share(size, rest, expected):
    snapshot = Snapshot((((size * MIB, False), (MIB, True)), ((rest * MIB, True),)))
    assert is_in_pieces(snapshot) is expected


def wait_for(true):
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.parametrize(
    "text", ["torch.OutOfMemoryError: CUDA out of memory.", "HIP out of memory", "CUBLAS_STATUS_ALLOC_FAILED"]
)
def test_after_running_out_memory_is_freed_at_once(text):
    host = Host("after_oom")
    between = Between(host)
    between.failed(text)
    wait_for(lambda: host.done == [("free", "cache")] and not between._ran_out)
    assert between.before(None) is None


def test_where_the_next_run_has_begun_already_it_frees_for_itself(monkeypatch):
    host = Host("after_oom")
    host.busy = True
    between = Between(host)
    ran = threading.Event()
    free = between._free_now
    monkeypatch.setattr(between, "_free_now", lambda: (free(), ran.set()))
    between.failed("CUDA out of memory.")
    assert ran.wait(10)
    assert between.before(None) == "after_oom"
    assert host.done == [("room", "cache")]
    assert between.before(None) is None


def test_other_failures_free_nothing():
    host = Host("after_oom")
    between = Between(host)
    between.failed("ValueError: bad number of images")
    assert between.before(None) is None
    assert host.done == []


# on the hosts


@pytest.fixture
def log(fake, monkeypatch):
    """What the host is asked to do: its own ways of unloading and of emptying."""
    done = []
    host = callbacks.guard().host
    monkeypatch.setattr(type(host), "unload_models", lambda self: done.append("unload"))
    monkeypatch.setattr(type(host), "empty_caches", lambda self: done.append("empty"))
    monkeypatch.setattr(type(host), "snapshot", lambda self: CUT)
    return done


def test_a_run_on_a_host_frees_before_it_begins(fake, log):
    fake.opts.data[FREE_BETWEEN_KEY] = ["pieces"]
    page_run(fake.make())
    assert log == ["unload", "empty"]


def test_a_run_on_a_host_frees_nothing_unasked(fake, log):
    page_run(fake.make())
    assert log == []


def test_a_run_inside_another_frees_nothing(fake, log):
    fake.opts.data[FREE_BETWEEN_KEY] = ["pieces"]
    guard = callbacks.guard()
    outer = fake.make()
    guard.session._errors = SimpleNamespace(mark=lambda: 0, text=lambda: "", job=lambda: 1.0)
    guard.session.started(outer, None)
    guard.before_process(fake.make(width=256), ["", False, 768, False])
    assert log == []


def test_another_checkpoint_than_the_loaded_one_is_a_switch(fake):
    host = callbacks.guard().host
    models = fake.modules["modules.sd_models"]
    request = SimpleNamespace(model=SimpleNamespace(checkpoint="/models/b.safetensors"))
    models.model_data.sd_model = None
    assert not host.switches_checkpoint(request)
    info = SimpleNamespace(filename="/models/a.safetensors")
    models.model_data.sd_model = SimpleNamespace(sd_checkpoint_info=info)
    assert host.switches_checkpoint(request)
    info.filename = "/models/b.safetensors"
    assert not host.switches_checkpoint(request)


def test_a_fault_while_freeing_does_not_keep_the_run_from_starting(fake, log, monkeypatch):
    fake.opts.data[FREE_BETWEEN_KEY] = ["pieces"]
    monkeypatch.setattr(module, "is_in_pieces", lambda snapshot: 1 / 0)
    assert page_run(fake.make()) is not None
    assert log == []
