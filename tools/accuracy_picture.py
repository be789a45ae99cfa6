"""Draws errors as dots, one line for each answer, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, STEP = 860, 210, 30, 46, 30
LOW, HIGH = -60.0, 140.0
TICKS = range(-60, 141, 20)
OURS_COLOUR, PEER_COLOUR, INK, FAINT = "#1a7f37", "#8250df", "#1f2328", "#d0d7de"


def _x(percent: float) -> float:
    share = (min(max(percent, LOW), HIGH) - LOW) / (HIGH - LOW)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def picture(points: Mapping[str, Sequence[float]], ours: str) -> str:
    """Return the picture of ``points``: errors in percent by the name of the line. Lines that start with ``ours``
    have a colour of their own; what lies beyond the scale stands at its end."""
    lines = {name: values for name, values in points.items() if values}
    height = TOP + STEP * len(lines) + 40
    bottom = height - 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="sans-serif" font-size="13">',
        "<title>Error of each answer to each published measurement, in percent</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" fill="{INK}" font-size="15">Computed against measured: 0 % is exact</text>',
    ]
    for tick in TICKS:
        colour = INK if tick == 0 else FAINT
        parts.append(f'<line x1="{_x(tick)}" y1="{TOP - 8}" x2="{_x(tick)}" y2="{bottom}" stroke="{colour}"/>')
        parts.append(f'<text x="{_x(tick)}" y="{bottom + 18}" text-anchor="middle" fill="{INK}">{tick:+d} %</text>')
    for place, (name, values) in enumerate(lines.items()):
        y = TOP + STEP * place + STEP // 2
        colour = OURS_COLOUR if name.startswith(ours) else PEER_COLOUR
        parts.append(f'<text x="16" y="{y + 4}" fill="{INK}">{escape(name)}</text>')
        parts += [f'<circle cx="{_x(value)}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.55"/>' for value in values]
    return "\n".join([*parts, "</svg>", ""])
