"""The error over time as a picture: for each run the band that was shown, and where the peak came to lie."""

from __future__ import annotations

from collections.abc import Sequence

from lib_vram.learning.correct import percent
from lib_vram.learning.summary import Miss
from lib_vram.message import Value, render, say
from lib_vram.ui.html import Html, join, tag

_WIDTH, _HEIGHT, _LEFT, _EDGE = 720, 180, 76, 14
MOST = 60
"""Runs in the picture, the newest."""
_LEAST, _MOST = 0.03, 0.6
"""The scale's ends, as shares: small errors do not fill the picture, and a wild one does not flatten the others."""
_SCALE = 10000
"""Parts of a whole in which ``percent`` is given a share."""


def picture(misses: Sequence[Miss], language: str) -> Html:
    """Return the picture with its legend and, for those who do not see it, the same as a table."""
    shown = list(misses)[-MOST:]
    top = min(_MOST, max(_LEAST, *(max(abs(item.said), abs(item.computed), -item.low, item.high) for item in shown)))
    marks = [_axis(top), *(_run(item, place, len(shown), top) for place, item in enumerate(shown))]
    inside = sum(item.is_inside for item in shown)
    label = _words("chart_label", language, runs=len(shown), inside=inside, last=share(shown[-1].said))
    drawing = tag(
        "svg", *marks, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=label, class_="vg-history-chart",
    )  # fmt: skip
    caption = tag("figcaption", _words("chart_caption", language), class_="vg-soft")
    return tag("figure", drawing, _legend(language), caption, _table(shown, language), class_="vg-history-figure")


def share(part: float) -> str:
    """Return a share with its sign: ``+3 %``."""
    return percent(round(part * _SCALE), _SCALE)


def _words(name: str, language: str, **values: Value) -> str:
    return render(say(f"learning.{name}", **values), language)


def _y(part: float, top: float) -> float:
    clipped = max(-top, min(top, part))
    return _HEIGHT / 2 - clipped / top * (_HEIGHT / 2 - _EDGE)


def _axis(top: float) -> Html:
    parts = []
    for part in (top, 0.0, -top):
        y = _y(part, top)
        line = tag("line", x1=_LEFT, x2=_WIDTH, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="vg-history-axis")
        parts += [line, tag("text", share(part), x=_LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end")]
    return tag("g", *parts, aria_hidden="true")


def _run(item: Miss, place: int, count: int, top: float) -> Html:
    x = _LEFT + (_WIDTH - _LEFT) * (place + 0.5) / count
    band = tag(
        "line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=f"{_y(item.high, top):.1f}", y2=f"{_y(item.low, top):.1f}",
        class_="vg-history-band",
    )  # fmt: skip
    ring = tag("circle", cx=f"{x:.1f}", cy=f"{_y(item.computed, top):.1f}", r=4.5, class_="vg-history-computed")
    return tag("g", band, ring, _dot(x, _y(item.said, top), is_inside=item.is_inside))


def _dot(x: float, y: float, *, is_inside: bool) -> Html:
    """Return the measured one: a dot inside the band, a square on its tip outside."""
    if is_inside:
        return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, class_="vg-history-inside")
    path = f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"
    return tag("path", d=path, class_="vg-history-outside")


def _legend(language: str) -> Html:
    items = []
    for name in ("band", "inside", "outside", "computed"):
        shape = {
            "band": tag("line", x1=6, x2=6, y1=0, y2=12, class_="vg-history-band"),
            "inside": _dot(6, 6, is_inside=True),
            "outside": _dot(6, 6, is_inside=False),
            "computed": tag("circle", cx=6, cy=6, r=4.5, class_="vg-history-computed"),
        }[name]
        swatch = tag("svg", shape, width=12, height=12, viewBox="0 0 12 12", aria_hidden="true")
        items.append(tag("li", swatch, _words(f"chart_legend_{name}", language)))
    return tag("ul", *items, class_="vg-legend", aria_hidden="true")


def _table(shown: Sequence[Miss], language: str) -> Html:
    heads = (_words(name, language) for name in ("chart_number", "head_off", "chart_legend_band"))
    rows = [
        tag("tr", tag("th", str(place), scope="row"), tag("td", share(item.said)),
            tag("td", f"{share(item.low)} … {share(item.high)}"))
        for place, item in enumerate(shown, start=1)
    ]  # fmt: skip
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    return tag("table", head, join(tag("tbody", *rows)), class_="vg-hidden")
