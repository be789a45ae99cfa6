"""Whether a session goes back and forth between checkpoints: each time one is read from disk and another put away."""

from __future__ import annotations

import itertools
from collections import deque

from lib_vram.message import Message, say

REMEMBERED_RUNS = 20
MANY_SWITCHES = 4


class Switches:
    """The checkpoints of the latest generations, in order."""

    def __init__(self) -> None:
        self._used: deque[str] = deque(maxlen=REMEMBERED_RUNS)

    def ran(self, checkpoint: str | None) -> None:
        """Take note of a generation with ``checkpoint``; one whose file is not known tells nothing."""
        if checkpoint:
            self._used.append(checkpoint)

    def suggestion(self) -> Message | None:
        """Return that work can be grouped by checkpoint, when half of the switches or more would fall away."""
        used = list(self._used)
        switches = sum(before != after for before, after in itertools.pairwise(used))
        needed = len(set(used)) - 1
        if switches < MANY_SWITCHES or switches < 2 * needed:
            return None
        return say("live.group", runs=len(used), switches=switches, needed=needed)
