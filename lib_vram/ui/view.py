"""Results as text and HTML: the bar, the ask panel and the line after a fix. Everything is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from lib_vram.estimate.notes import ends_in_tiles
from lib_vram.estimate.result import Estimate, Verdict, phase_name
from lib_vram.guard.in_pieces import NOTE as IN_PIECES
from lib_vram.host.base import FieldWrite
from lib_vram.learning.explained import LIMIT_NOTE
from lib_vram.message import render
from lib_vram.plan.result import Plan, Step
from lib_vram.request import Request
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Words, figure, missing_figure, peak_figure

AS_SET = ("reserve_mb", "live_preview", "attention", "upscaler_tile")
"""Our own controls that leave it to the settings while they are empty or 0."""

SIGNS: dict[Verdict, str] = {"fits": "✓", "tight": "!", "wont_fit": "✕", "unknown": "?"}


def bar(estimate: Estimate, request: Request | None, language: str, *, can_fix: bool = False) -> Html:
    """Return the inside of the bar: sign and word, meter, figure, binding phase, and *Fix it for me*."""
    words = Words(language)
    children = [
        tag("span", SIGNS[estimate.verdict], class_="vg-sign", aria_hidden="true"),
        tag("span", words(f"verdict_{estimate.verdict}"), class_="vg-word"),
        meter(estimate, request),
        tag("span", *_bar_tail(estimate, words), class_="vg-tail"),
    ]
    opener = tag(
        "button", *children, type="button", class_="vg-open", aria_expanded="false", title=bar_text(estimate, language)
    )
    act = "fix" if can_fix else "free" if is_in_pieces(estimate) else None
    if act is None:
        return opener
    labels = (
        tag("span", words(f"button_{act}"), class_="vg-long"),
        tag("span", words(f"button_{act}_short"), class_="vg-short", aria_hidden="true"),
    )
    return join(opener, tag("button", *labels, type="button", class_="vg-fix", data_act=act))


def is_in_pieces(estimate: Estimate) -> bool:
    """Whether all that stands in the way is memory in pieces."""
    return any(note.key == IN_PIECES for note in estimate.notes)


def bar_text(estimate: Estimate, language: str) -> str:
    """Return the bar as one line of text: ``✕ won't fit 13.1 of 11.0 GiB · VAE decode``."""
    words = Words(language)
    head = f"{SIGNS[estimate.verdict]} {words(f'verdict_{estimate.verdict}')}"
    return f"{head} {' · '.join(_bar_parts(estimate, words))}".rstrip()


def verdict_text(estimate: Estimate, language: str) -> str:
    """Return what a screen reader is told when the verdict changes."""
    words = Words(language)
    parts = [words(f"verdict_{estimate.verdict}"), *_bar_parts(estimate, words)]
    return ", ".join(part for part in parts if part)


def _bar_parts(estimate: Estimate, words: Words) -> list[str]:
    if estimate.verdict == "unknown" or estimate.binding is None:
        return [render(note, words.language) for note in estimate.notes[:1]]
    phase = phase_name(estimate.binding.name, words.language)
    parts = [words("bar_of", need=peak_figure(estimate), available=figure(estimate.available_bytes))]
    parts.append(phase if estimate.verdict == "wont_fit" else words("bar_peak_in", phase=phase))
    if is_in_pieces(estimate):
        parts[-1] = words("bar_in_pieces")
    elif estimate.verdict == "tight":
        may_fail = any(note.key == LIMIT_NOTE for note in estimate.notes)
        parts.append(words("bar_may_fail" if may_fail else "bar_may_slow"))
    return parts


def _bar_tail(estimate: Estimate, words: Words) -> list[Html]:
    """The figure and the phase in nodes of their own, so that the narrow bar can cut the phase and keep the figure."""
    first, *rest = _bar_parts(estimate, words) or [""]
    known = estimate.verdict != "unknown"
    children = [tag("span", first, class_="vg-figure" if known else "vg-reason")]
    children += [tag("span", part, class_="vg-part") for part in rest]
    return children


def meter(estimate: Estimate, request: Request | None) -> Html:
    """Return the thin stacked meter of the binding phase: others, resident, activations, over the card's edge."""
    phase = estimate.binding
    if phase is None or request is None:
        return tag("span", class_="vg-meter vg-empty", aria_hidden="true")
    total = request.device.total_bytes
    others = max(0, total - estimate.available_bytes)
    scale = max(total, others + phase.needs_bytes, 1)
    extra = max(0, min(phase.wants_bytes, estimate.available_bytes) - phase.needs_bytes)
    sizes = {"others": others, "resident": phase.resident_bytes, "active": phase.minimum_bytes, "extra": extra}
    spans = [
        tag("span", class_=f"vg-seg vg-{name}", style=f"width:{100 * size / scale:.1f}%")
        for name, size in sizes.items()
        if size > 0
    ]
    if others + phase.needs_bytes > total:
        spans.append(tag("span", class_="vg-edge", style=f"left:{100 * total / scale:.1f}%"))
    return tag("span", *spans, class_="vg-meter", aria_hidden="true")


def ask(
    estimate: Estimate, plan: Plan | None, writes: Sequence[FieldWrite], language: str, *, spills: bool = False
) -> Html:
    """Return the inside of the ask panel: what would happen, what a fix changes, and the three buttons."""
    words = Words(language)
    fixes = plan is not None and plan.fits and bool(writes)
    parts = [
        tag("h2", words("ask_title"), class_="vg-ask-title"),
        tag("p", ask_sentence(estimate, language, spills=spills), class_="vg-ask-sentence"),
        _proposal(plan, words) if plan is not None and fixes else _no_proposal(plan, words),
        tag("p", words("ask_again"), class_="vg-ask-again"),
        _ask_buttons(words, fixes=fixes),
    ]
    return join(*parts)


def ask_sentence(estimate: Estimate, language: str, *, spills: bool = False) -> str:
    """Return one sentence: what would happen, where, and by how much."""
    words = Words(language)
    if estimate.binding is None:
        return words("phases_unknown")
    outcome = "ask_spill" if spills else "ask_retries" if ends_in_tiles(estimate) else "ask_sentence"
    return words(
        outcome,
        phase=phase_name(estimate.binding.name, words.language),
        need=peak_figure(estimate),
        available=figure(estimate.available_bytes),
        missing=missing_figure(estimate.missing_bytes),
    )


def _proposal(plan: Plan, words: Words) -> Html:
    items = [_step(step, words) for step in plan.steps]
    after = _after(plan.estimate, words)
    return join(
        tag("p", words("ask_changes"), class_="vg-ask-changes"),
        tag("ul", *items, class_="vg-steps"),
        tag("p", after, class_="vg-ask-after") if after else Html(""),
        tag("p", render(plan.takes, words.language), class_="vg-soft") if plan.takes else Html(""),
        _recipe(plan, words),
    )


def _recipe(plan: Plan, words: Words) -> Html:
    return tag("p", render(plan.recipe, words.language), class_="vg-soft") if plan.recipe else Html("")


def _step(step: Step, words: Words) -> Html:
    cost = tag("span", words(f"cost_{step.costs}"), class_=f"vg-cost vg-cost-{step.costs}")
    return tag("li", tag("span", render(step.text, words.language), class_="vg-step-text"), cost)


def _no_proposal(plan: Plan | None, words: Words) -> Html:
    when_not = render(plan.when_not, words.language) if plan and plan.when_not else words("ask_no_fix")
    said = tag("p", when_not, class_="vg-ask-when-not")
    return join(said, _recipe(plan, words)) if plan else said


def _ask_buttons(words: Words, *, fixes: bool) -> Html:
    buttons = [
        tag("button", words("button_run"), type="button", class_="vg-button", data_act="run"),
        tag("button", words("button_cancel"), type="button", class_="vg-button", data_act="cancel"),
    ]
    if fixes:
        fix = tag("button", words("button_fix"), type="button", class_="vg-button vg-primary", data_act="fix-run")
        buttons.insert(0, fix)
    return tag("div", *buttons, class_="vg-buttons")


def _changes(writes: Sequence[FieldWrite], words: Words) -> str:
    """Name what was changed; the same field of several units, such as ``controlnet_low_vram:1``, is named once."""
    return ", ".join(dict.fromkeys(_change(write, words) for write in writes))


def _change(write: FieldWrite, words: Words) -> str:
    field = write.field.partition(":")[0]
    as_set = write.previous is None or (field in AS_SET and write.previous in ("", 0))
    return words(
        "change_set" if as_set else "change",
        field=words.name_of("field", field),
        before=words.shown(write.previous, field),
        after=words.shown(write.value, field),
    )


def changed_text(plan: Plan, writes: Sequence[FieldWrite], language: str) -> str:
    """Return the line after a fix: what was changed, and what it brought."""
    words = Words(language)
    binding = plan.estimate.binding
    if binding is None:
        return _changes(writes, words)
    phase = phase_name(binding.name, words.language)
    return words(
        "changed_tight" if plan.estimate.verdict == "tight" else "changed",
        changes=_changes(writes, words),
        phase=phase,
        need=figure(binding.needs_bytes),
        available=figure(plan.estimate.available_bytes),
    )


def _after(estimate: Estimate, words: Words) -> str:
    if estimate.binding is None:
        return ""
    return words(
        "ask_after",
        phase=phase_name(estimate.binding.name, words.language),
        need=figure(estimate.binding.needs_bytes),
        available=figure(estimate.available_bytes),
    )
