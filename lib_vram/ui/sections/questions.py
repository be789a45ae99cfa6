"""Questions and answers, each folded."""

from __future__ import annotations

from lib_vram.message import sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag

NAME = "questions"
QUESTIONS = (
    "meaning", "too_weak", "first", "at_the_end", "free_yet_fails", "restart", "where", "measure", "browser",
    "low_memory_quality", "quantised", "upscale", "video", "train", "not_memory", "cloud",
)  # fmt: skip
"""In the order in which people ask; ``ask_<name>_q`` and ``ask_<name>_a`` of the area ``symptoms``."""


def html(guard: GuardLike, language: str) -> Html:
    """Return the list."""
    return join(*(_question(name, language) for name in QUESTIONS))


def _question(name: str, language: str) -> Html:
    return tag(
        "details",
        tag("summary", sentence(f"symptoms.ask_{name}_q", language)),
        tag("p", sentence(f"symptoms.ask_{name}_a", language)),
        class_="vg-question",
    )
