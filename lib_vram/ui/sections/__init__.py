"""The sections of the tab *VRAM Guard*: one file each, shown in the order of ``SECTIONS``."""

from __future__ import annotations

from types import ModuleType

from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections import (
    about,
    checklist,
    diagnosis,
    free,
    history,
    left_alone,
    live,
    processes,
    questions,
    recover,
    request,
    restart_advice,
    sources,
    symptoms,
    what_fits,
)
from lib_vram.ui.words import Words

SECTIONS: tuple[ModuleType, ...] = (
    live, processes, free, request, diagnosis, what_fits, restart_advice, left_alone, recover, history, symptoms,
    checklist, questions, sources, about,
)  # fmt: skip
"""Each has ``NAME`` (its title is ``section_<NAME>`` in the catalogue) and ``html(guard, language)``.

One whose inside people type into has ``parts(guard, language)`` too: what changes in it, by the name of its place.
"""


def all_html(guard: GuardLike, language: str) -> dict[str, str]:
    """Return the whole tab, and each section's inside by name, for the page to put in place."""
    insides = {section.NAME: section.html(guard, language) for section in SECTIONS}
    changing = {}
    for section in SECTIONS:
        if hasattr(section, "parts"):
            changing |= section.parts(guard, language)
    return {"tab": _tab(insides, language), **insides, **changing}


def _tab(insides: dict[str, Html], language: str) -> Html:
    words = Words(language)
    folds = [
        tag(
            "details",
            tag("summary", tag("h2", words(f"section_{name}"))),
            tag("div", inside, class_="vg-section-inside", data_inside=name),
            class_="vg-section",
            data_section=name,
            open=True,
        )
        for name, inside in insides.items()
    ]
    jumps = (tag("button", words(f"section_{name}"), type="button", data_jump=name) for name in insides)
    nav = tag("nav", *jumps, class_="vg-jumps", aria_label=words("jumps"))
    return tag("div", nav, tag("div", join(*folds), class_="vg-sections"), class_="vg vg-tab", lang=language)
