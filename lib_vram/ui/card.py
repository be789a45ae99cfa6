"""The card and its holders, and what was found at start, as text for the tab."""

from __future__ import annotations

from lib_vram import units
from lib_vram.machine.card import Card, Holder
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Words


def card(found: Card | None, language: str) -> Html:
    """Return the card's memory and the programs that hold it."""
    words = Words(language)
    if found is None:
        return tag("p", words("card_none"))
    return join(_meter(found), facts(_card_facts(found, words)), _holders(found.holders, words))


def facts(pairs: list[tuple[str, str]]) -> Html:
    """Return a list of names and values."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in pairs), class_="vg-facts")


def _card_facts(found: Card, words: Words) -> list[tuple[str, str]]:
    return [
        (words("card_name"), found.name),
        (words("card_total"), units.human(found.total_bytes)),
        (words("card_free"), _size(found.free_bytes, words)),
        (words("card_others"), _size(found.used_by_others_bytes, words)),
        (words("card_here"), _size(_held_here(found), words)),
        (words("card_spills"), words("card_spills_yes" if found.spills else "card_spills_no")),
        (words("card_source"), words(f"source_{found.source}")),
    ]


def _held_here(found: Card) -> int | None:
    if found.free_bytes is None or found.used_by_others_bytes is None:
        return None
    return max(0, found.total_bytes - found.free_bytes - found.used_by_others_bytes)


def _size(size_bytes: int | None, words: Words) -> str:
    return words("card_unknown") if size_bytes is None else units.human(size_bytes)


def _meter(found: Card) -> Html:
    sizes = {"others": found.used_by_others_bytes or 0, "resident": _held_here(found) or 0}
    spans = [
        tag("span", class_=f"vg-seg vg-{name}", style=f"width:{100 * size / max(found.total_bytes, 1):.1f}%")
        for name, size in sizes.items()
        if size > 0
    ]
    return tag("span", *spans, class_="vg-meter vg-meter-wide", aria_hidden="true")


def _holders(holders: tuple[Holder, ...], words: Words) -> Html:
    if not holders:
        return tag("p", words("holders_none"), class_="vg-soft")
    heads = tag("tr", *(tag("th", words(f"holders_{name}"), scope="col") for name in ("name", "pid", "used")))
    rows = [
        tag("tr", tag("td", item.name), tag("td", str(item.pid)), tag("td", _size(item.used_bytes, words)))
        for item in holders
    ]
    caption = tag("caption", words("holders_caption"))
    return tag("table", caption, tag("thead", heads), tag("tbody", *rows), class_="vg-table")
