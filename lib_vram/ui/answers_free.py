"""What the page is answered about freeing memory and restarting: the only requests that change what the host does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from lib_vram.errors import BadInput
from lib_vram.host.freeing import Busy, Freed, How, Level
from lib_vram.message import language_of, render, say
from lib_vram.ui.access import Declined, Turn
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import free as section


def free(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """Free memory of the level that ``body`` names; before and after as numbers, with words and, for the page, HTML."""
    language = language_of(body.get("language"))
    level: Level = _one_of("level", body, get_args(Level))
    with _allowed(guard, turn, language):
        freed = guard.host.free(level)
    data = _data(freed, language)
    if body.get("page") is True:
        data["html"] = section.freed_html(freed, language)
    return data


def restart(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """Restart as ``body`` names; ``started`` says whether it is under way, ``steps`` how to do it by hand."""
    language = language_of(body.get("language"))
    how: How = _one_of("how", body, get_args(How))
    with _allowed(guard, turn, language):
        result = guard.host.restart(how)
    data: dict[str, Any] = {"how": how, "started": result.started}
    data["steps"] = render(result.steps, language) if result.steps else None
    if body.get("page") is True:
        data["html"] = section.restarting_html(result, language)
    return data


@contextmanager
def _allowed(guard: GuardLike, turn: Turn, language: str) -> Iterator[None]:
    """Hold the turn where the host lets this page change anything at all; a host at work is status 409."""
    if guard.host.is_open_to_others():
        raise Declined(403, render(say("free.off_open"), language))
    try:
        with turn.taken(language):
            yield
    except Busy as busy:
        raise Declined(409, render(say("free.busy"), language)) from busy


def _one_of(name: str, body: dict[str, Any], choices: tuple[Any, ...]) -> Any:
    value = body.get(name)
    if not isinstance(value, str) or value not in choices:
        raise BadInput(name, got=value, takes=f"one of {', '.join(choices)}")
    return value


def _data(freed: Freed, language: str) -> dict[str, Any]:
    return {
        "level": freed.level,
        "freed_bytes": freed.freed_bytes,
        "before": dataclasses.asdict(freed.before),
        "after": dataclasses.asdict(freed.after),
        "summary": render(section.summary(freed), language),
        "kept": [render(item, language) for item in freed.kept],
    }
