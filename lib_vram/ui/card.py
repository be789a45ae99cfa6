"""Names and values, as the tab's sections list them."""

from __future__ import annotations

from lib_vram.ui.html import Html, join, tag


def facts(pairs: list[tuple[str, str]]) -> Html:
    """Return a list of names and values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in pairs), class_="vg-facts")
