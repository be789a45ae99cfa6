"""Which failures a run's own need explains, and what comes of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_vram.learning.correct import apply, corrector
from lib_vram.learning.explained import block_bytes, left_in, most_more_bytes
from lib_vram.learning.faults import fault_of
from lib_vram.learning.lessons import kind_in, lessons_of
from lib_vram.learning.record import Fault
from lib_vram.message import say
from lib_vram.units import GIB, MIB
from tests.learning.makers import REQUEST, estimate, failed, phase, record, run

KIND = kind_in("sampling", REQUEST)
TINY = phase("sampling", floor=57 * MIB, minimum=60 * MIB, comfortable=112 * MIB, weights=2038 * MIB)
"""SD 1.5 at 64 pixels on A1111, as it is computed."""
BOUND = 2 * 112 * MIB - 60 * MIB + GIB
ROOM = 25 * GIB


def ran_out(of=TINY, room=ROOM, demand=None, requested=None, free=None, **changes):
    fault = Fault(of.name, demand or room + 1, room, requested, free)
    return replace(failed(of, room=room, **changes), fault=fault)


def after(*runs, of=TINY, room=ROOM, **options):
    return apply(estimate(of, available=room), REQUEST, lessons_of(runs), **options)


def test_one_failure_of_a_tiny_run_with_the_card_free_raises_nothing_and_is_told():
    result = after(ran_out())
    assert (result.verdict, result.phases) == ("fits", (TINY,))
    spare = ROOM - TINY.needs_bytes
    assert result.notes == (say("learning.note_doubt", needs_bytes=TINY.needs_bytes, unused_bytes=spare),)
    assert left_in(ran_out()) == spare


def test_it_is_no_failed_kind_whose_band_would_be_taken_to_its_upper_end():
    lessons = lessons_of([ran_out()])
    assert (lessons.lacks, lessons.failed) == ({}, frozenset())
    assert [doubt.needs_bytes for doubt in lessons.doubts[KIND]] == [TINY.needs_bytes]


def test_two_in_a_row_are_called_tight_and_raise_nothing():
    result = after(*[ran_out()] * 2)
    assert (result.verdict, result.phases) == ("tight", (TINY,))
    assert (result.notes[0].key, dict(result.notes[0].values)["runs"]) == ("learning.note_doubts", 2)


def test_two_of_two_starts_are_two_accidents():
    result = after(ran_out(start=1.0), ran_out(start=2.0))
    assert (result.verdict, result.notes[0].key) == ("fits", "learning.note_doubt")


def test_a_run_as_large_that_ends_well_shows_that_it_was_the_moment():
    well = run(record(TINY), available_bytes=ROOM)
    result = after(ran_out(), ran_out(), well)
    assert result.verdict == "fits"
    assert not any(note.key.startswith("learning.note_doubt") for note in result.notes)
    assert after(ran_out(), well, ran_out()).verdict == "fits"


def test_smaller_runs_are_not_meant():
    smaller = phase("sampling", floor=40 * MIB, minimum=43 * MIB, comfortable=90 * MIB, weights=2038 * MIB)
    assert after(ran_out(), ran_out(), of=smaller) == estimate(smaller, available=ROOM)


def test_under_another_start_it_says_nothing():
    here = lessons_of([ran_out()] * 2)
    correct = corrector(lambda asked: lessons_of([]) if asked.host_args else here, REQUEST)
    computed = estimate(TINY, available=ROOM)
    assert correct(computed, REQUEST.replace(host_args=("--medvram",))) == computed
    assert correct(computed, REQUEST).verdict == "tight"


@pytest.mark.parametrize(
    ("requested", "free", "room", "is_counted"),
    [
        (20 * MIB, 10 * GIB, ROOM, False),  # the card was not full
        (20 * MIB, 10 * GIB, TINY.needs_bytes + 100 * MIB, False),
        (20 * MIB, 12 * MIB, TINY.needs_bytes + 100 * MIB, True),
        (9 * GIB, 5 * GIB, 8 * GIB, True),  # a block larger than what is left
        (9 * GIB, 20 * GIB, ROOM, False),
        (2**49, None, ROOM, False),  # no block's size
        (None, None, TINY.needs_bytes + BOUND - 1, True),
        (None, None, TINY.needs_bytes + BOUND, False),
    ],
)
def test_the_figures_of_the_failure_decide(requested, free, room, is_counted):
    made = ran_out(requested=requested, free=free, room=room)
    lessons = lessons_of([made])
    assert (bool(lessons.lacks), bool(lessons.doubts)) == (is_counted, not is_counted)
    assert (left_in(made) is None) == is_counted
    if is_counted:
        assert after(made, room=room).verdict == "wont_fit"


def test_a_block_that_explains_a_failure_counts_as_large_as_the_card_at_the_most():
    assert block_bytes(Fault("sampling", 9 * GIB, 8 * GIB, 20 * GIB)) == 16 * GIB
    assert block_bytes(Fault("sampling", 9 * GIB, 8 * GIB, 200 * GIB)) == 0
    assert block_bytes(Fault("sampling", 9 * GIB, 8 * GIB)) == 0


def test_what_runs_of_the_kind_were_measured_to_take_explains_a_failure_too():
    far = TINY.needs_bytes + 3 * GIB
    took = run(record(TINY, off=3 * GIB), available_bytes=ROOM)
    assert lessons_of([ran_out(room=far)]).lacks == {}
    (lack,) = lessons_of([took, ran_out(room=far)]).lacks[KIND]
    assert lack.beyond_bytes == 3 * GIB
    assert after(took, ran_out(room=far), room=far).verdict == "wont_fit"


def test_a_failure_that_was_computed_to_come_is_no_accident():
    made = ran_out(room=TINY.needs_bytes - 1, demand=2**60)
    assert lessons_of([made]).doubts == {}
    assert left_in(made) is None


def test_the_text_of_an_error_gives_the_figures():
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
        "25.00 GiB of which 22.00 GiB is free. Including non-PyTorch memory, this process has 3.00 GiB memory in use."
    )
    fault, _ = fault_of(text, estimate(TINY, available=ROOM), (), "sampling")
    assert fault == Fault("sampling", ROOM + 1, ROOM, 20 * MIB, 22 * GIB)


def test_a_block_larger_than_the_card_makes_no_demand_beyond_it():
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 GiB."
    fault, _ = fault_of(text, estimate(TINY, available=8 * GIB), (), "sampling")
    assert fault.demand_bytes <= 16 * GIB + GIB


PHASES = st.builds(
    lambda floor, above, more: phase(floor=floor, minimum=floor + above, comfortable=floor + above + more),
    st.integers(1, 12 * GIB), st.integers(0, GIB), st.integers(0, 4 * GIB),
)  # fmt: skip
FIGURES = st.none() | st.integers(0, 2**62)


@settings(max_examples=300)
@given(PHASES, PHASES, st.integers(0, 80 * GIB), st.integers(0, 2**62), FIGURES, FIGURES)
def test_no_single_failure_raises_a_phase_beyond_what_is_plausible(failing, asked, room, more, requested, free):
    made = ran_out(failing, room, room + more, requested, free)
    result = after(made, of=asked, room=room).phases[0]
    beyond = 2 * min(requested or 0, room) * min(4.0, asked.floor_bytes / failing.floor_bytes)
    assert asked.minimum_bytes <= result.minimum_bytes <= asked.minimum_bytes + most_more_bytes(asked) + int(beyond)
    if not requested:
        twice = max(2 * asked.comfortable_bytes, asked.minimum_bytes)
        assert result.needs_bytes <= asked.resident_bytes + twice + GIB


@settings(max_examples=200)
@given(PHASES, st.integers(0, 80 * GIB), FIGURES, FIGURES)
def test_a_failure_that_counts_is_never_said_to_run_again(failing, room, requested, free):
    made = ran_out(failing, room, None, requested, free)
    if lessons_of([made]).lacks:
        assert after(made, of=failing, room=room).verdict == "wont_fit"
