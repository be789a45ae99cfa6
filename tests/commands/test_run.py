from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lib_vram import __version__
from lib_vram.commands import devices, run
from lib_vram.commands.run import main

ROOT = Path(__file__).resolve().parents[2]
GIB = 1024**3
COMMANDS = "component, estimate, plan, simulate, fit, diagnose, inspect, devices"
COMPONENT = ["component", "--family", "sdxl", "--part", "vae_decode", "--width", "1024", "--height", "1024"]


@pytest.fixture
def request_file(tmp_path: Path) -> Any:
    """Return a function that writes a request with these changes and returns its path."""

    def write(**changes: Any) -> str:
        request = {
            "device": {"name": "RTX 3060", "total_bytes": 12 * GIB, "used_by_others_bytes": GIB},
            "model": {"family": "sdxl"}, "width": 1024, "height": 1024,
        }  # fmt: skip
        path = tmp_path / "request.json"
        path.write_text(json.dumps({**request, **changes}))
        return str(path)

    return write


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("vram-guard: ").rstrip("\n")


def test_component_answers_with_exactly_the_contracts_fields(capsys: pytest.CaptureFixture[str]) -> None:
    memory = answer(capsys, *COMPONENT)
    assert set(memory) == {
        "weights_bytes", "floor_bytes", "minimum_bytes", "comfortable_bytes", "low_bytes", "high_bytes", "source",
    }  # fmt: skip
    assert memory["low_bytes"] <= memory["floor_bytes"] <= memory["minimum_bytes"] <= memory["comfortable_bytes"]


def test_cfg_off_needs_less_than_on(capsys: pytest.CaptureFixture[str]) -> None:
    denoise = [*COMPONENT[:4], "denoise", *COMPONENT[5:]]
    on = answer(capsys, *denoise)
    off = answer(capsys, *denoise, "--cfg", "off")
    assert off["floor_bytes"] < on["floor_bytes"]


def test_estimate_answers_with_the_contracts_fields(capsys: pytest.CaptureFixture[str], request_file: Any) -> None:
    result = answer(capsys, "estimate", request_file())
    assert set(result) == {
        "verdict", "binding_phase", "available_bytes", "peak_bytes", "low_bytes", "high_bytes", "phases", "notes",
    }  # fmt: skip
    assert result["available_bytes"] == 11 * GIB


def test_plan_answers_with_a_request_that_fits(capsys: pytest.CaptureFixture[str], request_file: Any) -> None:
    result = answer(capsys, "plan", request_file(batch_size=4, hires={"scale": 2.0}))
    assert set(result) == {"fits", "steps", "request", "estimate", "when_not"}
    assert result["fits"]
    assert result["steps"]
    changed = result["request"]
    assert changed["batch_size"] * changed["batch_count"] == 4


def test_simulate_agrees_with_the_estimate(capsys: pytest.CaptureFixture[str], request_file: Any) -> None:
    for total, outcome in ((24 * GIB, "completed"), (4 * GIB, "out_of_memory")):
        path = request_file(device={"total_bytes": total})
        result = answer(capsys, "simulate", path)
        assert set(result) == {"outcome", "phase", "peak_bytes", "error_text"}
        assert result["outcome"] == outcome
        verdict = answer(capsys, "estimate", path)["verdict"]
        assert (verdict == "wont_fit") == (outcome == "out_of_memory")


@pytest.mark.parametrize("vary", ["size", "batch"])
def test_fit_answers_with_the_largest(capsys: pytest.CaptureFixture[str], request_file: Any, vary: str) -> None:
    result = answer(capsys, "fit", request_file(model={"family": "sd15"}), "--vary", vary)
    assert set(result) == {"width", "height", "batch_size", "peak_bytes"}
    assert result["peak_bytes"] <= 11 * GIB


def test_devices_answers_with_the_virtual_card(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAM_GUARD_DEVICE", "RTX 3060:12GiB:free=11GiB")
    assert answer(capsys, "devices")["devices"][0] == {
        "name": "RTX 3060", "total_bytes": 12 * GIB, "free_bytes": 11 * GIB, "used_by_others_bytes": GIB,
        "source": "virtual", "uuid": None, "holders": [], "spills": False,
    }  # fmt: skip


def test_inspect_answers_for_a_file_with_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    path.write_bytes(b"PK\x03\x04" + bytes(50))
    result = answer(capsys, "inspect", str(path))
    assert (result["family"], result["components"], len(result["problems"])) == (None, [], 1)
    assert "cannot be read without running what is in it" in result["problems"][0]


def test_inspect_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"first_stage_model.x": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    for missing, problems in ((0, 0), (2, 1)):
        content = len(header).to_bytes(8, "little") + header + bytes(4 - missing)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        result = answer(capsys, "inspect", "-")
        assert [item["name"] for item in result["components"]] == ["vae"]
        assert len(result["problems"]) == problems
    monkeypatch.setattr(sys, "stdin", None)
    assert refusal(capsys, "inspect", "-").endswith("there is no standard input here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"command: got None, takes one of {COMMANDS}"),
        (["guess"], f"command: got 'guess', takes one of {COMMANDS}"),
        (["component"], "--family: got None, takes a value: this option is required"),
        ([*COMPONENT[:-1], "0"], "--height: got '0', takes a whole number from 64 to 16384"),
        ([*COMPONENT[:-1], "100000"], "--height: got '100000', takes a whole number from 64 to 16384"),
        ([*COMPONENT, "--batch", "many"], "--batch: got 'many', takes a whole number from 1 to 256"),
        ([*COMPONENT, "--cfg", "1"], "--cfg: got '1', takes one of on, off"),
        ([*COMPONENT, "--tile"], "--tile: got None, takes one argument"),
        ([*COMPONENT, "--wid", "8"], "arguments: got '--wid 8', takes what \"vram-guard --help\" lists, and no more"),
        ([*COMPONENT, "--language", "de"], "--language: got 'de', takes one of en, pt, es"),
        (
            [*COMPONENT, "--code", "diffusers", "--attention", "sub_quad"],
            "--attention: got 'sub_quad', takes sdpa, xformers, math, split: diffusers' code has no other",
        ),
        ([*COMPONENT, "--frames", "5"], "--frames: got 5, takes 1; sdxl makes pictures, not videos"),
        (
            [*COMPONENT, "--alloc-conf", "max_split_size_mb:1"],
            "--alloc-conf: got 'max_split_size_mb:1', takes a whole number above 20",
        ),
        (
            [*COMPONENT, "--family", "chroma", "--part", "controlnet"],
            "--part: got 'controlnet', takes another: there is none of chroma yet",
        ),
        (["fit", "x.json"], "--vary: got None, takes a value: this option is required"),
        (["estimate"], "REQUEST: got None, takes a JSON file with a request, or - for standard input"),
        (["inspect"], "FILE: got None, takes the path of a model file"),
        (["inspect", os.sep], f"FILE: got {os.sep!r}, takes a model file; it is a folder, not a model file"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert refusal(capsys, *arguments) == message


def test_an_unknown_family_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "component", "--family", "sd99")
    assert message.startswith("--family: got 'sd99', takes one of sd15, sd21, sdxl, ")


@pytest.mark.parametrize("command", [["estimate"], ["plan"], ["simulate"], ["fit", "--vary", "size"]])
def test_a_family_that_is_not_ready_is_refused_by_every_command(
    capsys: pytest.CaptureFixture[str], request_file: Any, command: list[str]
) -> None:
    message = refusal(capsys, *command, request_file(model={"family": "flux1"}))
    assert message.startswith("model.family: got 'flux1', takes one that is ready; ")


def test_a_family_that_the_host_does_not_run_is_refused(capsys: pytest.CaptureFixture[str], request_file: Any) -> None:
    message = refusal(capsys, "estimate", request_file(host="diffusers", model={"family": "loaded"}))
    assert message.startswith("model.family: got 'loaded', takes one that is ready; ")


@pytest.mark.parametrize("command", ["estimate", "plan", "simulate"])
def test_a_word_that_no_script_of_diffusers_has_is_refused(
    capsys: pytest.CaptureFixture[str], request_file: Any, command: str
) -> None:
    message = refusal(capsys, command, request_file(host="diffusers", host_args=["--medvram"]))
    assert message.startswith("host_args: got '--medvram', takes calls of a diffusers script: --to-cuda, ")


def test_inspect_reads_gguf(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03" + bytes(50))
    assert answer(capsys, "inspect", str(path)) == {
        "family": None, "components": [], "problems": ["the file holds no tensors"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": {"total_bytes": 0}}, "device.total_bytes: got 0, takes a whole number from 1 to "),
        ({"width": "1024"}, "width: got '1024', takes a whole number from 64 to 16384"),
        ({"widht": 1}, "widht: got 1, takes no such field; request has device, model, "),
    ],
)
def test_a_request_that_is_not_usable_names_the_field(
    capsys: pytest.CaptureFixture[str], request_file: Any, changes: dict[str, Any], message: str
) -> None:
    assert refusal(capsys, "estimate", request_file(**changes)).startswith(message)


def test_a_virtual_card_that_is_none_is_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAM_GUARD_DEVICE", "RTX:0")
    assert refusal(capsys, "devices").startswith("VRAM_GUARD_DEVICE (total): got '0', takes more than 0 bytes")


def test_a_fault_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr(devices, "run", fail)
    assert main(["devices"]) == run.OWN_FAULT
    assert capsys.readouterr().err == (
        "vram-guard: a fault of VRAM Guard, please report it: ZeroDivisionError: division by zero\n"
    )
    monkeypatch.setenv("VRAM_GUARD_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["devices"])


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False, timeout=60, **options
    )


def test_the_module_runs_and_knows_its_version() -> None:
    done = python("-m", "lib_vram", "--version")
    assert (done.returncode, done.stdout.decode().strip(), done.stderr) == (0, __version__, b"")


def test_binary_rubbish_on_standard_input_is_no_traceback() -> None:
    done = python("-m", "lib_vram", "estimate", "-", input=bytes(range(256)))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_a_list_of_requests_is_simulated_in_one_process() -> None:
    request = {"model": {"family": "sd15"}, "width": 512, "height": 512, "device": {"total_bytes": 4 * 1024**3}}
    large = {**request, "width": 2048, "height": 2048}
    told = json.loads(
        python("-m", "lib_vram", "simulate", "-", "--json", input=json.dumps([large, request]).encode()).stdout
    )
    assert [run["outcome"] for run in told["runs"]] == ["out_of_memory", "completed"]
    assert (told["outcome"], told["fits_alone"], told["in_pieces"]) == ("completed", True, False)
    text = python("-m", "lib_vram", "simulate", "-", input=json.dumps([large, request]).encode()).stdout.decode()
    assert [line[:3] for line in text.splitlines() if line[:1].isdigit()] == ["1. ", "2. "]


@pytest.mark.parametrize("rubbish", [b"[]", b"[{}]", b"[1]", b"[" + b"{}," * 32 + b"{}]"])
def test_a_list_that_is_not_one_of_requests_is_refused(rubbish: bytes) -> None:
    done = python("-m", "lib_vram", "simulate", "-", input=rubbish)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


@pytest.mark.skipif(os.name == "nt", reason="pipes break otherwise on Windows")
def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "lib_vram", "devices"],
        cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_command_line_brings_neither_torch_nor_gradio() -> None:
    code = (
        "import sys, lib_vram.commands.run as run; run.main(['devices']); print({'torch', 'gradio'} & set(sys.modules))"
    )
    assert python("-c", code).stdout.decode().splitlines()[-1] == "set()"


def test_the_command_line_is_loaded_within_150_ms() -> None:
    code = "import time; began = time.process_time(); import lib_vram.commands.run; print(time.process_time() - began)"
    assert min(float(python("-c", code).stdout) for _ in range(3)) < 0.150
