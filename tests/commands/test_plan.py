"""``plan --keep`` leaves alone what it names."""

from __future__ import annotations

import json

import pytest

from lib_vram.commands.run import main

GIB = 1024**3


@pytest.fixture
def request_file(tmp_path):
    path = tmp_path / "request.json"
    request = {
        "device": {"total_bytes": 8 * GIB}, "model": {"family": "sdxl"},
        "width": 1024, "height": 1024, "batch_size": 4,
    }  # fmt: skip
    path.write_text(json.dumps(request))
    return str(path)


@pytest.mark.parametrize(
    ("keep", "steps"),
    [("", ["batch_to_count", "vae_tiled"]), (" size, batch", ["cond_uncond_apart", "vae_tiled"])],
)
def test_what_is_kept_is_not_changed(capsys, request_file, keep, steps):
    assert main(["plan", request_file, "--keep", keep, "--json"]) == 0
    assert [step["id"] for step in json.loads(capsys.readouterr().out)["steps"]] == steps


def test_an_unknown_name_is_refused_in_one_line(capsys, request_file):
    assert main(["plan", request_file, "--keep", "size,colour"]) == 2
    assert capsys.readouterr().err == (
        "vram-guard: --keep: got ['size', 'colour'], takes a list of size, batch, hires, controlnet, precision\n"
    )


def test_the_estimate_of_a_plan_is_that_of_its_request(capsys, tmp_path):
    path = tmp_path / "request.json"
    request = {
        "host": "neo", "device": {"total_bytes": 12 * GIB}, "model": {"family": "flux1", "weights_dtype": "bf16"},
        "width": 1024, "height": 1024, "system": {"ram_total_bytes": 32 * GIB, "ram_free_bytes": 20 * GIB},
    }  # fmt: skip
    path.write_text(json.dumps(request))
    assert main(["plan", str(path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    path.write_text(json.dumps(plan["request"]))
    assert main(["estimate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plan["estimate"]
    assert "RAM" in plan["estimate"]["notes"][0]
