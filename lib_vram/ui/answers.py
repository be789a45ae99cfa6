"""What the page is answered: one check as JSON with its HTML, and the fixed words of the page's script."""

from __future__ import annotations

from typing import Any, Protocol

from lib_vram.diagnosis.checklist import native_size
from lib_vram.estimate.result import Estimate
from lib_vram.guard import infotext
from lib_vram.guard.undone import Undone
from lib_vram.host.base import FieldWrite, Host
from lib_vram.live.watch import Watch
from lib_vram.message import area, render
from lib_vram.plan.result import Plan
from lib_vram.request import Mode, Request
from lib_vram.ui import picture, view

_PAGE_WORDS = (
    "ask_title", "bar_group", "bar_offline", "bar_refused", "button_close", "button_undo", "not_written",
    "phases_title", "undone",
)  # fmt: skip
"""With the names of the fields, all that the page's script says by itself."""


class CheckResult(Protocol):
    """What the guard answers about a form: the part of it that is shown."""

    @property
    def request(self) -> Request | None:
        """The request that the fields describe, ``None`` when they do not make one."""

    @property
    def estimate(self) -> Estimate:
        """Its estimate; verdict ``unknown`` with the reason when there is no request."""

    @property
    def plan(self) -> Plan | None:
        """What would make it fit, when it does not."""


class GuardLike(Protocol):
    """The guard, as far as the page needs it."""

    @property
    def host(self) -> Host:
        """The WebUI that it works in."""

    @property
    def live(self) -> Watch:
        """What looks at the card while it works."""

    @property
    def undone(self) -> Undone:
        """What was taken back too often to be offered again."""

    def check_form(self, tab: Mode, form: dict[str, Any]) -> CheckResult:
        """Return the check of the page's fields; never raises for bad fields."""


def check(guard: GuardLike, tab: Mode, form: dict[str, Any], language: str) -> dict[str, Any]:
    """Return the answer to one check: verdict, HTML, and the writes of a fix."""
    result = guard.check_form(tab, form)
    estimate, plan, request = result.estimate, result.plan, result.request
    writes = _writes(guard.host, plan, request)
    card = guard.host.card()
    answer = _pieces(estimate, plan, request, writes, language, spills=bool(card and card.spills))
    answer["mode"] = guard.host.settings().mode
    answer["live_text"] = _live_text(guard, language)
    answer["record"] = infotext.changes_line(request, plan.request) if request and plan and writes else ""
    answer["native_size"] = native_size(request) if request else None
    answer["estimate"] = estimate.to_dict(language)
    answer["plan"] = plan.to_dict(language) if plan else None
    return answer


def _live_text(guard: GuardLike, language: str) -> str:
    """Return what makes the generation at work slow, for the line under the bar; ``""`` when nothing does."""
    return " ".join(render(item, language) for item in guard.live.warnings())


def _writes(host: Host, plan: Plan | None, request: Request | None) -> tuple[FieldWrite, ...]:
    if plan is None or request is None or not plan.fits:
        return ()
    return tuple(host.field_writes(plan, request))


def _pieces(
    estimate: Estimate, plan: Plan | None, request: Request | None, writes: tuple[FieldWrite, ...], language: str,
    *, spills: bool,
) -> dict[str, Any]:  # fmt: skip
    wont_fit = estimate.verdict == "wont_fit"
    return {
        "verdict": estimate.verdict,
        "bar_html": view.bar(estimate, request, language, can_fix=bool(writes)),
        "status_text": view.verdict_text(estimate, language),
        "phases_html": picture.phases(estimate, request, language),
        "ask_html": view.ask(estimate, plan, writes, language, spills=spills) if wont_fit else "",
        "writes": [{"field": write.field, "value": write.value} for write in writes],
        "changed_text": view.changed_text(plan, writes, language) if plan and writes else "",
    }


def page_words(language: str) -> dict[str, str]:
    """Return the sentences that the page's script shows by itself."""
    english, wanted = area("en", "ui"), area(language, "ui")
    return {name: wanted.get(name, english[name]) for name in _PAGE_WORDS} | {
        name: wanted.get(name, text) for name, text in english.items() if name.startswith("field_")
    }
