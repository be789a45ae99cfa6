import sys
from types import SimpleNamespace

import pytest

from lib_vram.learning import counters
from lib_vram.learning.counters import Counters

STATS = {
    "allocated_bytes.all.current": 10, "reserved_bytes.all.current": 20, "allocated_bytes.all.peak": 30,
    "reserved_bytes.all.peak": 40, "num_ooms": 0,
}  # fmt: skip


class Cuda:
    """torch.cuda, which counts what it is asked."""

    def __init__(self, stats, initialised=True):
        self.stats, self.initialised, self.asked = stats, initialised, []

    def is_initialized(self):
        return self.initialised

    def current_device(self):
        return 1

    def memory_stats(self, index):
        self.asked.append(("memory_stats", index))
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats

    def reset_peak_memory_stats(self, index=None):
        self.asked.append(("reset", index))


@pytest.fixture
def use(monkeypatch):
    def put(cuda):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        return cuda

    return put


def test_the_counters_are_read_and_nothing_is_reset(use):
    cuda = use(Cuda(STATS))
    assert counters.read(1) == Counters(10, 20, 30, 40)
    assert cuda.asked == [("memory_stats", 1)]


def test_torch_that_has_not_begun_to_use_a_card_is_not_asked(use):
    cuda = use(Cuda(STATS, initialised=False))
    assert counters.read() is None
    assert counters.device_index() is None
    assert cuda.asked == []


def test_the_card_is_the_one_of_the_thread_that_generates(use):
    use(Cuda(STATS))
    assert counters.device_index() == 1


@pytest.mark.parametrize("stats", [RuntimeError("the card is gone"), AssertionError(), {}])
def test_a_card_that_cannot_say_is_not_known(use, stats):
    use(Cuda(stats))
    assert counters.read() is None


def test_without_torch_nothing_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert counters.read() is None
    assert "torch" not in sys.modules
