"""Slow steps in a progress bar, when a log shows nothing else."""

from __future__ import annotations

import re

from lib_vram.diagnosis.fragments import FRAGMENTS, SLOW_STEPS
from lib_vram.diagnosis.scan import Hit, Log

_FRAGMENT = next(item for item in FRAGMENTS if item.tier == SLOW_STEPS)
_PATTERN = re.compile(_FRAGMENT.text.removeprefix("re:"))


def slow_steps(log: Log) -> Hit | None:
    """Return the last progress bar, when its steps take ten seconds or more each."""
    place = log.content.rfind(b"s/it")
    if place < 0:
        return None
    begin = max(log.content.rfind(b"\n", 0, place) + 1, place - 300)
    line = log.content[begin : place + 4].lower()
    return Hit(_FRAGMENT, line, 0) if _PATTERN.search(line.decode("utf-8", "replace")) else None
