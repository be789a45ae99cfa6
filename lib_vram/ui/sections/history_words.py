"""What the parts of the history share: its sentences, tables, moments, and what was asked for in a few words."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from lib_vram import units
from lib_vram.learning.explained import left_in
from lib_vram.learning.record import Run
from lib_vram.message import sentence
from lib_vram.ui.html import Html, tag
from lib_vram.ui.words import Sentences

_FIGURE = re.compile(r"(?<=\d) (?=[%A-Za-z]{1,3}\b|%)|(?<=±) (?=\d)")
"""Between a figure and its unit, or its sign."""


class Words(Sentences):
    """What the history says."""

    area = "learning"

    def phase(self, name: str) -> str:
        """Return what people call a phase."""
        found = sentence(f"phase.{name}", self.language)
        return name if found == f"phase.{name}" else found

    def kind(self, name: str) -> str:
        """Return what people call a kind of failure."""
        found = sentence(f"diagnosis.kind_{name}", self.language)
        return name.replace("_", " ") if found == f"diagnosis.kind_{name}" else found

    def size(self, size_bytes: int | None) -> str:
        """Return a size, or that it is not known."""
        return self("not_known") if size_bytes is None else units.human(size_bytes)


def together(text: str) -> str:
    """Return ``text`` with figures that are not parted from their units at the end of a line."""
    return _FIGURE.sub("\u00a0", text)


def heading(text: str) -> Html:
    """Return a heading within the section."""
    return tag("h3", text, class_="vg-history-title")


def figures(title: str, caption: str, heads: Sequence[str], rows: Sequence[Html]) -> Html:
    """Return a table that can be scrolled on its own, with the keyboard too."""
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    table = tag("table", tag("caption", caption) if caption else "", head, tag("tbody", *rows), class_="vg-table")
    return tag("div", table, role="region", aria_label=title, tabindex=0, class_="vg-history-table")


def row(first: str, *cells: str) -> Html:
    """Return a line of a table; figures in it stay on one line."""
    return tag("tr", tag("th", first, scope="row"), *(tag("td", together(cell)) for cell in cells))


def moment(at: float) -> Html:
    """Return a moment: in the server's time until the page's script has put it into the reader's."""
    exact = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return tag("time", time.strftime("%Y-%m-%d %H:%M", time.localtime(at)), datetime=exact)


def asked_for(request: Any) -> str:
    """Return what was asked for, as people say it: ``sdxl 1024×1024 · batch 2×3 · Hires. fix ×2``."""
    parts = [f"{(request.get('model') or {}).get('family')} {request.get('width')}×{request.get('height')}"]
    batch, count = request.get("batch_size") or 1, request.get("batch_count") or 1
    if batch > 1 or count > 1:
        parts.append(f"batch {batch}×{count}")
    if request.get("hires"):
        parts.append(f"Hires. fix ×{request['hires'].get('scale'):g}")
    if (request.get("vae") or {}).get("tiled"):
        parts.append("Tiled VAE")
    if request.get("controlnets"):
        parts.append(f"ControlNet ×{len(request['controlnets'])}")
    return " · ".join(parts)


def outcome_of(run: Run, words: Words) -> str:
    """Return how ``run`` ended, and what was left of the card where that does not explain it."""
    unused_bytes = left_in(run)
    if unused_bytes is None:
        return _outcome_of(run, words)
    return words("outcome_to_spare", outcome=_outcome_of(run, words), unused_bytes=unused_bytes)


def _outcome_of(run: Run, words: Words) -> str:
    if run.fault is not None and run.is_rescued:
        return words("outcome_rescued", phase=words.phase(run.fault.phase))
    if run.fault is not None:
        return words("failed_simple", phase=words.phase(run.fault.phase))
    if run.outcome == "failed" and run.error == "other_processes":
        return words("failed_others")
    if run.outcome == "failed" and run.error not in ("", "unknown"):
        return words("failed_other", kind=words.kind(run.error))
    return words(f"outcome_{run.outcome}")
