"""History: what each run took beside what was computed, failures and what rescued them, what changes cost in time.

The section's frame is the same whatever happens; the page's script asks for the inside and puts it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lib_vram import units
from lib_vram.learning.durations import Cost, costs
from lib_vram.learning.record import PhaseRecord, Rescue, Run
from lib_vram.learning.summary import PhaseSummary, by_phase, misses
from lib_vram.message import Message, render
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.history_picture import picture, share
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections.history_failures import rescues as failures
from lib_vram.ui.sections.history_words import Words, asked_for, figures, heading, moment, outcome_of, row, together

NAME = "history"
MOST_RUNS = 20
"""Runs in the list; the files of *Export* have all."""
UNFOLDED_RUNS = 8
"""Of these, those that are seen without opening anything, and passed by whoever goes on with the keyboard."""
_SIGNS = {"done": "✓", "stopped": "–", "failed": "✕"}


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame: the inside while it is read, and the buttons, which stay as they are."""
    words = Words(language)
    place = tag("div", tag("p", words("waiting"), class_="vg-soft"), data_history=True)
    buttons = [_button(words, name) for name in ("json", "csv", "copy")]
    off = guard.host.is_open_to_others()
    if not off:
        buttons.append(_button(words, "erase"))
    answer = tag("p", data_history_answer=True, role="status", aria_live="polite", tabindex="-1")
    label = tag("label", words("row_label"), for_="vram_guard_row", class_="vg-label")
    text = tag("textarea", id="vram_guard_row", class_="vg-paste", rows=4, readonly=True, spellcheck="false")
    parts = [place, tag("div", *buttons, class_="vg-buttons"), _ask(words), answer]
    if off:
        parts.append(tag("p", words("off_open"), class_="vg-soft"))
    return join(*parts, tag("div", label, text, hidden=True, data_history_row=True))


def inside(runs: Sequence[Run], rescues: Sequence[Rescue], note: Message | None, language: str) -> Html:
    """Return the figures of ``runs``, oldest first; those of the machine that ran last make the summary."""
    words = Words(language)
    said = tag("p", render(note, language), class_="vg-history-note") if note is not None else Html("")
    if not runs:
        return join(said, tag("p", words("none_yet"), class_="vg-soft"))
    here = [run for run in runs if run.machine.key == runs[-1].machine.key]
    missed = misses(here)
    parts = [said, tag("p", _summary(here, words), class_="vg-summary")]
    if missed:
        parts.append(picture(missed, language))
    parts += [_phases(by_phase(here), words), _runs(runs, words), failures(runs, rescues, words)]
    return join(*parts, _costs(costs(here), words))


def _button(words: Words, name: str) -> Html:
    return tag("button", words(f"button_{name}"), type="button", class_="vg-button", data_history_do=name)


def _ask(words: Words) -> Html:
    """Return what is said before everything is erased, with the button that really does it."""
    go = tag("button", words("button_erase_now"), type="button", class_="vg-button", data_history_do="erase-now")
    cancel = tag("button", words("button_cancel"), type="button", class_="vg-button", data_history_do="cancel")
    return tag(
        "div", tag("p", words("ask_erase")), tag("div", go, cancel, class_="vg-buttons"), hidden=True, role="group",
        aria_label=words("button_erase"), data_history_ask=True,
    )  # fmt: skip


def _summary(here: Sequence[Run], words: Words) -> str:
    text = words("summary_one") if len(here) == 1 else words("summary", runs=len(here))
    shown = misses(here)[-MOST_RUNS:]
    if len(shown) > 1:
        text += " " + words("summary_inside", inside=sum(item.is_inside for item in shown), runs=len(shown))
    return text


def _phases(found: Sequence[PhaseSummary], words: Words) -> Html:
    if not found:
        return Html("")
    names = ("head_phase", "head_model", "head_runs", "head_computed", "head_measured", "head_off", "head_band")
    rows = [
        row(
            words.phase(item.phase), item.family, str(item.runs), units.human(item.computed_bytes),
            units.human(item.measured_bytes), share(item.off),
            words("not_known") if item.half is None else words("plus_minus", percent=f"{100 * item.half:.1f}"),
        )
        for item in found
    ]  # fmt: skip
    title = words("phases_title")
    return join(heading(title), figures(title, words("phases_caption"), [words(name) for name in names], rows))


def _runs(runs: Sequence[Run], words: Words) -> Html:
    newest = list(runs)[: -MOST_RUNS - 1 : -1]
    items = [tag("li", _run(run, words)) for run in newest]
    shown = tag("ul", *items[:UNFOLDED_RUNS], class_="vg-history-runs")
    older = items[UNFOLDED_RUNS:]
    if older:
        more = tag("summary", words("runs_older_one") if len(older) == 1 else words("runs_older", runs=len(older)))
        folded = tag("details", more, tag("ul", *older, class_="vg-history-runs"), data_run="older")
        return join(heading(words("runs_title")), shown, folded)
    return join(heading(words("runs_title")), shown)


def _run(run: Run, words: Words) -> Html:
    """Return one run in a line that opens to its phases."""
    measured = None if run.is_rescued else run.measured_bytes  # then it went on another way than was computed
    about = [asked_for(run.request), f"{run.seconds:.1f} s" if run.seconds < 10 else f"{run.seconds:.0f} s"]
    if run.expected_bytes:
        about.append(words("run_computed", size_bytes=run.expected_bytes))
    if measured is not None and run.expected_bytes:
        about.append(f"{words('run_measured', size_bytes=measured)} ({share(measured / run.expected_bytes - 1)})")
    sign = tag("span", _SIGNS[run.outcome], class_="vg-sign", aria_hidden="true")
    outcome = tag("span", outcome_of(run, words), class_="vg-word")
    line = tag(
        "summary", sign, outcome, moment(run.at), tag("span", together(" · ".join(about)), class_="vg-history-about")
    )
    names = ("head_phase", "head_computed", "head_measured", "head_off", "head_reserved", "head_device", "head_time")
    rows = [_phase_row(record, words) for record in run.phases]
    table = figures(asked_for(run.request), "", [words(name) for name in names], rows)
    return tag("details", line, table, class_="vg-history-run", data_run=f"{run.at:.3f}", data_outcome=run.outcome)


def _phase_row(record: PhaseRecord, words: Words) -> Html:
    predicted, peak = record.predicted, record.peak
    measured, off = words.size(peak.allocated_bytes), ""
    if peak.allocated_bytes is not None and not peak.is_exact:
        measured = words("at_least", size_bytes=peak.allocated_bytes)
    elif peak.allocated_bytes is not None and predicted is not None:
        off = share(peak.allocated_bytes / max(1, predicted.allocated_bytes) - 1)
    return row(
        words.phase(record.name), words.size(predicted.allocated_bytes if predicted else None), measured, off,
        words.size(peak.reserved_bytes), words.size(peak.device_bytes),
        words("seconds", seconds=f"{record.seconds:.1f}"),
    )  # fmt: skip


def _costs(found: Sequence[Cost], words: Words) -> Html:
    if not found:
        return Html("")
    rows = [
        row(
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
    return join(heading(title), figures(title, "", [words(name) for name in names], rows))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value or "–")
