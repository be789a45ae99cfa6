"""Tables for a terminal: plain columns, figures to the right."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return ``rows`` under ``heads``; the first ``left`` columns are aligned to the left, the others to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(_line(line, widths, left) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def one_line(text: str) -> str:
    """Return ``text`` from outside (a name of a program or a card) fit for a terminal: printable, on one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
