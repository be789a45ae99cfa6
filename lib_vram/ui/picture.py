"""The phases as a picture: one stacked bar per phase, in order, with the card's edge as a line."""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.estimate.result import Estimate, PhaseEstimate, phase_name
from lib_vram.message import render
from lib_vram.request import Request
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Words, figure, figure_against, missing_figure, need_figure, peak_figure

_WIDTH, _HEIGHT = 1000, 28
"""The drawing's own units of one bar; the page stretches it to the room there is."""
_HEADROOM = 1.02
"""The drawing goes a little beyond its largest bar, so that the edge of a card that is just full stays visible."""
_LEGEND = ("others", "resident", "activations", "comfortable", "free")
_MOST_PARTS = 4


@dataclass(frozen=True)
class _Bar:
    """One phase against the card. All sizes in bytes."""

    phase: PhaseEstimate
    total_bytes: int
    available_bytes: int

    @property
    def others_bytes(self) -> int:
        return max(0, self.total_bytes - self.available_bytes)

    @property
    def free_bytes(self) -> int:
        return max(0, self.available_bytes - self.phase.needs_bytes)

    @property
    def missing_bytes(self) -> int:
        return max(0, self.phase.needs_bytes - self.available_bytes)

    @property
    def extra_bytes(self) -> int:
        return max(0, min(self.phase.wants_bytes, self.available_bytes) - self.phase.needs_bytes)


def phases(estimate: Estimate, request: Request | None, language: str) -> Html:
    """Return the opened picture with the binding phase in words above it and the numbers as a hidden table."""
    words = Words(language)
    heading = tag("p", phases_sentence(estimate, language), class_="vg-binding")
    notes = [tag("li", render(note, language)) for note in estimate.notes]
    listed = tag("ul", *notes, class_="vg-notes") if notes else Html("")
    if request is None or not estimate.phases:
        return join(heading, listed)
    bars = [_Bar(phase, request.device.total_bytes, estimate.available_bytes) for phase in estimate.phases]
    scale = max(max(bar.total_bytes, bar.others_bytes + bar.phase.needs_bytes) for bar in bars) * _HEADROOM
    rows = [_row(bar, scale, bar.phase.name == estimate.binding_phase, words) for bar in bars]
    picture = tag("ul", *rows, class_="vg-rows", role="list", aria_label=words("phases_title"))
    return join(heading, picture, _legend(request, words), _table(bars, words), listed)


def phases_sentence(estimate: Estimate, language: str) -> str:
    """Return the verdict and the binding phase in one sentence."""
    words = Words(language)
    if estimate.verdict == "unknown" or estimate.binding is None:
        return words("phases_unknown")
    name = phase_name(estimate.binding.name, words.language)
    available = figure(estimate.available_bytes)
    wants = figure_against(estimate.binding.wants_bytes, estimate.available_bytes)
    return words(f"phases_{estimate.verdict}", phase=name, need=peak_figure(estimate), available=available, wants=wants)


def _row(bar: _Bar, scale: float, binds: bool, words: Words) -> Html:
    name = phase_name(bar.phase.name, words.language)
    numbers = _numbers(bar, words)
    children = [
        tag("span", name, class_="vg-row-name"),
        tag("span", _drawing(bar, scale), class_="vg-row-bar"),
        tag("span", need_figure(bar.phase, bar.available_bytes), class_="vg-row-need"),
        tag("span", numbers, class_="vg-row-numbers", aria_hidden="true"),
    ]
    over = " vg-over" if bar.missing_bytes else ""
    classes = f"vg-row{' vg-binds' if binds else ''}{over}"
    return tag("li", *children, class_=classes, tabindex=0, aria_label=numbers)


def _numbers(bar: _Bar, words: Words) -> str:
    line = words(
        "row_over" if bar.missing_bytes else "row_numbers",
        phase=phase_name(bar.phase.name, words.language),
        others=figure(bar.others_bytes),
        resident=figure(bar.phase.resident_bytes),
        activations=figure(bar.phase.minimum_bytes),
        comfortable=figure(max(bar.phase.comfortable_bytes, bar.phase.minimum_bytes)),
        free=figure(bar.free_bytes),
        missing=missing_figure(bar.missing_bytes),
    )
    parts = [f"{words.name_of('part', name)} {figure(size)}" for name, size in bar.phase.resident_parts[:_MOST_PARTS]]
    return f"{line}. {words('row_parts', parts=', '.join(parts))}" if parts else line


def _drawing(bar: _Bar, scale: float) -> Html:
    """The bar itself: parts left to right, then the edge of the card as a line through the whole height."""
    sizes = (
        ("others", bar.others_bytes),
        ("resident", bar.phase.resident_bytes),
        ("activations", bar.phase.minimum_bytes),
        ("comfortable", bar.extra_bytes),
    )
    shapes, left = [], 0.0
    for name, size in sizes:
        width = _WIDTH * size / scale
        if width > 0:
            shapes.append(_rect(name, left, width))
        left += width
    edge = _WIDTH * bar.total_bytes / scale
    if edge > left:
        shapes.append(_rect("free", left, edge - left))
    shapes.append(tag("line", x1=f"{edge:.1f}", x2=f"{edge:.1f}", y1=0, y2=_HEIGHT, class_="vg-card-edge"))
    return tag(
        "svg", *shapes, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", preserveAspectRatio="none", aria_hidden="true",
        focusable="false",
    )  # fmt: skip


def _rect(name: str, left: float, width: float) -> Html:
    return tag("rect", x=f"{left:.1f}", y=6, width=f"{width:.1f}", height=_HEIGHT - 12, class_=f"vg-fill vg-{name}")


def _legend(request: Request, words: Words) -> Html:
    items = [tag("li", tag("i", class_=f"vg-swatch vg-{name}"), words(f"legend_{name}")) for name in _LEGEND]
    edge = words("legend_edge", total_bytes=request.device.total_bytes)
    items.append(tag("li", tag("i", class_="vg-swatch vg-swatch-edge"), edge))
    return tag("ul", *items, class_="vg-legend", aria_hidden="true")


def _table(bars: list[_Bar], words: Words) -> Html:
    heads = [words("table_phase"), *(words(f"legend_{name}") for name in _LEGEND), words("table_need")]
    rows = [
        tag(
            "tr",
            tag("th", phase_name(bar.phase.name, words.language), scope="row"),
            *(tag("td", figure(size)) for size in _table_sizes(bar)),
        )
        for bar in bars
    ]
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    return tag("table", tag("caption", words("table_caption")), head, tag("tbody", *rows), class_="vg-hidden")


def _table_sizes(bar: _Bar) -> tuple[int, ...]:
    phase = bar.phase
    extra = max(0, phase.comfortable_bytes - phase.minimum_bytes)
    return bar.others_bytes, phase.resident_bytes, phase.minimum_bytes, extra, bar.free_bytes, phase.needs_bytes
