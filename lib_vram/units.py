"""Sizes: every size in VRAM Guard is an ``int`` of bytes; GiB exists only here."""

from __future__ import annotations

import re

from lib_vram.errors import BadInput

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_FACTORS = {"": 1, "b": 1, "kib": KIB, "kb": 1000, "mib": MIB, "mb": 1000**2, "gib": GIB, "gb": 1000**3}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", re.ASCII)


def gib(size_bytes: int, *, unit: bool = True) -> str:
    """Return ``size_bytes`` in GiB with one decimal, as people read it: ``6.2 GiB``."""
    text = f"{size_bytes / GIB:.1f}"
    return f"{text} GiB" if unit else text


def mib(size_bytes: int) -> str:
    """Return ``size_bytes`` in whole MiB: ``2314 MiB``."""
    return f"{size_bytes / MIB:.0f} MiB"


def human(size_bytes: int) -> str:
    """Return GiB from 1 GiB up and MiB below, so that small parts are not shown as ``0.0``."""
    return gib(size_bytes) if abs(size_bytes) >= GIB else mib(size_bytes)


def parse_size(text: str, *, field: str) -> int:
    """Return the bytes that ``text`` names (``12GiB``, ``800 MiB``, ``1073741824``).

    Raises:
        BadInput: ``text`` is not a size; the message names ``field``.
    """
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise BadInput(field, got=text, takes="a size such as 12GiB, 800MiB or a number of bytes")
    return int(float(match[1]) * factor)


def round_up(size_bytes: int, multiple_bytes: int) -> int:
    """Return the smallest multiple of ``multiple_bytes`` that is not below ``size_bytes``."""
    return -(-size_bytes // multiple_bytes) * multiple_bytes
