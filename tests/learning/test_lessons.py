from dataclasses import replace

import pytest

from lib_vram.learning.lessons import MOST, OUTLIVED, UNSEEN_BYTES, Observation, kind_in, kind_of, lessons_of
from lib_vram.learning.record import Fault, kept_of
from lib_vram.request import ModelSpec, VaeSpec
from lib_vram.units import GIB, MIB
from tests.learning.makers import REQUEST, failed, phase, record, run

KIND = kind_in("vae_decode", REQUEST)
DECODE = phase()


def only(lessons):
    return lessons.observations[KIND]


def test_a_run_teaches_by_how_much_each_phase_was_off():
    sampling = phase("sampling", floor=300 * MIB)
    lessons = lessons_of([run(record(sampling, off=-5), record(off=7, reserved_off=9))])
    assert only(lessons) == (Observation(DECODE.floor_bytes, 7, 9),)
    assert [item.off_bytes for item in lessons.observations[kind_in("sampling", REQUEST)]] == [-5]
    assert lessons.runs == 1


@pytest.mark.parametrize(
    "made",
    [
        run(record(off=7, exact=False)), run(outcome="stopped"), run(is_rescued=True), run(outcome="failed"),
        failed(DECODE), run(replace(record(), predicted=None)),
    ],
)  # fmt: skip
def test_what_is_not_known_exactly_or_was_cut_off_teaches_nothing_about_a_peak(made):
    assert lessons_of([made]).observations == {}


def test_phases_that_had_ended_before_a_failure_teach():
    made = run(
        record(phase("sampling"), off=3), replace(record(), peak=record().peak), outcome="failed",
        fault=Fault("vae_decode", 12 * GIB, 11 * GIB),
    )  # fmt: skip
    assert list(lessons_of([made]).observations) == [kind_in("sampling", REQUEST)]


def test_reserved_teaches_nothing_where_the_card_was_nearly_full():
    made = run(record(reserved_off=9), available_bytes=DECODE.wants_bytes - 1)
    assert only(lessons_of([made]))[0].reserved_off_bytes is None


def test_only_the_newest_are_looked_at():
    offs = [item.off_bytes for item in only(lessons_of(run(record(off=count)) for count in range(MOST + 5)))]
    assert (len(offs), offs[0]) == (MOST, 5)


def test_a_failure_of_what_was_computed_to_fit_teaches_how_much_was_missing():
    made = failed(phase(floor=3000 * MIB), demand=11 * GIB, room=11 * GIB)
    (lack,) = lessons_of([made]).lacks[KIND]
    assert lack.more_bytes == 11 * GIB - phase(floor=3000 * MIB).needs_bytes


def test_a_run_that_was_rescued_teaches_where_it_ran_out_and_nothing_else():
    big = phase(floor=3000 * MIB)
    made = run(record(big, off=-900), is_rescued=True, fault=Fault("vae_decode", 11 * GIB + 1, 11 * GIB))
    lessons = lessons_of([made])
    assert lessons.observations == {}
    assert lessons.lacks[KIND][0].more_bytes == 11 * GIB + 1 - big.needs_bytes
    assert lessons.failed == {KIND}


def test_a_failure_that_was_foreseen_teaches_nothing():
    assert lessons_of([failed(phase(floor=20 * GIB))]).lacks == {}


def test_a_later_run_that_did_it_with_no_more_room_takes_the_failure_back():
    big = phase(floor=3000 * MIB)
    lessons = lessons_of([failed(big), run(record(big), available_bytes=11 * GIB)])
    assert not lessons.lacks.get(KIND)


def test_a_smaller_run_does_not():
    lessons = lessons_of([failed(phase(floor=3000 * MIB)), run(record(phase(floor=1000 * MIB)))])
    assert len(lessons.lacks[KIND]) == 1


def test_after_twenty_measured_runs_a_failure_stands_for_no_more_than_no_peak_shows():
    big, small = phase(floor=3000 * MIB), run(record(phase(floor=1000 * MIB)))
    missing = 11 * GIB + 1 - big.needs_bytes
    for later, expected in (
        ([small] * (OUTLIVED - 1), missing),
        ([small] * OUTLIVED, UNSEEN_BYTES),
        ([run(record(phase(floor=1000 * MIB), exact=False))] * 50, missing),
    ):
        (lack,) = lessons_of([failed(big), *later]).lacks[KIND]
        assert lack.more_bytes == expected


def test_a_run_that_had_no_room_for_what_was_said_to_be_missing_takes_the_failure_back():
    big, near = phase(floor=3000 * MIB), phase(floor=2900 * MIB)
    for room, stands in ((near.needs_bytes + 100 * MIB, False), (near.needs_bytes + 3000 * MIB, True)):
        lessons = lessons_of([failed(big), run(record(near), available_bytes=room)])
        assert bool(lessons.lacks.get(KIND)) == stands
        assert lessons.failed == {KIND}


@pytest.mark.parametrize(
    "change",
    [
        {"attention": "xformers"}, {"model": ModelSpec("sd15")}, {"model": ModelSpec("sdxl", weights_dtype="fp8")},
        {"vae": VaeSpec(tiled=True)}, {"vae": VaeSpec("fp32")},
    ],
)  # fmt: skip
def test_another_model_attention_type_or_tiles_are_another_kind(change):
    assert kind_in("vae_decode", REQUEST.replace(**change)) != KIND


def test_the_vae_says_nothing_about_sampling():
    assert kind_in("sampling", REQUEST.replace(vae=VaeSpec("fp32", tiled=True))) == kind_in("sampling", REQUEST)


@pytest.mark.parametrize("name", ["sampling", "vae_decode", "hires_upscale"])
def test_a_request_and_what_was_kept_of_it_are_of_the_same_kind(name):
    request = REQUEST.replace(attention="split", vae=VaeSpec("fp32", tiled=True, tile_size=512))
    assert kind_of(name, kept_of(request)) == kind_in(name, request)


def test_what_the_driver_held_is_remembered():
    assert lessons_of([run(context_bytes=5), run()]).contexts_bytes == (5,)
