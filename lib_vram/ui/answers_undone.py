"""What the page is answered about changes that a person has taken back, and about offering them again."""

from __future__ import annotations

from typing import Any

from lib_vram.errors import BadInput
from lib_vram.message import language_of, render, say
from lib_vram.plan.levers import LEVERS
from lib_vram.ui.access import Declined
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import left_alone


def undone(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    """Note that the changes in ``steps`` were taken back, or offer all again; returns those no longer offered.

    Raises:
        BadInput: ``steps`` is no list of changes, and nothing is to be offered again.
        Declined: others can reach the page, and must not decide what its owner is offered.
    """
    language = language_of(body.get("language"))
    if guard.host.is_open_to_others():
        raise Declined(403, render(say("plan.undone_off"), language))
    if body.get("offer_again") is True:
        guard.undone.forget()
    else:
        guard.undone.note(_steps(body.get("steps")))
    return {"left_out": list(guard.undone.too_often()), "html": left_alone.html(guard, language)}


def _steps(value: object) -> list[str]:
    if not isinstance(value, list) or any(name not in LEVERS for name in value if isinstance(name, str)):
        raise BadInput("steps", got=value, takes=f"a list of {', '.join(LEVERS)}")
    if not all(isinstance(name, str) for name in value):
        raise BadInput("steps", got=value, takes="a list of names")
    return value
