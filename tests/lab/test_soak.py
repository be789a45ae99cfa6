"""A short soak: a fixed seed, the smallest variety. The long one is ``python tools/soak.py``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.estimate.simulate import simulate_steps
from lib_vram.lab import run
from tools import soak


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    with pytest.MonkeyPatch.context() as small:
        small.setattr(soak, "SIZES", ((512, 512), (1024, 1024)))
        small.setattr(soak, "CARDS", (8,))
        small.setattr(soak, "CHECKPOINTS", soak.CHECKPOINTS[:2])
        return soak.soak(60, seed=11, folder=tmp_path_factory.mktemp("soak"))


def test_every_run_ends_and_every_picture_is_there(report):
    assert sum(report.outcomes.values()) == report.runs == 60
    assert report.pictures_made == report.pictures_asked > 60
    assert report.lost == []


def test_what_can_happen_does(report):
    assert set(report.events) >= {"generate", "error", "squeeze", "interrupt", "reload", "free"}
    assert set(report.outcomes) >= {"done", "rescued", "interrupted", "other error"}


def test_first_faults_are_met_and_no_verdict_is_wrong_after_that(report):
    assert report.first_faults >= 3
    assert sum(report.after_first.values()) >= 3
    assert report.wrong_after_first == []


def test_nothing_is_left_open_and_nothing_leaks(report):
    assert report.left_open == []
    assert report.troubles == []
    assert report.kept_runs == 60 - report.outcomes.get("refused", 0)


def test_the_lab_is_afterwards_as_it_was_before(report):
    assert run.draw is not None
    assert run.rescue.simulate_steps is simulate_steps
    assert run.CONTEXT_BYTES == CONTEXT_BYTES
    assert run.SECONDS_A_PHASE > 0


def test_the_report_is_json_and_a_table(report):
    assert json.loads(json.dumps(asdict(report)))["runs"] == 60
    assert "| Pictures of the runs that ended well |" in "\n".join(soak.lines(report))


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        ({"lost": ["x"]}, "lost: x"), ({"left_open": ["a run"]}, "left open: a run"),
        ({"wrong_after_first": ["y"]}, "wrong verdict after the first fault of its kind: y"),
    ],
)  # fmt: skip
def test_whatever_is_not_as_it_should_be_is_named(report, change, trouble):
    assert replace(report, **change).troubles == [trouble]


def test_growth_of_pythons_own_memory_is_a_leak(report):
    assert replace(report, traced_bytes=2**30).troubles[-1].startswith("leak: Python's memory grew by 1073741824 bytes")


@pytest.mark.parametrize("name", ["objects", "rss_bytes", "files", "threads"])
def test_growth_is_a_leak(report, name):
    grown = replace(report.warm, **{name: getattr(report.warm, name) + 10**9})
    assert [item.partition(" grew")[0] for item in replace(report, end=grown).troubles] == [f"leak: {name}"]


def test_the_table_is_put_between_the_marks(report, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{soak.MARKS[0]}\nold\n{soak.MARKS[1]}\n\nafter\n", encoding="utf-8")
    soak.write_into(page, report)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n\n")
    assert text.endswith("\n\nafter\n")
    assert "old" not in text
    assert "| Generations | 60, seed 11" in text
