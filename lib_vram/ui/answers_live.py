"""What the page is answered about the card as it is now, and about ending a process that was left behind."""

from __future__ import annotations

from typing import Any

from lib_vram.live.watch import Watch
from lib_vram.machine.programs import Ended
from lib_vram.message import language_of, render, say
from lib_vram.ui.access import Declined, Turn
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import live, processes

STATUS: dict[Ended, int] = {
    "ended": 200, "gone": 200, "changed": 409, "not_yours": 403, "not_zombie": 403, "refused": 502, "no_psutil": 501,
}  # fmt: skip
"""HTTP's status of what came of ending a process."""


def now(guard: GuardLike, query: dict[str, Any]) -> dict[str, Any]:
    """Return the live picture in the language of ``query``, with what of the curve is newer than its ``since``."""
    language = language_of(query.get("language"))
    since = live.since_of(query)
    watch = watch_of(guard)
    return {**live.answer(guard, watch, since, language), "processes": processes.answer(guard, watch, language)}


def end_process(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """End the process that ``body`` names by number and start, if it is a WebUI of this user that was left behind."""
    language = language_of(body.get("language"))
    pid, started = processes.wanted(body)
    if guard.host.is_open_to_others():
        raise Declined(403, render(say("live.end_off"), language))
    with turn.taken(language):
        came = watch_of(guard).end(pid, started)
    text = processes.ended(pid, came, language)
    if STATUS[came] != 200:
        raise Declined(STATUS[came], text)
    return {"pid": pid, "result": came, "text": text}


def watch_of(guard: GuardLike) -> Watch:
    """Return what looks at the card for ``guard``."""
    watch: Watch = guard.live
    return watch
