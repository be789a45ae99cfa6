from __future__ import annotations

import pytest

from lib_vram.live.switches import REMEMBERED_RUNS, Switches
from lib_vram.message import say


def suggestion(used):
    switches = Switches()
    for name in used:
        switches.ran(name)
    return switches.suggestion()


@pytest.mark.parametrize(
    ("used", "said"),
    [
        ("abababab", say("live.group", runs=8, switches=7, needed=1)),
        ("aabbaabb" + "ab", say("live.group", runs=10, switches=5, needed=1)),
        ("aaaabbbb", None),
        ("abcdef", None),
        ("aba", None),
        ("", None),
    ],
)
def test_grouping_is_suggested_when_it_would_save_half_of_the_switches(used, said):
    assert suggestion(used) == said


def test_runs_without_a_known_file_tell_nothing():
    assert suggestion([None, "a", None, "b", None, "a", "", "a"]) is None


def test_what_was_long_ago_is_forgotten():
    assert suggestion("ab" * 8 + "c" * REMEMBERED_RUNS) is None
