from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lib_vram.machine import torch_memory
from lib_vram.machine.torch_memory import Snapshot, TorchMemory

STATS = {
    "allocated_bytes": {"all": {"current": 4, "peak": 9, "allocated": 100, "freed": 96}},
    "reserved_bytes": {"all": {"current": 7}},
}
SEGMENTS = [
    {"device": 0, "blocks": [{"size": 6, "state": "active_allocated"}, {"size": 14, "state": "inactive"}]},
    {"device": 1, "blocks": [{"size": 2, "state": "inactive"}]},
    {"device": 0, "blocks": [{"size": 2, "state": "active_awaiting_free"}], "is_expandable": False},
]


class Cuda:
    """Only what may be called: nothing here synchronises, and no counter can be reset."""

    def __init__(self, *, initialized=True, stats=STATS, segments=SEGMENTS):
        self.initialized, self.stats, self.segments = initialized, stats, segments

    def is_available(self):
        return True

    def is_initialized(self):
        return self.initialized

    def current_device(self):
        return 0

    def memory_stats_as_nested_dict(self, index):
        return self.stats

    def memory_allocated(self, index):
        return 3

    def memory_reserved(self, index):
        return 5

    def memory_snapshot(self):
        if isinstance(self.segments, Exception):
            raise self.segments
        return self.segments


@pytest.fixture
def torch(monkeypatch):
    def use(**members):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**members))

    return use


def test_one_reading_of_the_counters_gives_all_figures(torch):
    torch(cuda=Cuda())
    assert torch_memory.read() == TorchMemory(4, 7, highest_bytes=9, changes=196)


def test_a_version_without_those_counters_gives_the_two_figures(torch):
    torch(cuda=Cuda(stats={}))
    assert torch_memory.read() == TorchMemory(3, 5)


@pytest.mark.parametrize("cuda", [Cuda(initialized=False), Cuda(stats={"allocated_bytes": {}})])
def test_a_device_that_is_not_used_yet_or_is_broken_is_not_known(torch, cuda):
    torch(cuda=cuda)
    assert torch_memory.read() is None


def test_without_torch_nothing_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_memory.read() is None
    assert torch_memory.snapshot() is None


def test_mps_counts_what_it_took_from_the_system(torch):
    mps = SimpleNamespace(current_allocated_memory=lambda: 4, driver_allocated_memory=lambda: 6)
    torch(backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: True)), mps=mps)
    assert torch_memory.read() == TorchMemory(4, 6)


def test_the_pieces_are_those_of_one_device(torch):
    torch(cuda=Cuda())
    assert torch_memory.snapshot() == Snapshot((((6, True), (14, False)), ((2, True),)))
    assert torch_memory.snapshot(1) == Snapshot((((2, False),),))


@pytest.mark.parametrize("segments", [[], RuntimeError("not with this backend")])
def test_other_allocators_show_no_pieces(torch, segments):
    torch(cuda=Cuda(segments=segments))
    assert torch_memory.snapshot() is None
