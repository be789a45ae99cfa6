"""What went wrong: the last failure of this session, and a box for any other error text."""

from __future__ import annotations

from typing import Any

from lib_vram import units
from lib_vram.diagnosis.context import Context
from lib_vram.diagnosis.diagnosis import Diagnosis, diagnose
from lib_vram.diagnosis.report import report
from lib_vram.diagnosis.symptoms import Cure, cures
from lib_vram.journal.last_session import LastSession
from lib_vram.journal.session import LOADING
from lib_vram.message import Message, render, sentence
from lib_vram.message import say as message
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections import session

NAME = "diagnosis"


def html(guard: GuardLike, language: str) -> Html:
    """Return the place of the last failure, filled by :func:`parts`, and the form."""
    say = _sentences(language)
    form = tag(
        "form",
        tag("label", say("paste"), for_="vram_guard_paste", class_="vg-label"),
        tag(
            "textarea", id="vram_guard_paste", rows=6, class_="vg-paste", placeholder=say("paste_hint"),
            spellcheck="false", autocomplete="off",
        ),
        tag(
            "div",
            tag("button", say("button_explain"), type="submit", class_="vg-button"),
            tag("button", say("button_clear"), type="reset", class_="vg-button"),
            tag("span", say("stays_here"), class_="vg-soft"),
            class_="vg-buttons",
        ),
        class_="vg-form", data_diagnose=True,
    )  # fmt: skip
    answer = tag(
        "div", class_="vg-answer", data_answer=True, role="region", aria_live="polite", aria_label=say("answer")
    )
    return join(tag("div", data_inside="failure"), form, answer)


def parts(guard: GuardLike, language: str) -> dict[str, Html]:
    """Return what changes while the tab is open: the last failure, by the name of its place."""
    return {"failure": join(_last_session(guard, language), _last_failure(guard, language))}


def answer(guard: GuardLike, body: dict[str, Any], language: str) -> dict[str, Any]:
    """Return the diagnosis of ``body``'s text, without one of the last failure; for the page its HTML too."""
    text = body["text"] or _failure_text(guard)
    found = diagnose(text, session.context(guard) if not body["text"] else Context(host=guard.host.name))
    data = found.to_dict(language)
    if body.get("page"):
        data["html"] = view(found, text, guard, language)
    return data


def view(found: Diagnosis, text: str, guard: GuardLike, language: str) -> Html:
    """Return a diagnosis: what it is, what shows it, what to do, and the report to copy."""
    say = _sentences(language)
    parts = [
        tag("h3", tag("span", sentence(f"diagnosis.kind_{found.kind}", language), class_="vg-kind"), class_="vg-found"),
        tag("p", render(found.summary, language), class_="vg-summary"),
    ]
    if found.evidence:
        items = (tag("li", render(item, language)) for item in found.evidence)
        parts += [tag("h4", say("label_evidence")), tag("ul", *items, class_="vg-evidence")]
    if found.kind == "gpu_memory" and found.cause is None and not found.recovered:
        parts.append(tag("p", say("label_unsure"), class_="vg-soft"))
    parts += _figures(found, language)
    if found.fixes:
        steps = [cure(item, guard.host.name, language) for item in cures(found.symptom)]
        steps = steps or [tag("li", render(item, language)) for item in found.fixes]
        parts += [tag("h4", say("label_fixes")), tag("ol", *steps, class_="vg-cures")]
    about = f"{guard.host.title} {guard.host.version()}".strip()
    copied = tag("button", say("button_copy"), type="button", class_="vg-button", data_copy=True,
                 data_copied=say("copied"))  # fmt: skip
    hidden = tag("pre", report(found, text, about, language), hidden=True, data_report=True)
    return tag("div", *parts, tag("div", copied, class_="vg-buttons"), hidden, class_="vg-diagnosis")


def cure(item: Cure, host: str, language: str) -> Html:
    """Return one cure, with its button where the page can do it."""
    children = [tag("span", render(item.message(host), language))]
    if item.action in _BUTTONS:
        children.append(
            tag("button", sentence(f"symptoms.do_{item.action}", language), type="button", class_="vg-button vg-do",
                data_do=item.action)
        )  # fmt: skip
    setting = item.setting(host)
    if setting:
        label = sentence("symptoms.do_setting", language)
        children.append(
            # hidden until the page's script finds the setting on the page
            tag("button", label, type="button", class_="vg-button vg-do", data_setting=setting, hidden=True)
        )
    return tag("li", *children, class_="vg-cure")


_BUTTONS = ("fix", "batch_one", "tiled_vae", "native_size", "free", "unload", "restart")
"""What the page's script can do by itself."""


def _figures(found: Diagnosis, language: str) -> list[Html]:
    pairs = [(name, value) for name, value in found.numbers.to_dict().items() if value is not None]
    if not pairs:
        return []
    say = _sentences(language)
    items = (join(tag("dt", say(f"number_{name}")), tag("dd", units.human(value))) for name, value in pairs)
    return [tag("h4", say("label_numbers")), tag("dl", *items, class_="vg-facts")]


def _last_failure(guard: GuardLike, language: str) -> Html:
    say = _sentences(language)
    text = _failure_text(guard)
    if not text:
        return tag("p", say("no_failure"), class_="vg-soft")
    found = diagnose(text, session.context(guard))
    return tag("section", tag("p", say("last_failure"), class_="vg-label"), view(found, text, guard, language))


def _last_session(guard: GuardLike, language: str) -> Html:
    """Return what the session before this one was doing when it ended, until a picture of this one is made."""
    here = getattr(guard, "session", None)
    if here is None or here.before is None or here.good_runs:
        return Html("")
    say = _sentences(language)
    summary, evidence = last_session_messages(here.before, language)
    items = (tag("li", render(item, language)) for item in evidence)
    row = {"ram": "host-memory", "card": "sampling-start", "computer": "device-fault"}.get(here.before.cause)
    steps = [cure(item, guard.host.name, language) for item in cures(row)]
    return tag(
        "div",
        tag("p", say("last_load" if here.before.phase == LOADING else "last_session"), class_="vg-label"),
        tag("p", render(summary, language), class_="vg-summary"),
        tag("ul", *items, class_="vg-evidence"),
        *((tag("h4", say("label_fixes")), tag("ol", *steps, class_="vg-cures")) if steps else ()),
        class_="vg-diagnosis",
    )


def last_session_messages(before: LastSession, language: str) -> tuple[Message, tuple[Message, ...]]:
    """Return what the last session was doing when it ended and the likely cause, and what shows it."""
    phase = before.phase or "unknown"
    summary = message(f"diagnosis.last_{before.cause}", doing=sentence(f"diagnosis.doing_{phase}", language))
    shown = []
    if before.ram_free_bytes is not None:
        shown.append(message("diagnosis.last_ram_free", free_bytes=before.ram_free_bytes))
    if before.card_free_bytes is not None:
        shown.append(message("diagnosis.last_card_free", free_bytes=before.card_free_bytes))
    settings = ", ".join(f"{name} {value}" for name, value in before.settings.items() if value)
    if settings:
        shown.append(message("diagnosis.last_settings", settings=settings[:300]))
    return summary, tuple(shown)


def _failure_text(guard: GuardLike) -> str:
    failure = session.last_failure(guard)
    return failure.text if failure else ""


def _sentences(language: str) -> Any:
    return lambda name: sentence(f"diagnosis.{name}", language)
