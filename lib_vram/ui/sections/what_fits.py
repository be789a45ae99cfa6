"""What fits: the largest size and batch, common sizes by batches, other cards, lighter weights.

The section's frame is the same whatever happens; the page's script asks for the inside with the fields as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lib_vram.estimate.flags import of_forge_line
from lib_vram.estimate.timeline import computed_side
from lib_vram.message import render, sentence
from lib_vram.plan.fit import Fit
from lib_vram.plan.table import Cards, Cell, Row, SizeTable, WeightsFit
from lib_vram.request import Request
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.card import facts
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.view import SIGNS
from lib_vram.ui.words import Sentences, Words, figure

NAME = "what_fits"


@dataclass(frozen=True)
class Fits:
    """All that the section shows of one request."""

    request: Request
    largest_size: Fit
    largest_batch: Fit
    sizes: SizeTable
    cards: Cards
    weights: tuple[WeightsFit, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all of it was computed in the time that was given."""
        known = self.largest_size.is_known and self.largest_batch.is_known
        cells = (item.cell.verdict != "unknown" for item in self.weights)
        return known and self.cards.is_complete and self.sizes.is_complete and all(cells)


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame with what stands in it until the page has asked."""
    waiting = tag("p", sentence("advice.waiting", language), class_="vg-soft")
    said = tag("p", class_="vg-hidden", role="status", data_fits_said=True)
    return join(said, tag("div", waiting, data_fits=True))


def fits_html(found: Fits, tab: str, language: str) -> Html:
    """Return the inside: the answers in words first, then the tables."""
    words = _Advice(language)
    with_figures = not of_forge_line(found.request)
    parts = [
        tag("p", _about(found.request, tab, words), class_="vg-summary"),
        tag("div", facts(_answers(found, tab, words)), data_said=True),
        _sizes(found.sizes, words, with_figures=with_figures),
        tag("p", _legend(found, words, with_figures=with_figures), class_="vg-soft"),
        _cards(found, words),
    ]
    if len(found.weights) > 1:
        parts.append(_weights(found.weights, words))
    return join(*parts)


def unknown_html(text: str) -> Html:
    """Return the reason why nothing can be said."""
    return tag("p", text, class_="vg-soft", data_said=True)


class _Advice(Sentences):
    area = "advice"


def _about(request: Request, tab: str, words: _Advice) -> str:
    about = words(
        "about", tab=tab, width=request.width, height=request.height, batch=request.batch_size,
        available_bytes=max(0, request.device.total_bytes - request.device.used_by_others_bytes),
    )  # fmt: skip
    return f"{about} {words('about_hires')}" if request.hires else about


def _answers(found: Fits, tab: str, words: _Advice) -> list[tuple[str, str]]:
    size, batch = found.largest_size, found.largest_batch
    largest_size, largest_batch = (words("none_fits" if item.is_known else "not_yet") for item in (size, batch))
    cards = " ".join(render(said, words.language) for said in found.cards.sentences()) or words("not_yet")
    if size.batch_size:
        width, height = (computed_side(found.request, side) for side in (size.width, size.height))  # as the host has it
        shown = words("size", width=width, height=height)
        largest_size = _with_button(shown, "size", {"width": width, "height": height}, found, tab, words)
    if batch.batch_size:
        use = {"batch_size": batch.batch_size}
        largest_batch = _with_button(str(batch.batch_size), "batch", use, found, tab, words)
    rows = [
        (words("largest_size", batch=found.request.batch_size), largest_size),
        (words("largest_batch"), largest_batch),
        (words("other_cards"), cards),
    ]
    return rows if found.sizes.vary == "batch_size" else [rows[0], rows[2]]


def _with_button(shown: str, what: str, use: Mapping[str, int], found: Fits, tab: str, words: _Advice) -> str:
    """Return what is shown with a button that writes it into the fields; img2img may take its size from the picture."""
    if tab != "txt2img" or all(getattr(found.request, name) == value for name, value in use.items()):
        return shown
    button = tag(
        "button", words("use"), type="button", class_="vg-button vg-use", data_use=json.dumps(use), data_what=what,
        aria_label=words(f"use_{what}", value=shown),
    )  # fmt: skip
    return join(tag("span", shown), " ", button)


def _sizes(table: SizeTable, words: _Advice, *, with_figures: bool) -> Html:
    heads = [words("head_size"), *(words(f"column_{table.vary}", count=value) for value in table.columns)]
    rows = [
        _row(_size_head(row, words), [_cell(cell, words, with_figure=with_figures) for cell in row.cells], row.current)
        for row in table.rows
    ]
    return _table(words("caption_sizes"), heads, rows)


def _size_head(row: Row, words: _Advice) -> Html:
    parts: list[str] = [words("size", width=row.width, height=row.height)]
    if row.native:
        parts.append(_badge(words("native")))
    if row.current:
        parts.append(_badge(words("now")))
    return join(*parts)


def _legend(found: Fits, words: _Advice, *, with_figures: bool) -> str:
    parts = [words("legend")]
    if with_figures:
        parts.append(words("legend_figures"))
    if any(cell.swaps for row in found.sizes.rows for cell in row.cells):
        parts.append(words("legend_swaps"))
    return " ".join(parts)


def _cards(found: Fits, words: _Advice) -> Html:
    heads = [words(f"head_{name}") for name in ("card", "verdict", "examples")]
    rows = []
    for card in found.cards.cards:
        name: list[str] = [words("gigabytes", gigabytes=card.gigabytes)]
        if card.current:
            name.append(_badge(words("this_card")))
        cells = [_cell(card.cell, words, with_figure=False), tag("td", card.names, class_="vg-soft")]
        rows.append(_row(join(*name), cells, card.current))
    legend = tag("p", words("legend_cards"), class_="vg-soft")
    return join(_table(words("caption_cards"), heads, rows), legend)


def _weights(weights: Sequence[WeightsFit], words: _Advice) -> Html:
    heads = [words("head_weights"), words("head_verdict")]
    rows = []
    for item in weights:
        name: list[str] = [words(f"weights_{item.weights_dtype}")]
        if item.current:
            name.append(_badge(words("now")))
        rows.append(_row(join(*name), [_cell(item.cell, words, with_figure=False)], item.current))
    return _table(words("caption_weights"), heads, rows)


def _cell(cell: Cell, words: _Advice, *, with_figure: bool) -> Html:
    """Return sign, word and colour; ``✓ fits 8.3``."""
    if cell.verdict == "unknown":
        return tag("td", words("not_yet"), class_="vg-soft")
    parts = [
        tag("span", SIGNS[cell.verdict], class_="vg-sign", aria_hidden="true"),
        tag("span", Words(words.language)(f"verdict_{cell.verdict}"), class_="vg-word"),
    ]
    if with_figure and cell.needs_bytes:
        parts.append(tag("span", figure(cell.needs_bytes), class_="vg-figure"))
    if cell.swaps and cell.verdict != "wont_fit":
        parts.append(tag("span", words("swaps"), class_="vg-also"))
    return tag("td", *parts, data_verdict=cell.verdict)


def _badge(text: str) -> Html:
    return join(" ", tag("span", text, class_="vg-badge"))


def _row(head: Html, cells: Sequence[Html], current: bool) -> Html:
    return tag("tr", tag("th", head, scope="row"), *cells, class_="vg-now" if current else None)


def _table(caption: str, heads: Sequence[str], rows: Sequence[Html]) -> Html:
    """Return a table that scrolls by itself where the window is narrow, with the keyboard too."""
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *rows),
        class_="vg-table vg-fits",
    )
    return tag("div", table, class_="vg-scroll", tabindex="0", role="region", aria_label=caption)
