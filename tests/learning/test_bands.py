"""The whole correction by simulation, in small; ``python tools/bands.py`` is the large one."""

from __future__ import annotations

import pytest

from tools import bands

TWO_WAYS = ("two ways, one in two", "two ways, one in ten")
STEADY = tuple(name for name in bands.NAMES if name not in TWO_WAYS)


@pytest.mark.parametrize("count", [2, 3, 6, 20])
@pytest.mark.parametrize("name", STEADY)
def test_the_next_run_lies_in_the_band_in_95_of_100_cases(name, count):
    assert bands.tried(name, count, 400).inside >= 0.95 - 0.035  # 400 tries are sure to about 2 %


@pytest.mark.parametrize("name", TWO_WAYS)
def test_of_a_library_that_works_in_two_ways_both_are_in_the_band_once_both_were_seen(name):
    assert bands.tried(name, 20, 400).inside >= 0.92


@pytest.mark.parametrize(("count", "width"), [(2, 0.5), (3, 0.25), (20, 0.25)])
def test_a_few_runs_of_a_steady_machine_tighten_the_band(count, width):
    assert bands.tried("always the same", count, 50).width <= width


def test_single_outliers_among_many_runs_do_not_widen_the_band_beyond_what_was_computed():
    assert bands.tried(bands.OUTLIERS, 10, 200).width < 1.25
    assert bands.tried(bands.OUTLIERS, 40, 200).width < 0.5


def test_the_table_has_a_row_for_each_kind_and_is_the_same_each_time():
    first = bands.table(5)
    assert len(first) == 2 + len(bands.NAMES)
    assert first == bands.table(5)
