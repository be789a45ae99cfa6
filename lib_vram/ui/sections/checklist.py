"""The checklist, quickest first: ticks itself where the machine can see the answer."""

from __future__ import annotations

from lib_vram.diagnosis.checklist import Check, checklist
from lib_vram.message import render, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections import session

NAME = "checklist"
_SIGNS = {True: ("✓", "yes"), False: ("✕", "no"), None: ("○", "unknown")}


def html(guard: GuardLike, language: str) -> Html:
    """Return the list as it stands for the last generation of this session and the machine as it is."""
    memory = session.system_memory()
    checks = checklist(
        session.context(guard),
        swap_free_bytes=memory.swap_free_bytes if memory and memory.swap_total_bytes else None,
    )
    intro = tag("p", sentence("symptoms.checklist_intro", language), class_="vg-soft")
    return join(intro, tag("ol", *(_item(check, language) for check in checks), class_="vg-checks"))


def _item(check: Check, language: str) -> Html:
    sign, word = _SIGNS[check.done]
    shown = sentence(f"symptoms.check_{word}", language)
    children = [
        tag("span", sign, class_=f"vg-check vg-check-{word}", aria_hidden="true"),
        tag("span", render(check.text, language)),
        tag("span", f"{shown}: {render(check.found, language)}" if check.found else shown, class_="vg-soft"),
    ]
    return tag("li", *children)
