from __future__ import annotations

import pytest

from lib_vram.live.curve import MOST_MARKS, MOST_SAMPLES, Curve, Mark, Sample, peak_bytes
from lib_vram.live.picture import Holding
from lib_vram.units import GIB
from tests.live.stand_in import TORCH, card


def sample(at):
    return Sample(at, 1, 1, 1, 0)


def test_a_reading_keeps_what_is_drawn():
    assert Sample.of(5.0, Holding(card(), TORCH)) == Sample(5.0, 10 * GIB, 7 * GIB, 6 * GIB, 2 * GIB, 7 * GIB)
    assert Sample.of(5.0, Holding(None, None)) == Sample(5.0, None, None, None, None)


def test_what_is_in_use_leaves_the_cache_out():
    assert Sample.of(5.0, Holding(card(), TORCH)).in_use_bytes == 9 * GIB
    assert Sample(5.0, None, 7, 6, None).in_use_bytes == 6
    assert Sample(5.0, 4, None, None, 1).in_use_bytes == 4


def test_old_readings_and_marks_fall_out():
    curve = Curve()
    for at in range(MOST_SAMPLES + 5):
        curve.add(sample(float(at)))
    for at in range(MOST_MARKS + 5):
        curve.mark(Mark(float(at), "sampling"))
    assert len(curve.samples(-1)) == MOST_SAMPLES
    assert len(curve.marks()) == MOST_MARKS
    assert curve.latest_at() == MOST_SAMPLES + 4


def test_only_what_is_newer_is_sent_again():
    curve = Curve()
    for at in (1.0, 2.0, 3.0):
        curve.add(sample(at))
    assert [item.at for item in curve.samples(2.0)] == [3.0]


def test_marks_begin_with_the_generation_that_was_at_work_at_the_oldest_reading():
    curve = Curve()
    for at, name in ((1, "run"), (2, "done"), (3, "run"), (4, "sampling"), (9, "done"), (20, "run")):
        curve.mark(Mark(float(at), name))
    curve.add(sample(5.0))
    assert [item.at for item in curve.marks()] == [3, 4, 9, 20]
    assert [item.at for item in curve.last_run()] == [20]


def test_before_the_first_generation_there_is_none():
    assert Curve().last_run() == ()
    assert Curve().marks() == ()
    assert Curve().latest_at() == 0.0


@pytest.mark.parametrize(
    ("highest", "peak"),
    [
        ([5, 5, 9, 9], 12),  # it rose in this generation, between two readings
        ([9, 4, 6], 9),  # the host began to count anew when this one began
        ([9, 9, 9], None),  # an earlier one came higher: nothing is known of this one
        ([None, None], None),
        ([], None),
    ],
)
def test_a_peak_between_two_readings_is_known_from_torchs_own_mark(highest, peak):
    samples = [Sample(float(at), 10, 7, 6, 2, value) for at, value in enumerate(highest)]
    assert peak_bytes(samples) == peak


def test_where_the_card_is_not_known_the_peak_is_torchs_alone():
    assert peak_bytes([Sample(1.0, None, 7, 6, None, 5), Sample(2.0, None, 7, 6, None, 8)]) == 8
