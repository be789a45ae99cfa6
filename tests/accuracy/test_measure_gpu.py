"""The tool that measures on a GPU, without one: a made-up GPU stands in for the process of each point."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lib_vram.units import MIB

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = 2700 * MIB


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_gpu", ROOT / "tools" / "measure_gpu.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_gpu"] = module
    spec.loader.exec_module(module)
    return module


class MadeUpGpu:
    """Runs whatever it is asked, above a limit of its own."""

    def __init__(self, tool: ModuleType, smallest: int | None = SMALLEST) -> None:
        self.tool, self.smallest, self.limits = tool, smallest, []

    def __call__(self, question: object, limit_bytes: int | None) -> object:
        self.limits.append(limit_bytes)
        if self.smallest is None or (limit_bytes is not None and limit_bytes < self.smallest):
            return None
        return self.tool.Reading(2500 * MIB, 4400 * MIB, 160 * MIB, 170 * MIB, 24 * 1024 * MIB, "a card", "2.9")


def test_three_rows_come_out_in_the_shape_of_the_data(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--family", "sdxl"], MadeUpGpu(tool), lambda: True) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    known = json.loads((ROOT / "tests/accuracy/data/measured.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert [row["metric"] for row in rows] == ["floor", "comfortable", "minimum"]
    assert set(known) - {"id"} <= set(rows[0])
    assert [row["measured_bytes"] for row in rows[:2]] == [2500 * MIB, 4400 * MIB]


def test_the_minimum_is_found_by_bisection(tool: ModuleType) -> None:
    gpu = MadeUpGpu(tool)
    found = tool.measure(tool.Question("sdxl", "vae_decode", 1024, 1024), gpu)[2]["measured_bytes"]
    assert SMALLEST <= found <= SMALLEST + tool.RESOLUTION_BYTES
    assert len(gpu.limits) <= 10


def test_the_bisection_can_be_left_out(tool: ModuleType) -> None:
    gpu = MadeUpGpu(tool)
    assert len(tool.measure(tool.Question("sdxl", "vae_decode", 1024, 1024), gpu, minimum=False)) == 2
    assert gpu.limits == [None]


def test_without_cuda_it_says_so_and_measures_nothing(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = MadeUpGpu(tool)
    assert tool.main([], gpu, lambda: False) == 2
    assert capsys.readouterr().err.startswith("no CUDA device")
    assert gpu.limits == []


def test_what_does_not_fit_at_all_is_said(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main([], MadeUpGpu(tool, None), lambda: True) == 2
    assert "does not fit on this GPU at all" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [["--width", "0"], ["--alloc-conf", "nonsense:1"]])
def test_bad_input_is_one_line(tool: ModuleType, bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(bad, MadeUpGpu(tool), lambda: True) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
