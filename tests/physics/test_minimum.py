"""The smallest device on which a trace still runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.physics.minimum import LimitSearch, minimum_and_comfortable, runs_in
from lib_vram.physics.program import GIVE_BACK, EventTrace, Layout
from lib_vram.units import MIB

DEFAULT = AllocatorConf()


def made_of(script: list[tuple[int, int]], sizes: list[int]) -> EventTrace:
    """Return a trace of operations over ``sizes``."""
    loads, held = [], {}
    for slot, size in script:
        if size == GIVE_BACK:
            loads.append(~held.pop(slot))
        else:
            held[slot] = size
            loads.append(size)
    return EventTrace(Layout(tuple(script), (), tuple(loads), tuple(loads)), tuple(sizes))


@st.composite
def traces(draw: st.DrawFn) -> EventTrace:
    """Return a random trace that gives everything back."""
    sizes = draw(st.lists(st.integers(1, 120_000).map(lambda units: units * 512), min_size=2, max_size=8))
    script: list[tuple[int, int]] = []
    held: list[int] = []
    for slot in range(draw(st.integers(1, 25))):
        if held and draw(st.booleans()):
            script.append((held.pop(draw(st.integers(0, len(held) - 1))), GIVE_BACK))
        script.append((slot, draw(st.integers(0, len(sizes) - 1))))
        held.append(slot)
    return made_of(script + [(slot, GIVE_BACK) for slot in held], sizes)


def test_one_block_needs_its_segment() -> None:
    trace = made_of([(0, 0), (0, GIVE_BACK)], [30 * MIB + 512])
    assert minimum_and_comfortable(trace, DEFAULT, trace.floor_bytes) == (32 * MIB, 32 * MIB)


def test_what_is_free_is_given_back_so_the_minimum_is_below_what_is_comfortable() -> None:
    trace = made_of([(0, 0), (0, GIVE_BACK), (1, 1), (1, GIVE_BACK)], [30 * MIB, 40 * MIB])
    assert minimum_and_comfortable(trace, DEFAULT, trace.floor_bytes) == (40 * MIB, 70 * MIB)


def test_the_answer_runs_and_a_segment_less_does_not() -> None:
    script = [(0, 0), (1, 1), (0, GIVE_BACK), (2, 2), (1, GIVE_BACK), (3, 0), (2, GIVE_BACK), (3, GIVE_BACK)]
    trace = made_of(script, [30 * MIB, 11 * MIB, 42 * MIB])
    minimum, _ = minimum_and_comfortable(trace, DEFAULT, trace.floor_bytes)
    assert runs_in(trace, minimum, DEFAULT)
    assert not runs_in(trace, minimum - 2 * MIB, DEFAULT)


@pytest.mark.parametrize("options", ["", "expandable_segments:True", "max_split_size_mb:21"])
@given(trace=traces())
def test_the_minimum_runs_and_lies_between_floor_and_comfortable(options: str, trace: EventTrace) -> None:
    conf = AllocatorConf.parse(options)
    minimum, comfortable = minimum_and_comfortable(trace, conf, trace.floor_bytes)
    assert trace.floor_bytes <= minimum <= comfortable
    assert runs_in(trace, minimum, conf)
    assert runs_in(trace, comfortable, conf)


@given(traces(), st.integers(0, 2**28))
def test_an_attempt_from_a_kept_state_ends_as_one_from_the_start(trace: EventTrace, limit: int) -> None:
    done = LimitSearch(trace, DEFAULT).attempt(limit)
    whole = CachingAllocator(limit)
    try:
        trace.replay(whole)
    except DeviceOutOfMemory:
        assert done is None
    else:
        assert done is not None
        assert (done.peak_reserved_bytes, done.reserved_bytes) == (whole.peak_reserved_bytes, whole.reserved_bytes)
