"""The programs on the card, named as what they are; one that was left behind can be ended from here."""

from __future__ import annotations

from typing import Any

from lib_vram import units
from lib_vram.errors import BadInput
from lib_vram.live.watch import Watch
from lib_vram.machine.programs import Ended, Program
from lib_vram.message import Message, render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag

NAME = "processes"
_HEADS = ("program", "kind", "pid", "size", "shared", "action")


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame: the page fills the table, and shows the question before anything is ended."""
    heads = (
        tag("th", sentence(f"live.head_{name}", language), scope="col", data_processes_head=name) for name in _HEADS
    )
    off = guard.host.is_open_to_others()
    return tag(
        "div",
        tag("p", sentence("live.loading", language), data_processes="note", class_="vg-soft"),
        tag(
            "table",
            tag("caption", sentence("live.processes_title", language), class_="vg-hidden"),
            tag("thead", tag("tr", *heads)),
            tag("tbody", data_processes="rows"),
            class_="vg-table vg-live-table", data_processes="table", hidden=True,
        ),
        _question(language),
        tag("div", data_processes="answer", role="status", aria_live="polite", tabindex="-1"),
        tag("p", sentence("live.end_off" if off else "live.end_only", language), class_="vg-soft"),
        data_processes_root=True,
    )  # fmt: skip


def _question(language: str) -> Html:
    go = tag("button", sentence("live.end_go", language), type="button", class_="vg-button", data_end_go=True)
    cancel = tag(
        "button", sentence("live.end_cancel", language), type="button", class_="vg-button", data_end_cancel=True
    )  # fmt: skip
    title = tag("p", data_processes="question-title", class_="vg-label", id="vram_guard_end_title")
    explained = tag("p", sentence("live.end_explained", language))
    return tag(
        "div", join(title, explained, tag("div", go, cancel, class_="vg-buttons")), hidden=True, role="group",
        aria_labelledby="vram_guard_end_title", data_processes="question",
    )  # fmt: skip


def answer(guard: GuardLike, watch: Watch, language: str) -> dict[str, Any]:
    """Return the programs as rows, and why there are none or not all."""
    if guard.host.is_open_to_others():
        return {"rows": [], "note": sentence("live.processes_off", language), "has_shared": False}
    programs = watch.programs()
    note = _note(watch, programs)
    return {
        "rows": [_row(item, language) for item in programs],
        "note": render(note, language) if note else "",
        "has_shared": any(item.shared_bytes is not None for item in programs),
    }


def _row(program: Program, language: str) -> dict[str, Any]:
    name = program.name or sentence("live.unnamed", language)
    ends = program.can_end
    return {
        "key": f"{program.pid}-{program.started}",
        "pid": program.pid,
        "started": program.started,
        "name": name,
        "kind": program.kind,
        "what": render(say(f"live.kind_{program.kind}", webui=program.webui or "WebUI"), language),
        "shown": _size(program.used_bytes, language),
        "shared": "" if program.shared_bytes is None else units.human(program.shared_bytes),
        "end": sentence("live.end", language) if ends else "",
        "question": render(say("live.end_title", pid=program.pid, name=name), language) if ends else "",
    }


def _size(size_bytes: int | None, language: str) -> str:
    return sentence("live.unknown_size", language) if size_bytes is None else units.human(size_bytes)


def _note(watch: Watch, programs: tuple[Program, ...]) -> Message | None:
    others = [item for item in programs if item.kind != "this"]
    if any(item.kind == "hidden" for item in others):
        return say("live.processes_why_container")
    if others and all(item.used_bytes is None for item in others if item.kind != "zombie"):
        return say("live.processes_why_nvml") if any(item.kind != "zombie" for item in others) else None
    if others:
        return None
    others_bytes = watch.now().others_bytes
    return say("live.processes_why_none") if others_bytes else say("live.processes_none")


def wanted(body: dict[str, Any]) -> tuple[int, float]:
    """Return the process that ``body`` names by its number and the time of its start.

    Raises:
        BadInput: either is missing or no such thing.
    """
    pid, started = body.get("pid"), body.get("started")
    if isinstance(pid, bool) or not isinstance(pid, int) or not 1 < pid < 2**32:
        raise BadInput("pid", got=pid, takes="the number of a process")
    if isinstance(started, bool) or not isinstance(started, (int, float)) or not 0 < started < 2**40:
        raise BadInput("started", got=started, takes="when it started, in seconds since the epoch")
    return pid, float(started)


def ended(pid: int, came: Ended, language: str) -> str:
    """Return in one sentence what came of ending ``pid``."""
    return render(say(f"live.ended_{came}", pid=pid), language)
