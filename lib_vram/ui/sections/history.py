"""History: what each run took beside what was computed, failures and what rescued them, what changes cost in time.

The section's frame is the same whatever happens; the page's script asks for the inside and puts it in place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lib_vram import units
from lib_vram.learning.durations import Cost, costs
from lib_vram.learning.record import PhaseRecord, Rescue, Run
from lib_vram.learning.summary import PhaseSummary, by_phase, misses
from lib_vram.message import Message, Value, render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.history_picture import picture, share
from lib_vram.ui.html import Html, join, tag

NAME = "history"
MOST_RUNS = 20
"""Runs in the list; the files of *Export* have all."""
_SIGNS = {"done": "✓", "stopped": "–", "failed": "✕"}


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame: the inside while it is read, and the buttons, which stay as they are."""
    words = _Words(language)
    place = tag("div", tag("p", words("waiting"), class_="vg-soft"), data_history=True)
    buttons = [_button(words, name) for name in ("json", "csv", "copy")]
    off = guard.host.is_open_to_others()
    if not off:
        buttons.append(_button(words, "erase"))
    answer = tag("p", data_history_answer=True, role="status", aria_live="polite", tabindex="-1")
    label = tag("label", words("row_label"), for_="vram_guard_row", class_="vg-label")
    row = tag("textarea", id="vram_guard_row", class_="vg-paste", rows=4, readonly=True, spellcheck="false")
    parts = [place, tag("div", *buttons, class_="vg-buttons"), _ask(words), answer]
    if off:
        parts.append(tag("p", words("off_open"), class_="vg-soft"))
    return join(*parts, tag("div", label, row, hidden=True, data_history_row=True))


def inside(runs: Sequence[Run], rescues: Sequence[Rescue], note: Message | None, language: str) -> Html:
    """Return the figures of ``runs``, oldest first; those of the machine that ran last make the summary."""
    words = _Words(language)
    said = tag("p", render(note, language), class_="vg-history-note") if note is not None else Html("")
    if not runs:
        return join(said, tag("p", words("none_yet"), class_="vg-soft"))
    here = [run for run in runs if run.machine.key == runs[-1].machine.key]
    missed = misses(here)
    parts = [said, tag("p", _summary(here, words), class_="vg-summary")]
    if missed:
        parts.append(picture(missed, language))
    parts += [_phases(by_phase(here), words), _runs(runs, words), _rescues(runs, rescues, words)]
    return join(*parts, _costs(costs(here), words))


class _Words:
    """The sentences of the area ``learning`` in one language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, name: str, **values: Value) -> str:
        return render(say(f"learning.{name}", **values), self.language)

    def phase(self, name: str) -> str:
        """Return what people call a phase."""
        found = sentence(f"phase.{name}", self.language)
        return name if found == f"phase.{name}" else found

    def size(self, size_bytes: int | None) -> str:
        """Return a size, or that it is not known."""
        return self("not_known") if size_bytes is None else units.human(size_bytes)


def _button(words: _Words, name: str) -> Html:
    return tag("button", words(f"button_{name}"), type="button", class_="vg-button", data_history_do=name)


def _ask(words: _Words) -> Html:
    """Return what is said before everything is erased, with the button that really does it."""
    go = tag("button", words("button_erase_now"), type="button", class_="vg-button", data_history_do="erase-now")
    cancel = tag("button", words("button_cancel"), type="button", class_="vg-button", data_history_do="cancel")
    return tag(
        "div", tag("p", words("ask_erase")), tag("div", go, cancel, class_="vg-buttons"), hidden=True, role="group",
        aria_label=words("button_erase"), data_history_ask=True,
    )  # fmt: skip


def _summary(here: Sequence[Run], words: _Words) -> str:
    text = words("summary_one") if len(here) == 1 else words("summary", runs=len(here))
    shown = misses(here)[-MOST_RUNS:]
    if len(shown) > 1:
        text += " " + words("summary_inside", inside=sum(item.is_inside for item in shown), runs=len(shown))
    return text


def _title(text: str) -> Html:
    return tag("h3", text, class_="vg-history-title")


def _table(title: str, caption: str, heads: Sequence[str], rows: Sequence[Html]) -> Html:
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    table = tag("table", tag("caption", caption) if caption else "", head, tag("tbody", *rows), class_="vg-table")
    return tag("div", table, role="region", aria_label=title, tabindex=0, class_="vg-history-table")


def _row(first: str, *cells: str) -> Html:
    return tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in cells))


def _phases(found: Sequence[PhaseSummary], words: _Words) -> Html:
    if not found:
        return Html("")
    names = ("head_phase", "head_model", "head_runs", "head_computed", "head_measured", "head_off", "head_band")
    rows = [
        _row(
            words.phase(item.phase), item.family, str(item.runs), units.human(item.computed_bytes),
            units.human(item.measured_bytes), share(item.off),
            words("not_known") if item.half is None else words("plus_minus", percent=f"{100 * item.half:.1f}"),
        )
        for item in found
    ]  # fmt: skip
    title = words("phases_title")
    return join(_title(title), _table(title, words("phases_caption"), [words(name) for name in names], rows))


def _runs(runs: Sequence[Run], words: _Words) -> Html:
    newest = list(runs)[: -MOST_RUNS - 1 : -1]
    items = [tag("li", _run(run, words)) for run in newest]
    return join(_title(words("runs_title")), tag("ul", *items, class_="vg-history-runs"))


def _run(run: Run, words: _Words) -> Html:
    """Return one run in a line that opens to its phases."""
    measured = run.measured_bytes
    about = [asked_for(run.request), f"{run.seconds:.1f} s" if run.seconds < 10 else f"{run.seconds:.0f} s"]
    if run.expected_bytes:
        about.append(words("run_computed", size_bytes=run.expected_bytes))
    if measured is not None and run.expected_bytes:
        about.append(f"{words('run_measured', size_bytes=measured)} ({share(measured / run.expected_bytes - 1)})")
    sign = tag("span", _SIGNS[run.outcome], class_="vg-sign", aria_hidden="true")
    outcome = tag("span", _outcome(run, words), class_="vg-word")
    line = tag("summary", sign, outcome, _when(run.at), tag("span", " · ".join(about), class_="vg-history-about"))
    names = ("head_phase", "head_computed", "head_measured", "head_off", "head_reserved", "head_device", "head_time")
    rows = [_phase_row(record, words) for record in run.phases]
    table = _table(asked_for(run.request), "", [words(name) for name in names], rows)
    return tag("details", line, table, class_="vg-history-run", data_run=f"{run.at:.3f}", data_outcome=run.outcome)


def _outcome(run: Run, words: _Words) -> str:
    if run.fault is not None and run.is_rescued:
        return words("outcome_rescued", phase=words.phase(run.fault.phase))
    if run.fault is not None:
        return words("failed_simple", phase=words.phase(run.fault.phase))
    if run.outcome == "failed" and run.error:
        return words("failed_other", kind=run.error.replace("_", " "))
    return words(f"outcome_{run.outcome}")


def _when(at: float) -> Html:
    """Return a moment: in the server's time until the page's script has put it into the reader's."""
    exact = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return tag("time", time.strftime("%Y-%m-%d %H:%M", time.localtime(at)), datetime=exact)


def asked_for(request: Any) -> str:
    """Return what was asked for, as people say it: ``sdxl 1024×1024 · batch 2×3 · Hires. fix ×2``."""
    parts = [f"{(request.get('model') or {}).get('family')} {request.get('width')}×{request.get('height')}"]
    batch, count = request.get("batch_size") or 1, request.get("batch_count") or 1
    if batch > 1 or count > 1:
        parts.append(f"batch {batch}×{count}")
    if request.get("hires"):
        parts.append(f"Hires. fix ×{request['hires'].get('scale'):g}")
    if (request.get("vae") or {}).get("tiled"):
        parts.append("Tiled VAE")
    if request.get("controlnets"):
        parts.append(f"ControlNet ×{len(request['controlnets'])}")
    return " · ".join(parts)


def _phase_row(record: PhaseRecord, words: _Words) -> Html:
    predicted, peak = record.predicted, record.peak
    measured, off = words.size(peak.allocated_bytes), ""
    if peak.allocated_bytes is not None and not peak.is_exact:
        measured = words("at_least", size_bytes=peak.allocated_bytes)
    elif peak.allocated_bytes is not None and predicted is not None:
        off = share(peak.allocated_bytes / max(1, predicted.allocated_bytes) - 1)
    return _row(
        words.phase(record.name), words.size(predicted.allocated_bytes if predicted else None), measured, off,
        words.size(peak.reserved_bytes), words.size(peak.device_bytes),
        words("seconds", seconds=f"{record.seconds:.1f}"),
    )  # fmt: skip


def _rescues(runs: Sequence[Run], rescues: Sequence[Rescue], words: _Words) -> Html:
    """Return every failure and rescue, the newest first."""
    events = [(run.at, asked_for(run.request), _outcome(run, words)) for run in runs if run.outcome == "failed"]
    events += [(item.at, item.family, _rescue(item, words)) for item in rescues]
    title = words("rescues_title")
    if not events:
        return join(_title(title), tag("p", words("rescues_none"), class_="vg-soft"))
    newest = sorted(events, key=lambda item: item[0], reverse=True)[:MOST_RUNS]
    rows = [
        tag("tr", tag("th", _when(at), scope="row"), tag("td", what), tag("td", about)) for at, about, what in newest
    ]
    heads = [words(name) for name in ("head_when", "head_what", "head_model")]
    return join(_title(title), _table(title, "", heads, rows))


def _rescue(item: Rescue, words: _Words) -> str:
    action = words("rescue_again") if item.action == "again" else _named(item.action, words)
    failed = words("failed_simple", phase=words.phase(item.phase))
    parts = [failed, words("rescue_done" if item.is_rescued else "rescue_failed", action=action)]
    if item.images:
        parts.append(words("images_one") if item.images == 1 else words("images_many", images=item.images))
    if item.seconds is not None:
        parts.append(words("seconds", seconds=f"{item.seconds:.1f}"))
    return "; ".join(parts)


def _named(action: str, words: _Words) -> str:
    """Return the words for a change, without its figures, which are not kept; what has no words says itself."""
    key = f"learning.cost_{action}"
    text = sentence(key, words.language)
    return action if text == key else text.partition(" {")[0]


def _costs(found: Sequence[Cost], words: _Words) -> Html:
    if not found:
        return Html("")
    rows = [
        _row(
            words(f"cost_{item.lever}", before=_value(item.before), after=_value(item.after)),
            asked_for(item.run.request),
            words("per_image", seconds=f"{item.before_known.seconds:.1f}"),
            words("per_image", seconds=f"{item.after_known.seconds:.1f}"), share(item.share),
            f"{item.before_known.runs} + {item.after_known.runs}",
        )
        for item in found
    ]  # fmt: skip
    names = ("head_change", "head_model", "head_without", "head_with", "head_share", "head_runs")
    title = words("costs_title")
    return join(_title(title), _table(title, "", [words(name) for name in names], rows))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value or "–")
