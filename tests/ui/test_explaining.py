"""The sections that explain a failure: everything pasted is escaped, and the cures have the host's own names."""

from __future__ import annotations

import pytest

from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost, LabRun
from lib_vram.message import LANGUAGES
from lib_vram.ui import sections
from lib_vram.ui.sections import diagnosis, symptoms

EVIL = 'CUDA out of memory. Tried to allocate 2.00 GiB <img src=x onerror="alert(1)">'


@pytest.fixture
def failed_guard():
    guard = Guard(LabHost())
    run = LabRun(guard.host.request_from_form("txt2img", {"width": 1024, "height": 1024, "batch_size": 4}))
    guard.session.started(run, run.request)
    guard.session.failed(EVIL, run)
    return guard


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_was_pasted_is_escaped(language):
    data = diagnosis.answer(Guard(LabHost()), {"text": EVIL, "page": True}, language)
    assert data["kind"] == "gpu_memory"
    assert "<img" not in data["html"]
    assert "&lt;img" in data["html"]


def test_without_a_text_the_last_failure_is_explained(failed_guard):
    assert diagnosis.answer(failed_guard, {"text": ""}, "en")["numbers"]["requested_bytes"] == 2 * 1024**3
    assert "<img" not in sections.all_html(failed_guard, "en")["failure"]


def test_without_a_failure_it_says_so():
    data = diagnosis.answer(Guard(LabHost()), {"text": ""}, "en")
    assert (data["kind"], data["fixes"]) == ("unknown", [])


def test_the_rows_of_the_last_failure_are_lit_with_their_evidence(failed_guard):
    lit = dict(symptoms.lit(failed_guard))
    assert "sampling-start" in lit
    assert str(lit["batch"]) == "The run that failed had batch size 4."


def test_a_host_is_given_its_own_names():
    guard = Guard(LabHost())
    assert "--medvram" in symptoms.html(guard, "en")
    guard.host._host = "forge"
    assert "GPU Weights" in symptoms.html(guard, "en")
    assert "Start with --medvram" not in symptoms.html(guard, "en")
