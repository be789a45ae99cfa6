"""What lessons may and may not do to an estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.learning.correct import LEAST_CAUTION_BYTES, LEAST_HALF_BYTES, apply, corrector, percent
from lib_vram.learning.lessons import NOTHING, Lack, Lessons, Observation, kind_in, lessons_of
from lib_vram.message import say
from lib_vram.units import GIB, MIB
from tests.learning.makers import REQUEST, estimate, failed, phase, record, run

DECODE = phase()
WIDTH = 154 * MIB


def after(*runs, computed=None):
    return apply(computed or estimate(), REQUEST, lessons_of(runs))


def runs_off(*offs, of=DECODE, **changes):
    return [run(record(of, off=off), **changes) for off in offs]


def width(result):
    return result.high_bytes - result.low_bytes


def test_without_lessons_the_estimate_is_the_same_object():
    computed = estimate()
    assert apply(computed, REQUEST, NOTHING) is computed
    assert apply(computed, REQUEST, lessons_of(runs_off(0, of=phase("sampling")))) is computed


def test_one_run_moves_the_interval_and_two_that_agree_tighten_it():
    one, two, apart = (after(*runs_off(*offs)) for offs in ((200 * MIB,), (200 * MIB,) * 2, (0, 400 * MIB)))
    assert [result.peak_bytes for result in (one, two, apart)] == [estimate().peak_bytes + 200 * MIB] * 3
    assert width(two) < 0.7 * width(estimate()) < 0.99 * width(one) < width(apart)
    assert all(result.low_bytes < result.peak_bytes < result.high_bytes for result in (one, two, apart))


def test_that_two_runs_took_less_is_shown_and_not_yet_counted_on():
    result = after(*runs_off(-100 * MIB, -100 * MIB))
    assert result.peak_bytes == estimate().peak_bytes - 100 * MIB
    assert result.phases[0].needs_bytes == DECODE.needs_bytes


@pytest.mark.parametrize("count", [3, 4, 5])
def test_three_to_five_runs_tighten_the_interval(count):
    offs = [place * 4 * MIB for place in range(count)]
    before = width(estimate())
    assert width(after(*runs_off(*offs))) < 0.75 * before
    with_driver = after(*runs_off(*offs, context_bytes=CONTEXT_BYTES + 20 * MIB))
    assert width(with_driver) < 0.35 * before


def test_runs_that_were_all_the_same_still_leave_some_room():
    result = after(*runs_off(0, 0, 0, context_bytes=CONTEXT_BYTES))
    assert width(result) >= 4 * LEAST_HALF_BYTES


def test_the_interval_holds_the_peak_and_moves_with_what_was_measured():
    result = after(*runs_off(300 * MIB, 310 * MIB, 305 * MIB))
    assert result.low_bytes < result.peak_bytes < result.high_bytes
    assert result.peak_bytes == estimate().peak_bytes + 305 * MIB


def test_a_phase_that_took_more_here_needs_more_after_the_first_run():
    result = after(*runs_off(500 * MIB))
    assert result.phases[0].needs_bytes == DECODE.needs_bytes + 500 * MIB


def test_of_two_runs_that_took_more_the_smaller_is_believed():
    assert after(*runs_off(500 * MIB, 100 * MIB)).phases[0].needs_bytes == DECODE.needs_bytes + 100 * MIB


def test_one_outlier_among_ten_changes_nothing_about_what_is_needed():
    assert after(*runs_off(*[0] * 9, 3000 * MIB)).phases[0].needs_bytes == DECODE.needs_bytes


def test_that_it_takes_less_is_believed_from_three_runs_on_and_never_below_the_floor():
    less = [-1500 * MIB] * 3
    assert after(*runs_off(*less[:2])).phases[0].needs_bytes == DECODE.needs_bytes
    assert after(*runs_off(*less)).phases[0].minimum_bytes == DECODE.floor_bytes


def test_a_deviation_is_carried_over_to_another_size_as_bytes_and_as_a_share():
    small = phase(floor=1000 * MIB)
    result = after(*runs_off(100 * MIB, 100 * MIB, 100 * MIB, of=small), computed=estimate(phase(floor=2000 * MIB)))
    assert result.phases[0].needs_bytes == phase(floor=2000 * MIB).needs_bytes + 200 * MIB
    low, high = result.phases[0].low_bytes, result.phases[0].high_bytes
    assert low <= 2100 * MIB <= 2200 * MIB <= high


def test_sizes_four_times_apart_teach_nothing_about_each_other():
    computed = estimate(phase(floor=2000 * MIB))
    assert after(*runs_off(*[90 * MIB] * 3, of=phase(floor=480 * MIB)), computed=computed) is computed


def test_nearby_sizes_are_believed_before_far_ones():
    near, far = runs_off(*[50 * MIB] * 3), runs_off(*[900 * MIB] * 5, of=phase(floor=4000 * MIB))
    assert after(*near, *far).phases[0].needs_bytes == DECODE.needs_bytes + 50 * MIB


def test_after_a_failure_the_same_request_is_said_not_to_fit():
    big = phase(floor=4000 * MIB, minimum=4100 * MIB, comfortable=4500 * MIB)
    computed = estimate(big)
    assert computed.verdict == "fits"
    result = after(failed(big), computed=computed)
    assert result.verdict == "wont_fit"
    assert result.notes[0] == say("learning.note_failed")


def test_after_a_failure_a_much_smaller_request_still_fits():
    big, small = phase(floor=4000 * MIB), phase(floor=500 * MIB)
    assert after(failed(big), computed=estimate(small)).verdict == "fits"


def test_with_the_drivers_own_part_known_it_is_counted_as_it_is():
    held = CONTEXT_BYTES + 200 * MIB
    result = after(*runs_off(0, 0, 0, context_bytes=held))
    assert result.phases[0].needs_bytes == DECODE.needs_bytes + 200 * MIB
    assert result.peak_bytes == estimate().peak_bytes + 200 * MIB


def test_a_tight_run_that_reserves_less_here_fits():
    computed = estimate(available=DECODE.wants_bytes - 100 * MIB)
    assert computed.verdict == "tight"
    roomy = [run(record(reserved_off=-700 * MIB), available_bytes=12 * GIB) for _ in range(4)]
    assert after(*roomy, computed=computed).verdict == "fits"


def test_the_phase_that_binds_is_found_anew():
    sampling, decode = phase("sampling", floor=1900 * MIB), phase(floor=2000 * MIB)
    result = after(*runs_off(400 * MIB, of=sampling), computed=estimate(sampling, decode))
    assert result.binding_phase == "sampling"


def test_what_cannot_be_computed_stays_unknown_whatever_was_learned():
    computed = replace(estimate(verdict="unknown"), notes=(say("estimate.control_later", kind="ip_adapter"),))
    assert after(*runs_off(0, 0, 0), computed=computed).verdict == "unknown"
    wont_fit = replace(
        estimate(available=DECODE.needs_bytes - 50 * MIB), notes=(say("estimate.control_later", kind="ip_adapter"),)
    )
    assert wont_fit.verdict == "wont_fit"
    assert after(*runs_off(*[-900 * MIB] * 5), computed=wont_fit).verdict == "unknown"


def test_the_note_names_the_runs_and_the_share():
    assert after(*runs_off(*[8 * 30 * MIB] * 5)).notes[0] == say("learning.note_runs", runs=5, percent="+3 %")
    assert after(*runs_off(0)).notes[0] == say("learning.note_run", runs=1, percent="±0 %")


@pytest.mark.parametrize(("off", "text"), [(3, "+3 %"), (-12, "−12 %"), (0, "±0 %")])
def test_a_share_has_its_sign(off, text):
    assert percent(off, 100) == text


SIZES = st.integers(-12 * GIB, 12 * GIB)
KIND = kind_in("vae_decode", REQUEST)
OBSERVATIONS = st.lists(
    st.builds(Observation, st.integers(1, 12 * GIB), SIZES, st.none() | SIZES), max_size=6
).map(tuple)  # fmt: skip
LACKS = st.lists(st.builds(Lack, st.integers(1, 12 * GIB), SIZES), max_size=3).map(tuple)
LESSONS = st.builds(
    lambda seen, lacks, contexts, failed: Lessons(
        {KIND: seen}, {KIND: lacks}, tuple(contexts), len(seen), frozenset({KIND} if failed else ())
    ),
    OBSERVATIONS, LACKS, st.lists(st.integers(0, 2 * GIB), max_size=5), st.booleans(),
)  # fmt: skip
PHASES = st.builds(
    lambda floor, above, more: phase(floor=floor, minimum=floor + above, comfortable=floor + above + more),
    st.integers(1, 12 * GIB), st.integers(0, GIB), st.integers(0, 4 * GIB),
)  # fmt: skip


@settings(max_examples=300)
@given(PHASES, st.integers(0, 20 * GIB), LESSONS)
def test_no_lesson_makes_fit_what_the_computed_floor_rules_out(made, room, lessons):
    result = apply(estimate(made, available=room), REQUEST, lessons)
    if made.resident_bytes + made.floor_bytes > room:
        assert result.verdict == "wont_fit"
    assert result.phases[0].floor_bytes == made.floor_bytes
    assert result.phases[0].minimum_bytes >= made.floor_bytes


@settings(max_examples=200)
@given(PHASES, st.integers(0, 20 * GIB), LESSONS)
def test_a_corrected_estimate_is_an_estimate_like_any_other(made, room, lessons):
    result = apply(estimate(made, available=room), REQUEST, lessons)
    (only,) = result.phases
    assert only.minimum_bytes <= only.comfortable_bytes
    assert result.low_bytes <= result.high_bytes
    expected = "wont_fit" if only.needs_bytes > room else "tight" if only.wants_bytes > room else "fits"
    assert result.verdict == expected


@given(st.lists(st.integers(-300, 300), min_size=25, max_size=40), st.integers(0, 10**6))
def test_the_interval_holds_nearly_all_runs_that_it_was_made_from(offs, seed):
    result = after(*runs_off(*(off * MIB for off in offs), context_bytes=CONTEXT_BYTES))
    peaks = [estimate().peak_bytes + off * MIB for off in offs]
    inside = sum(result.low_bytes <= peak <= result.high_bytes for peak in peaks)
    assert inside >= int(0.95 * len(offs))


def test_after_a_failure_half_as_much_again_is_counted_until_a_run_explains_it():
    big, half = phase(floor=4000 * MIB), phase(floor=2000 * MIB)
    ran_out = failed(big, room=big.needs_bytes + 100 * MIB)
    explains = run(record(half, off=200 * MIB), context_bytes=CONTEXT_BYTES)
    before = after(ran_out, computed=estimate(half)).phases[0]
    assert before.minimum_bytes >= 1.5 * half.minimum_bytes
    measured = after(ran_out, explains, computed=estimate(half)).phases[0]
    assert half.minimum_bytes + 200 * MIB < measured.minimum_bytes < before.minimum_bytes - 500 * MIB


def test_a_kind_that_has_failed_is_counted_up_to_the_most_that_the_next_run_may_take():
    big = phase(floor=4000 * MIB)
    offs = [100 * MIB, 200 * MIB, 300 * MIB]
    calm = after(*runs_off(*offs)).phases[0]
    burnt = after(failed(big, room=big.needs_bytes), *runs_off(*offs)).phases[0]
    assert calm.minimum_bytes == DECODE.minimum_bytes + 200 * MIB
    assert calm.minimum_bytes + 100 * MIB < burnt.minimum_bytes <= DECODE.minimum_bytes + 550 * MIB


def test_runs_that_took_less_raise_nothing_of_a_kind_that_has_failed():
    big = phase(floor=4000 * MIB)
    offs = [*[900 * MIB] * 18, 950 * MIB, *[0] * 3]
    burnt = after(failed(big, room=big.needs_bytes), *runs_off(*offs, context_bytes=CONTEXT_BYTES)).phases[0]
    assert DECODE.minimum_bytes + 950 * MIB <= burnt.minimum_bytes < DECODE.minimum_bytes + 1000 * MIB


def test_what_failed_at_one_size_is_missing_as_a_share_at_a_larger_one():
    small, large = phase(floor=1000 * MIB), phase(floor=3000 * MIB)
    lessons = lessons_of([failed(small, demand=small.needs_bytes + 100 * MIB)])
    more = [
        apply(estimate(item), REQUEST, lessons).phases[0].minimum_bytes - int(1.5 * item.minimum_bytes)
        for item in (small, large)
    ]
    assert more == pytest.approx([110 * MIB, 330 * MIB], abs=2)


def test_a_correction_of_another_phase_than_the_binding_one_is_said_too():
    sampling, decode = phase("sampling", floor=500 * MIB), phase(floor=2000 * MIB)
    result = after(*runs_off(20 * MIB, 20 * MIB, of=sampling), computed=estimate(sampling, decode))
    assert result.notes[0] == say("learning.note_others", runs=2)


def test_under_another_start_only_what_takes_more_is_carried_over():
    request = REQUEST.replace(host_args=("--medvram",))
    for offs, more in (([200 * MIB] * 3, 200 * MIB), ([-200 * MIB] * 3, 0)):
        here = lessons_of(runs_off(*offs))
        correct = corrector(lambda asked, here=here: NOTHING if asked.host_args else here, REQUEST)
        assert correct(estimate(), request).phases[0].minimum_bytes == DECODE.minimum_bytes + more
    assert correct(estimate(), REQUEST).phases[0].minimum_bytes < DECODE.minimum_bytes


def test_under_a_start_with_runs_of_its_own_those_count():
    here, there = lessons_of(runs_off(*[200 * MIB] * 3)), lessons_of(runs_off(*[50 * MIB] * 3))
    correct = corrector(lambda asked: there if asked.host_args else here, REQUEST)
    flagged = correct(estimate(), REQUEST.replace(host_args=("--medvram",)))
    assert flagged.phases[0].minimum_bytes == DECODE.minimum_bytes + 50 * MIB


def test_where_nothing_was_learned_nothing_corrects():
    assert corrector(lambda asked: NOTHING, REQUEST) is None


def test_where_no_driver_says_what_it_holds_a_failure_leaves_room_for_that_too():
    big, near = phase(floor=4000 * MIB), phase(floor=3900 * MIB)
    room = big.needs_bytes + 50 * MIB
    told = [
        after(failed(big, room=room), run(record(near, off=300 * MIB), context_bytes=held), computed=estimate(near))
        for held in (None, CONTEXT_BYTES)
    ]
    needs = [result.phases[0].minimum_bytes - near.minimum_bytes for result in told]
    assert needs[0] == needs[1] + LEAST_CAUTION_BYTES


@pytest.mark.parametrize(("count", "caution"), [(1, 1975 * MIB), (2, 1975 * MIB), (3, LEAST_CAUTION_BYTES)])
def test_one_or_two_runs_that_do_not_explain_a_failure_do_not_calm_it(count, caution):
    big, near = phase(floor=4000 * MIB), phase(floor=3850 * MIB)
    room = big.needs_bytes + 700 * MIB
    calm = [run(record(near, off=-260 * MIB), context_bytes=CONTEXT_BYTES)] * count
    more_bytes = after(failed(big, room=room), *calm, computed=estimate(near)).phases[0].minimum_bytes
    lacking = int((700 * MIB + 1) * (3850 / 4000) * 1.1)
    assert more_bytes - near.minimum_bytes == pytest.approx(lacking + caution, abs=2)
