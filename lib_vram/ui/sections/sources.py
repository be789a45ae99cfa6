"""Where the numbers come from, in three sentences."""

from __future__ import annotations

from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Words

NAME = "sources"


def html(guard: GuardLike, language: str) -> Html:
    """Return how the figures are made, what they mean, and how far they were checked."""
    words = Words(language)
    return join(*(tag("p", words(f"sources_{name}")) for name in ("intro", "minimum", "limits")))
