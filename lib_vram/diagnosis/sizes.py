"""Sizes as programs print them in their error texts: ``1.50 GiB``, ``0 bytes``, ``1,50 GiB``, ``1,024.00 MiB``."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

_IN_THREES = r"(?<!gpu )(?<!device )(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?!\d)(?:[.,]\d{1,3}\b)?"
NUMBER = rf"(?:{_IN_THREES}|(?:(?<![\w)])-)?\d[\d.,]{{0,30}})"
"""Thousands may stand apart by a blank; a minus is read, so that a figure below nothing is seen to be none."""
UNIT = r"(?:bytes?|[kmgt]i?b|[kmgt]|b)\b"
SIZE = rf"({NUMBER}) ?({UNIT})"
"""Two groups, for text in small letters with single spaces: the number and its unit."""

STAND_IN_BYTES = 2**50
"""From a pebibyte up a figure is no memory but a stand-in for "none" or "negative" (2**64, seen as 17179869184 GiB)."""

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_GROUPED = re.compile(r"\d{1,3}(?:[.,]\d{3})+")


def size_bytes(number: str, unit: str, *, binary: bool = False) -> int | None:
    """Return the bytes that ``number`` and ``unit`` name, rounded to whole ones; ``None`` when that is no number.

    ``GB`` is 10^9 and ``GiB`` is 2^30, unless ``binary``: then both are 2^30, as on MPS and in the hosts' own texts.
    """
    value = decimal(number, whole=unit in ("", "b", "byte", "bytes"))
    if value is None:
        return None
    power = _POWERS.get(unit[:1], 0) if unit not in ("b", "byte", "bytes") else 0
    base = 1024 if binary or "i" in unit or len(unit) == 1 else 1000
    return int((value * base**power).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def decimal(number: str, *, whole: bool = False) -> Decimal | None:
    """Return the value of ``number``, whichever of comma and point divides its decimals.

    A single comma before exactly three digits groups thousands, a single point does so only in a ``whole`` number.
    """
    text = number.strip(".,").replace(" ", "")
    if "," in text and "." in text:
        mark = max(text.rfind(","), text.rfind("."))
        text = re.sub(r"[.,]", "", text[:mark]) + "." + text[mark + 1 :]
    elif _GROUPED.fullmatch(text) and ("," in text or text.count(".") > 1 or whole):
        text = re.sub(r"[.,]", "", text)
    else:
        text = text.replace(",", ".")
    return Decimal(text) if re.fullmatch(r"-?\d+(?:\.\d+)?", text, re.ASCII) else None
