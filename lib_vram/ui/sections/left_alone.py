"""What a fix leaves alone: what the settings keep, and what was undone too often; the latter can be offered again."""

from __future__ import annotations

from lib_vram.message import sentence
from lib_vram.plan.preferences import KEPT, Preferences
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag

NAME = "left_alone"


def html(guard: GuardLike, language: str) -> Html:
    """Return both lists, or that nothing is left alone, and where that is set."""
    preferences = Preferences.of(guard.host.settings().keep, guard.undone.too_often())
    parts = []
    if preferences.keep:
        kept = (tag("li", sentence(f"plan.keep_{name}", language)) for name in KEPT if name in preferences.keep)
        parts += [tag("p", sentence("plan.kept_by_settings", language)), tag("ul", *kept)]
    if preferences.undone:
        parts += _undone(guard.undone.too_often(), language)
    if not parts:
        parts.append(tag("p", sentence("plan.nothing_left_alone", language)))
    parts.append(tag("p", sentence("plan.left_alone_how", language), class_="vg-soft"))
    return join(*parts)


def _undone(levers: tuple[str, ...], language: str) -> list[Html]:
    items = (tag("li", sentence(f"plan.lever_{lever}", language)) for lever in levers)
    button = tag("button", sentence("plan.offer_again", language), type="button", class_="vg-button",
                 data_offer_again=True)  # fmt: skip
    return [tag("p", sentence("plan.undone_twice", language)), tag("ul", *items), tag("p", button)]
