"""Sentences of the area ``ui``, and the figures in them."""

from __future__ import annotations

from typing import Any

from lib_vram import units
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.message import Value, render, say, sentence


class Sentences:
    """The sentences of one area of the catalogue in one language."""

    area = ""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, name: str, **values: Value) -> str:
        """Return the sentence ``<area>.<name>`` with its figures."""
        return render(say(f"{self.area}.{name}", **values), self.language)


class Words(Sentences):
    """The page's own sentences: ``words("bar_of", need="1.0", available="2.0")``."""

    area = "ui"

    def has(self, name: str) -> bool:
        """Whether the catalogue knows ``name``."""
        return sentence(f"ui.{name}", self.language) != f"ui.{name}"

    def name_of(self, kind: str, name: str) -> str:
        """Return the words for a name such as ``phase`` ``vae_decode``; the name itself where there are none."""
        key = f"{kind}_{name.replace('.', '_')}"
        return self(key) if self.has(key) else name

    def shown(self, value: Any, field: str = "") -> str:
        """Return the value of ``field`` as the page shows it: a choice of our own controls by its name there."""
        key = f"levers.{field}_{value}"
        if isinstance(value, str) and sentence(key, self.language) != key:
            return sentence(key, self.language)
        if value is None or value == "":
            return self("nothing_set")
        if isinstance(value, bool):
            return self("on" if value else "off")
        return f"{value:g}" if isinstance(value, float) else str(value)


def figure(size_bytes: int) -> str:
    """Return ``size_bytes`` in GiB with one decimal, without the unit."""
    return units.gib(size_bytes, unit=False)


def figure_against(size_bytes: int, limit_bytes: int) -> str:
    """Return ``size_bytes``, rounded up where rounding would hide that it is more than ``limit_bytes``."""
    if size_bytes > limit_bytes and figure(size_bytes) == figure(limit_bytes):
        return figure(limit_bytes + units.GIB // 10)
    return figure(size_bytes)


def need_figure(phase: PhaseEstimate, available_bytes: int) -> str:
    """Return what ``phase`` needs at least."""
    return figure_against(phase.needs_bytes, available_bytes)


def peak_figure(estimate: Estimate) -> str:
    """Return the figure of the bar: what the binding phase needs, by which it fits or not."""
    if estimate.binding is None:
        return figure(estimate.peak_bytes)
    return need_figure(estimate.binding, estimate.available_bytes)


def missing_figure(missing_bytes: int) -> str:
    """Return how much is missing, at least 0.1 when anything is."""
    return figure(max(missing_bytes, units.GIB // 10)) if missing_bytes > 0 else figure(0)
