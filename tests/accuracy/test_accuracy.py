"""The published measurements, and that no figure gets worse."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLACK = 0.25
"""Percent by which a row may be further off than when the page was made."""


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return _tool("accuracy")


@pytest.fixture(scope="module")
def table(tool: ModuleType) -> list:
    return tool.rows()


@pytest.mark.parametrize(("metric", "median_bound"), [("allocated", 1.0), ("reserved", 5.0)])
def test_the_median_and_the_worst_row_are_within_the_bar(
    tool: ModuleType, table: list, metric: str, median_bound: float
) -> None:
    count, median, worst = tool.summary(table, metric)[tool.OURS]
    assert count >= 10
    assert median <= median_bound
    assert abs(worst) <= 10


def test_without_what_lay_there_before_it_is_close_too(table: list) -> None:
    own = [abs(row.own_error) for row in table if row.own_error is not None]
    assert len(own) >= 30
    assert statistics.median(own) <= 2


def test_every_row_says_where_it_was_published_and_what_was_there_before(tool: ModuleType) -> None:
    rows = tool.read(tool.DATA / "published.jsonl")
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(row["url"].startswith("https://") and row["gpu"] for row in rows)
    assert {row.get("beside") for row in rows} == {None, "published", "computed"}


def test_a_whole_pipeline_takes_the_most_of_its_parts_and_cublas_beside_its_weights(tool: ModuleType) -> None:
    facts = {
        "family": "flux1", "part": "pipeline", "parts": ["denoise", "vae_decode"], "code": "diffusers", "dtype": "bf16",
        "width": 1024, "height": 1024, "batch": 1, "attention": "sdpa", "alloc_conf": "", "cfg": "off",
        "metric": "floor", "measured_bytes": 1, "includes_weights": False, "beside_bytes": 1000, "gpu": "NVIDIA H100",
    }  # fmt: skip
    decode = tool.component_memory(tool.component_of(facts, "vae_decode"))
    assert tool.answered(facts).answers[tool.OURS] == 1000 + (32 << 20) + decode.floor_bytes


def test_no_row_is_further_off_than_recorded(tool: ModuleType, table: list) -> None:
    recorded = json.loads(tool.RECORDED.read_text(encoding="utf-8"))
    assert set(recorded) == {row.facts["id"] for row in table}
    worse = {
        row.facts["id"]: row.error(tool.OURS)
        for row in table
        if abs(row.error(tool.OURS)) > abs(recorded[row.facts["id"]]) + SLACK
    }
    assert worse == {}


def test_95_percent_of_the_measured_peaks_lie_inside_the_interval(table: list) -> None:
    peaks = [row for row in table if row.metric == "allocated"]
    assert sum(row.inside for row in peaks) >= 0.95 * len(peaks)


def test_ours_is_closer_than_every_formula(tool: ModuleType, table: list) -> None:
    for metric in ("allocated", "reserved"):
        figures = tool.summary(table, metric)
        ours = figures.pop(tool.OURS)
        assert all(ours[1] < theirs[1] for theirs in figures.values() if theirs)


def test_the_page_and_its_picture_are_what_the_tool_makes(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_the_formulas_give_what_their_sources_say(tool: ModuleType) -> None:
    from lib_vram.physics.component import Component

    decode = Component("sdxl", "vae_decode", 1024, 1024)
    assert tool.PEERS["Forge"](decode) == 2178 * 1024 * 1024 * 2
    assert tool.PEERS["InvokeAI"](decode) == 4400 * 2**20
    assert tool.PEERS["Forge"](Component("qwen_image", "vae_decode", 512, 512)) is None
