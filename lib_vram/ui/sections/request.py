"""This request, phase by phase: filled by the page with the last check of the tab that is used."""

from __future__ import annotations

from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, tag
from lib_vram.ui.words import Words

NAME = "request"


def html(guard: GuardLike, language: str) -> Html:
    """Return what stands here until a first check was made."""
    return tag("p", Words(language)("request_none"), class_="vg-soft")
