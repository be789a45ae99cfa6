"""Right on the virtual card: what is said to fail for lack of one piece does, and runs again once memory is free."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.live.fragmentation import Step, allocator_of, shortage
from lib_vram.machine.torch_memory import Snapshot
from lib_vram.physics import life
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.allocator import CachingAllocator
from lib_vram.physics.component import Component
from lib_vram.physics.life import AllocatorState
from lib_vram.physics.memory import component_trace
from lib_vram.units import MIB

WEIGHTS = (64 * MIB,) * 32
DECODE = component_trace(Component("sd15", "vae_decode", 768, 768))


def step(trace, weights_bytes=32 * 64 * MIB):
    return Step(weights_bytes, 0, trace)


def room_for(trace):
    """Return a little more than ``trace`` needs beside the weights."""
    low, high = sum(WEIGHTS), sum(WEIGHTS) + 16 * 1024 * MIB
    while high - low > 2 * MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if life.loaded(WEIGHTS, limit_bytes=middle).runs(trace) else (middle, high)
    return high


def pinned(limit_bytes, size_bytes=4 * MIB):
    """Return a life in which one small thing lies in the middle of all the room that there was."""
    allocator = life.loaded(WEIGHTS, limit_bytes=limit_bytes).allocator
    room = (limit_bytes - allocator.reserved_bytes) // (2 * MIB) * 2 * MIB
    whole = allocator.malloc(room)
    allocator.free(whole)
    before = allocator.malloc(room // 2 - size_bytes)
    allocator.malloc(size_bytes)
    allocator.free(before)
    return AllocatorState(allocator, sum(WEIGHTS))


def test_the_same_decode_fails_in_pieces_is_said_to_and_runs_again_anew():
    limit = room_for(DECODE) + 64 * MIB
    state = pinned(limit)
    assert not state.runs(DECODE)
    assert life.loaded(WEIGHTS, limit_bytes=limit).runs(DECODE)
    found = shortage(Snapshot(state.allocator.segments()), [step(DECODE)], limit)
    assert found is not None
    assert found.largest_bytes < found.free_bytes
    assert found.free_bytes == limit - state.allocator.allocated_bytes


def test_before_that_nothing_is_said():
    limit = room_for(DECODE) + 64 * MIB
    state = life.loaded(WEIGHTS, limit_bytes=limit).then(DECODE)
    assert state.runs(DECODE)
    assert shortage(Snapshot(state.allocator.segments()), [step(DECODE)], limit) is None


def test_with_more_room_the_pieces_do_not_matter():
    limit = room_for(DECODE) + 64 * MIB
    state = pinned(limit)
    assert shortage(Snapshot(state.allocator.segments()), [step(DECODE)], limit + 6 * 1024 * MIB) is None


def test_what_would_not_fit_in_one_piece_either_is_another_matter():
    limit = room_for(DECODE) - 200 * MIB
    state = pinned(limit)
    assert not state.runs(DECODE)
    assert shortage(Snapshot(state.allocator.segments()), [step(DECODE)], limit) is None


def test_nothing_is_said_when_other_models_are_on_the_card():
    limit = room_for(DECODE) + 64 * MIB
    segments = Snapshot(pinned(limit).allocator.segments())
    assert shortage(segments, [step(DECODE, sum(WEIGHTS) // 2)], limit) is None
    assert shortage(segments, [step(DECODE, 2 * sum(WEIGHTS))], limit) is None


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128", "backend:cudaMallocAsync"])
def test_nothing_is_said_of_allocators_that_split_otherwise(conf):
    limit = room_for(DECODE) + 64 * MIB
    segments = Snapshot(pinned(limit).allocator.segments())
    assert shortage(segments, [step(DECODE)], limit, AllocatorConf.parse(conf)) is None
    assert shortage(Snapshot(segments.segments, expandable=True), [step(DECODE)], limit) is None


LIFE = st.lists(st.tuples(st.integers(1, 400 * MIB), st.booleans()), min_size=1, max_size=40)


@given(LIFE)
def test_an_allocator_is_built_up_again_as_it_was(events):
    allocator = CachingAllocator()
    blocks = [(allocator.malloc(size), goes) for size, goes in events]
    for block, goes in blocks:
        if goes:
            allocator.free(block)
    again = allocator_of(allocator.segments())
    assert again.segments() == allocator.segments()
    assert (again.allocated_bytes, again.reserved_bytes) == (allocator.allocated_bytes, allocator.reserved_bytes)


@given(LIFE, st.integers(0, 4096))
def test_what_is_said_is_true(events, spare):
    """Whatever happened before: if a decode is said to fail for lack of one piece, it does, and anew it runs."""
    limit = room_for(DECODE) + spare * MIB
    allocator = life.loaded(WEIGHTS, limit_bytes=limit).allocator
    try:
        blocks = [(allocator.malloc(size), goes) for size, goes in events]
    except DeviceOutOfMemory:
        assume(False)
    for block, goes in blocks:
        if goes:
            allocator.free(block)
    state = AllocatorState(allocator, sum(WEIGHTS))
    if shortage(Snapshot(allocator.segments()), [step(DECODE)], limit) is not None:
        assert not state.runs(DECODE)
        assert life.loaded(WEIGHTS, limit_bytes=limit).runs(DECODE)
        assert limit - allocator.allocated_bytes >= DECODE.floor_bytes
