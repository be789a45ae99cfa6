import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.learning.band import SHARE, Band, band, of_few, upper, without_far

KINDS = {
    "normal": lambda chance: chance.gauss(0, 1000),
    "uniform": lambda chance: chance.uniform(-1000, 1000),
    "laplace": lambda chance: chance.choice((-1, 1)) * chance.expovariate(1 / 1000),
    "exponential": lambda chance: chance.expovariate(1 / 1000),
}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_values_say_nothing(count):
    assert band([5] * count) is None


def test_values_that_are_all_the_same_leave_no_width():
    assert band([70, 70, 70]) == Band(70, 0)


def test_one_outlier_among_many_moves_neither_middle_nor_width():
    values = [100] * 39 + [5000]
    assert band(values) == Band(100, 0)


@pytest.mark.parametrize("count", [3, 5, 10, 18, 25, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_the_next_value_lies_inside_in_95_of_100_cases(kind, count):
    chance = random.Random(f"{kind} {count}")
    inside, tries = 0, 1500
    for _ in range(tries):
        found = band([int(KINDS[kind](chance)) for _ in range(count)])
        inside += abs(KINDS[kind](chance) - found.middle_bytes) <= found.half_bytes
    assert inside / tries >= SHARE - 0.015  # 1500 tries are sure to about 1.1 %


@given(st.lists(st.integers(-(2**33), 2**33), min_size=3, max_size=30), st.integers(-(2**33), 2**33))
def test_a_band_moves_with_its_values(values, by):
    before, after = band(values), band([value + by for value in values])
    assert abs(after.middle_bytes - before.middle_bytes - by) <= 1
    assert abs(after.half_bytes - before.half_bytes) <= 1


def test_a_band_takes_a_fraction_of_a_millisecond():
    values = [random.Random(1).randrange(2**32) for _ in range(40)]
    begun = time.perf_counter()
    for _ in range(20):
        band(values)
    assert (time.perf_counter() - begun) / 20 < 0.002


def test_one_value_keeps_the_computed_spread_around_it():
    assert of_few([70], 100, 10) == Band(70, 100)


@pytest.mark.parametrize(("apart", "half"), [(0, 10), (2, 22), (50, 150)])
def test_two_values_narrow_it_where_they_agree(apart, half):
    assert of_few([100, 100 + apart], 100, 10) == Band(100 + apart // 2, half)


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ([0, 0, 900], [0, 0, 900]),  # of three nobody knows which is the odd one
        ([0, 1, 2, 900], [0, 1, 2]),
        ([0, 1, 2, 900, -900], [0, 1, 2, 900, -900]),  # two of five are no exception
        ([*range(20), 900, -900], [*range(20)]),
        ([*range(20), 900, 900, 900], [*range(20), 900, 900, 900]),
    ],
)
def test_few_values_far_from_all_others_are_left_out(values, left):
    assert without_far(values, 100) == left


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 0, 0], Band(0, 0)), ([-90, 0, 30], Band(0, 131)), ([*[0] * 19, -500, 40], Band(0, 40))],
)
def test_how_far_the_next_may_lie_above_is_told_by_those_above(values, expected):
    assert upper(values) == expected
