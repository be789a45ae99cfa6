import pytest

from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.lab import run

FORM = {
    "lab_total_gib": 12,
    "lab_others_gib": 1,
    "lab_mode": "Ask",
    "checkpoint": "sd_xl_base_1.0.safetensors",
    "width": 1024,
    "height": 1024,
    "batch_size": 1,
    "batch_count": 1,
    "prompt": "a <b>boat</b>",
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(run, "SECONDS_A_PHASE", 0)


def generate(argument="", language="en", **changes):
    form = {**FORM, **changes}
    return list(run.generate(Guard(LabHost()), "txt2img", form, argument, language))


def test_a_generation_that_fits_passes_each_phase_and_draws_its_pictures():
    states = generate(batch_size=2, batch_count=2, width=512, height=768)
    assert "… text encoding" in states[0].progress_html
    assert states[-1].progress_html.count("✓") == 3
    assert [image.size for image in states[-1].images] == [(512, 768)] * 4
    assert "Size: 512x768" in states[-1].infotext_html
    assert "a &lt;b&gt;boat&lt;/b&gt;" in states[-1].infotext_html
    assert states[-1].log_html == ""


def test_hires_pictures_have_the_final_size():
    assert [image.size for image in generate(width=512, height=512, enable_hr=True, hr_scale=1.5)[-1].images] == [
        (768, 768)
    ]


def test_what_does_not_fit_really_runs_out_in_the_phase_that_was_named():
    last = generate("run", batch_size=16)[-1]
    assert "✕ sampling" in last.progress_html
    assert last.log_html.startswith(
        '<div class="error" role="alert">OutOfMemoryError: CUDA out of memory. Tried to allocate '
    )
    assert last.images == []


def test_in_ask_mode_a_run_that_nobody_asked_about_is_warned_of():
    log = generate(batch_size=16)[-1].log_html
    assert "VRAM Guard" in log
    assert "CUDA out of memory" in log


def test_in_fix_mode_the_run_is_fixed_and_the_infotext_says_so():
    last = generate("fix", batch_size=16)[-1]
    assert len(last.images) == 16
    assert "VRAM Guard: batch 16x1 -&gt; 8x2" in last.infotext_html


def test_a_refusal_is_shown_as_the_webuis_show_an_error():
    assert generate("refuse", batch_size=16)[-1].log_html.startswith('<div class="error" role="alert">Refused: ')


def test_a_field_that_cannot_be_used_is_an_error_and_not_a_crash():
    assert "BadInput: width: got 0" in generate(width=0)[-1].log_html


def test_the_form_of_the_components_is_that_of_the_page():
    values = {
        "width": 512,
        "unit0_enabled": True,
        "unit0_model": "x",
        "unit0_low_vram": False,
        "refiner_checkpoint": "None",
    }
    assert run.form_of(values, 1) == {
        "width": 512,
        "refiner_checkpoint": "",
        "controlnets": [{"enabled": True, "model": "x", "low_vram": False}],
    }


def test_a_generation_that_is_stopped_leaves_nothing_open():
    guard = Guard(LabHost())
    steps = run.generate(guard, "txt2img", FORM, "", "en")
    next(steps)
    steps.close()
    assert not guard.session._open
    assert guard.session.last_failure is None
    assert not guard.host._at_work


def test_a_generation_that_breaks_is_a_failure_of_the_session(monkeypatch):
    guard = Guard(LabHost())
    monkeypatch.setattr(run, "pictures", lambda request: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(run.generate(guard, "txt2img", FORM, "", "en"))
    monkeypatch.setattr(run.rescue, "simulate_steps", lambda request: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(run.generate(guard, "txt2img", FORM, "", "en"))
    assert guard.session.last_failure.text == "ZeroDivisionError: division by zero"
    assert not guard.session._open
