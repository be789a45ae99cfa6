"""What the page is answered about earlier runs: the section's inside, files to save, a row to copy, and erasing."""

from __future__ import annotations

import time
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.learning.export import to_csv, to_json, to_row
from lib_vram.learning.recorder import Recorder
from lib_vram.message import language_of, render, say
from lib_vram.ui.access import Declined, Turn
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import history as section

MOST_RUNS = 200
"""Runs that the section looks at."""
EVERY_RUN = 10**6
FORMATS = {"json": "application/json", "csv": "text/csv"}


def history(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    """Return the section's inside, and a ``stamp`` that is another one as soon as something in it has changed.

    ``html`` is left out when the page has what goes with the ``stamp`` that it sends.
    """
    recorder = _recorder(guard)
    stamp = recorder.store.stamp() if recorder else ""
    if body.get("stamp") == stamp:
        return {"stamp": stamp}
    runs, rescues = (recorder.store.runs(most=MOST_RUNS), recorder.store.rescues()) if recorder else ((), ())
    note = recorder.store.note if recorder else None
    html = section.inside(runs, rescues, note, language_of(body.get("language")))
    return {"stamp": stamp, "runs": len(runs), "html": html}


def export(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    """Return everything that is kept as a file: its ``name``, ``type`` and ``text``."""
    kind = body.get("format")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise BadInput("format", got=kind, takes=f"one of {', '.join(FORMATS)}")
    recorder = _recorder(guard)
    runs = recorder.store.runs(most=EVERY_RUN) if recorder else ()
    rescues = recorder.store.rescues(EVERY_RUN) if recorder else ()
    name = f"vram-guard-history-{time.strftime('%Y%m%d')}.{kind}"
    text = to_csv(runs) if kind == "csv" else to_json(runs, rescues)
    said = render(say("learning.exported", name=name), language_of(body.get("language")))
    return {"name": name, "type": FORMATS[kind], "text": text, "said": said}


def row(guard: GuardLike, body: dict[str, Any]) -> dict[str, Any]:
    """Return the newest run as a row for a report, ``""`` when there is none, and what is said about it."""
    language = language_of(body.get("language"))
    recorder = _recorder(guard)
    runs = recorder.store.runs(most=1) if recorder else ()
    said = {name: render(say(f"learning.{key}"), language) for name, key in _SAID.items()}
    return {"row": to_row(runs[-1]) if runs else "", **said}


_SAID = {"copied": "copied", "by_hand": "copy_by_hand", "none": "none_yet"}


def erase(guard: GuardLike, turn: Turn, body: dict[str, Any]) -> dict[str, Any]:
    """Erase the history; ``confirm`` must be true, so that no program does it by mistake."""
    language = language_of(body.get("language"))
    if body.get("confirm") is not True:
        raise BadInput("confirm", got=body.get("confirm"), takes="true")
    if guard.host.is_open_to_others():
        raise Declined(403, render(say("learning.off_open"), language))
    recorder = _recorder(guard)
    with turn.taken(language):
        done = recorder.forget() if recorder else True
    return {"erased": done, "said": render(say("learning.erased" if done else "learning.erase_failed"), language)}


def _recorder(guard: GuardLike) -> Recorder | None:
    learned = getattr(guard, "learned", None)
    return learned.recorder if learned is not None else None
