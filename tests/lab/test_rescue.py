"""A phase that really runs out on the virtual card is run again with less, and the generation ends well."""

from __future__ import annotations

import pytest

from lib_vram.estimate.simulate import simulate
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.lab import run

FORM = {
    "lab_total_gib": 12, "lab_others_gib": 1, "lab_mode": "Ask", "lab_rescue": True,
    "checkpoint": "sd_xl_base_1.0.safetensors", "width": 1024, "height": 1024, "batch_size": 1, "batch_count": 1,
}  # fmt: skip

RUNS_OUT = {
    "sampling": {"batch_size": 16},
    "vae_decode": {"lab_total_gib": 8, "lab_others_gib": 0.2, "lab_vae_dtype": "fp32"},
    "hires_upscale": {"lab_total_gib": 16, "enable_hr": True, "hr_scale": 2.0, "hr_upscaler": "Lanczos"},
    "hires_sampling": {"enable_hr": True, "hr_scale": 2.0, "batch_size": 4, "vae_tiled": True, "vae_tile_size": 512},
}
"""What to ask for so that the phase, and no phase before it, does not fit."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(run, "SECONDS_A_PHASE", 0)


def generate(**changes):
    return list(run.generate(Guard(LabHost()), "txt2img", {**FORM, **changes}, "run", "en"))


@pytest.mark.parametrize("phase", RUNS_OUT)
def test_a_phase_that_runs_out_is_done_again_and_the_pictures_come(phase):
    request = LabHost().request_from_form("txt2img", {**FORM, **RUNS_OUT[phase]})
    assert simulate(request).phase == phase
    last = generate(**RUNS_OUT[phase])[-1]
    assert len(last.images) == request.images
    assert f"rescued in {phase.replace('_', ' ')}; " in last.infotext_html
    assert "VRAM Guard rescued this run" in last.log_html


def test_a_start_picture_whose_encode_runs_out_is_encoded_in_tiles():
    form = {**FORM, "width": 1536, "height": 1536, "lab_total_gib": 16}
    assert simulate(LabHost().request_from_form("img2img", form)).phase == "vae_encode"
    last = list(run.generate(Guard(LabHost()), "img2img", form, "run", "en"))[-1]
    assert "rescued in vae encode; VAE tiled " in last.infotext_html


def test_phases_before_it_are_not_done_again():
    states = generate(**RUNS_OUT["vae_decode"])
    assert [state.progress_html.count("✓") for state in states] == [0, 1, 2, 3, 3]


def test_without_the_rescue_the_error_is_shown():
    last = generate(lab_rescue=False, **RUNS_OUT["sampling"])[-1]
    assert "OutOfMemoryError" in last.log_html
    assert last.images == []


def test_what_no_change_can_help_ends_with_the_error():
    last = generate(lab_total_gib=4)[-1]
    assert "OutOfMemoryError" in last.log_html
    assert "VRAM Guard could not rescue this run: text encoding had too little memory again." in last.log_html
