"""The card as it is now, and the programs that hold it."""

from __future__ import annotations

from lib_vram.ui import card
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html

NAME = "card"


def html(guard: GuardLike, language: str) -> Html:
    """Return the card's memory and its holders."""
    return card.card(guard.host.card(), language)
