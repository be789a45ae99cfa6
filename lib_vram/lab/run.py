"""Generate in the Lab: the guard's hook, then every phase on the virtual card, then drawn pictures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from lib_vram.errors import BadInput, Refused
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.estimate.result import Estimate, phase_name
from lib_vram.estimate.simulate import PhaseOutOfMemory, PhaseRun
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabRun
from lib_vram.lab import rescue
from lib_vram.lab.drawing import draw
from lib_vram.message import render, say
from lib_vram.request import Mode, Request
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Words

SECONDS_A_PHASE = 0.25
"""The replay itself takes milliseconds; so long is a phase shown, that a person sees which one it is."""


@dataclass(frozen=True)
class State:
    """What the page shows at one moment of a generation."""

    progress_html: str = ""
    images: list[Image.Image] = field(default_factory=list)
    infotext_html: str = ""
    log_html: str = ""


def form_of(values: Mapping[str, Any], units: int) -> dict[str, Any]:
    """Return the form that the page's script would send for the values of the components."""
    form = {name: value for name, value in values.items() if not name.startswith("unit")}
    form["controlnets"] = [
        {
            "enabled": bool(values.get(f"unit{unit}_enabled")),
            "model": values.get(f"unit{unit}_model"),
            "low_vram": bool(values.get(f"unit{unit}_low_vram")),
        }
        for unit in range(units)
    ]
    if form.get("refiner_checkpoint") == "None":
        form["refiner_checkpoint"] = ""
    return form


def generate(guard: Guard, tab: Mode, form: Mapping[str, Any], run_argument: str, language: str) -> Iterator[State]:
    """Run one generation and yield what to show after each step; errors are shown as the WebUIs show them."""
    try:
        run = LabRun(guard.host.request_from_form(tab, form))
        guard.before_process(run, [run_argument, False, 768, False])
        run.init()
        with guard.host.working(run.request), _followed(guard, run):
            yield from _phases(guard, run, form, language)
    except (Refused, BadInput) as refused:
        yield State(log_html=_error(type(refused).__name__, str(refused)))


@contextmanager
def _followed(guard: Guard, run: LabRun) -> Iterator[None]:
    """Tell the guard of a run that a person stops, or that breaks, as the WebUIs' hooks and records do."""
    try:
        yield
    except GeneratorExit:
        guard.learned.ended(run, stopped=True)
        guard.session.ended(run)
        raise
    except Exception as error:
        guard.session.failed(f"{type(error).__name__}: {error}", run)
        raise


def _phases(guard: Guard, run: LabRun, form: Mapping[str, Any], language: str) -> Iterator[State]:
    expected = estimate(run.request)
    done: list[PhaseRun] = []
    yield State(_progress(expected, done, language))
    try:
        for phase in rescue.phases(run, guard.session, language, rescues=bool(form.get("lab_rescue"))):
            time.sleep(SECONDS_A_PHASE)
            done.append(phase)
            _reach(guard, expected, phase)
            guard.learned.measured(phase.name, phase.allocated_peak_bytes, phase.reserved_peak_bytes, CONTEXT_BYTES)
            guard.session.phase(phase.name)
            yield State(_progress(expected, done, language))
    except PhaseOutOfMemory as error:
        guard.session.failed(error.error_text, run)
        stopped = _progress(expected, done, language, failed=error.phase)
        yield State(stopped, log_html=join(_comments(run), _error("OutOfMemoryError", error.error_text)))
        return
    guard.learned.ended(run)
    guard.session.ended(run)
    peak_bytes = max((phase.allocated_peak_bytes for phase in done), default=0) + _context_bytes(expected)
    text = say("lab.done", peak_bytes=peak_bytes, available_bytes=expected.available_bytes)
    yield State(
        _progress(expected, done, language),
        pictures(run.request),
        join(_infotext(run, form), tag("p", render(text, language), class_="lab-hint")),
        _comments(run),
    )


def _reach(guard: Guard, expected: Estimate, phase: PhaseRun) -> None:
    """Let the virtual card hold what it holds at the peak of ``phase``."""
    reach = getattr(guard.host, "reach", None)
    if reach is not None:
        parts = next((item.resident_parts for item in expected.phases if item.name == phase.name), ())
        reach(phase.allocated_peak_bytes, phase.reserved_peak_bytes, parts)


def _context_bytes(expected: Estimate) -> int:
    """The driver's part, which torch does not count and the estimate does."""
    parts = (dict(phase.resident_parts).get("context", 0) for phase in expected.phases)
    return max(parts, default=0)


def _progress(expected: Estimate, done: list[PhaseRun], language: str, failed: str | None = None) -> Html:
    """The phases in order: which are done, which one runs or failed, which are still to come."""
    words = Words(language)
    items, running = [], failed is None
    for phase in expected.phases:
        name = phase_name(phase.name, words.language)
        if any(item.name == phase.name for item in done):
            items.append(tag("li", f"✓ {name}", class_="lab-done"))
        elif phase.name == failed:
            items.append(tag("li", f"✕ {name}", class_="lab-failed"))
        elif running:
            items.append(tag("li", f"… {name}", class_="lab-running"))
            running = False
        else:
            items.append(tag("li", name, class_="lab-waiting"))
    return tag("ol", *items, class_="lab-progress", role="status")


def _error(kind: str, text: str) -> Html:
    return tag("div", f"{kind}: {text}", class_="error", role="alert")


def _comments(run: LabRun) -> Html:
    return join(*(tag("p", text, class_="lab-comment") for text in run.comments))


def _infotext(run: LabRun, form: Mapping[str, Any]) -> Html:
    """The line under the pictures, as the WebUIs write it into them."""
    request = run.request
    parts = {
        "Steps": form.get("steps", 20),
        "Sampler": form.get("sampler", ""),
        "CFG scale": f"{request.cfg_scale:g}",
        "Seed": 1,
        "Size": f"{request.width}x{request.height}",
        "Model": str(form.get("checkpoint", "")).removesuffix(".safetensors"),
        "Batch size": request.batch_size if request.batch_size > 1 else "",
        "Hires upscale": f"{request.hires.scale:g}" if request.hires else "",
        **run.extra_generation_params,
    }
    line = ", ".join(f"{name}: {value}" for name, value in parts.items() if value != "")
    prompt = str(form.get("prompt", ""))
    return tag("div", tag("p", prompt), tag("p", line), class_="lab-infotext")


def pictures(request: Request) -> list[Image.Image]:
    """Return as many drawn pictures as the request makes, in their final size."""
    width, height = request.hires_size() or (request.width, request.height)
    return [draw(width // 8 * 8, height // 8 * 8, seed) for seed in range(1, request.images + 1)]
