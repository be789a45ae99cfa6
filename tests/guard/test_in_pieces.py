"""What fits and would fail in pieces is said once, first, and only while it is true."""

from __future__ import annotations

import pytest

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.guard.in_pieces import NOTE, InPieces, steps_of
from lib_vram.live.watch import Watch
from lib_vram.machine.torch_memory import Snapshot, TorchMemory
from lib_vram.physics.allocator import CachingAllocator
from lib_vram.request import Request
from lib_vram.ui import view
from lib_vram.units import GIB, MIB
from tests.live.stand_in import Clock, Host, card

REQUEST = Request.from_dict(
    {
        "device": {"name": "RTX", "total_bytes": 6 * GIB, "used_by_others_bytes": 0},
        "model": {"family": "sd15"}, "width": 768, "height": 768,
    }
)  # fmt: skip


def loaded(limit_bytes):
    """Return the card's allocator with the models of the request, one block for each of their sizes."""
    allocator = CachingAllocator(limit_bytes)
    weights = next(steps_of(REQUEST)).weights_bytes
    while weights > 0:
        allocator.malloc(min(weights, 64 * MIB))
        weights -= 64 * MIB
    return allocator


def cut(allocator):
    """Keep one small thing in the middle of the room that is left, but for some that the driver still has."""
    room = (allocator.limit_bytes - allocator.reserved_bytes - 64 * MIB) // (2 * MIB) * 2 * MIB
    allocator.free(allocator.malloc(room))
    before = allocator.malloc(room // 2)
    allocator.malloc(4 * MIB)
    allocator.free(before)


@pytest.fixture
def limit():
    """A little more than the request needs."""
    steps = list(steps_of(REQUEST))
    low, high = max(step.weights_bytes for step in steps), 6 * GIB
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if all(_runs(loaded(middle), step) for step in steps) else (middle, high)
    return high + 32 * MIB


def _runs(allocator, step):
    try:
        if step.kept_bytes:
            allocator.malloc(step.kept_bytes)
        step.trace.replay(allocator)
    except DeviceOutOfMemory:
        return False
    return True


@pytest.fixture
def host():
    return Host()


@pytest.fixture
def shown(host, limit):
    """Return a function that puts an allocator on the host's card and returns what the bar is told."""

    def seen(allocator, request=REQUEST):
        host.memory = TorchMemory(allocator.allocated_bytes, allocator.reserved_bytes, changes=allocator.reserved_bytes)
        host.pieces = Snapshot(allocator.segments())
        used = allocator.reserved_bytes + CONTEXT_BYTES
        host.found = card(total_bytes=limit + CONTEXT_BYTES, free_bytes=limit + CONTEXT_BYTES - used,
                          used_by_others_bytes=0, holders=())  # fmt: skip
        clock = Clock()
        return InPieces(Watch(host, clock)).noted(estimate(request), request)

    return seen


def test_in_one_piece_nothing_is_said_and_it_runs(shown, limit):
    allocator = loaded(limit)
    assert all(_runs(allocator.copy(), step) for step in steps_of(REQUEST))
    assert NOTE not in [note.key for note in shown(allocator).notes]


def test_in_pieces_it_would_fail_and_the_bar_says_what_helps(shown, limit):
    allocator = loaded(limit)
    cut(allocator)
    assert not all(_runs(allocator.copy(), step) for step in steps_of(REQUEST))
    result = shown(allocator)
    assert (result.verdict, result.notes[0].key) == ("tight", NOTE)
    assert "memory in pieces: free it or restart" in view.bar_text(result, "en")
    assert 'data-act="free"' in view.bar(result, REQUEST, "en")


def test_a_smaller_picture_still_runs_there_and_nothing_is_said_of_it(shown, limit):
    allocator = loaded(limit)
    cut(allocator)
    small = Request.from_dict({**REQUEST.to_dict(), "width": 256, "height": 256})
    assert all(_runs(allocator.copy(), step) for step in steps_of(small))
    assert NOTE not in [note.key for note in shown(allocator, small).notes]


def test_what_does_not_fit_anyway_is_left_as_it_is(shown, limit):
    allocator = loaded(limit)
    cut(allocator)
    large = Request.from_dict({**REQUEST.to_dict(), "width": 2048, "height": 2048, "batch_size": 8})
    assert shown(allocator, large) == estimate(large)


def test_while_a_generation_runs_nothing_is_said(host, shown, limit):
    allocator = loaded(limit)
    cut(allocator)
    host.busy = True
    assert NOTE not in [note.key for note in shown(allocator).notes]


def test_the_same_question_is_replayed_once(host, shown, limit, monkeypatch):
    allocator = loaded(limit)
    cut(allocator)
    shown(allocator)
    pieces = InPieces(Watch(host, Clock()))
    first = pieces.noted(estimate(REQUEST), REQUEST)
    monkeypatch.setattr("lib_vram.guard.in_pieces.shortage", lambda *_: 1 / 0)
    assert pieces.noted(estimate(REQUEST), REQUEST) == first
