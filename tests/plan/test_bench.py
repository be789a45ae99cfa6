"""The benchmark asks what it says it asks, and prints what it says it prints."""

from __future__ import annotations

import json

import pytest

from lib_vram.estimate.estimator import estimate
from tools import bench


@pytest.mark.parametrize("tight", [False, True])
def test_every_size_is_asked_once_and_always_the_same_ones(tight):
    asked = list(bench.requests(60, tight=tight))
    assert len({(request.width, request.height) for request in asked}) == 60
    assert asked == list(bench.requests(60, tight=tight))


def test_requests_for_plans_often_do_not_fit():
    verdicts = [estimate(request).verdict for request in bench.requests(30, tight=True)]
    assert verdicts.count("wont_fit") > 10


def test_a_row_has_median_and_95th_percentile_in_milliseconds():
    row = bench.row("name", [0.001 * value for value in range(1, 101)], 5, 20)
    assert (row.p50, row.p95, row.runs) == (50.5, 96.0, 100)


def test_profiles_stay_under_a_mebibyte():
    assert 0 < bench.profile_size().p50 < 1


def test_what_was_not_measured_says_why(monkeypatch, capsys):
    monkeypatch.setattr(bench, "ROWS", (lambda: bench.Row("trace", "s", None, None, 3, reason="no torch"),))
    assert bench.main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"][0]["p50"], printed["rows"][0]["reason"]) == (None, "no torch")
    assert bench.main([]) == 0
    assert "not measured" in capsys.readouterr().out
