"""Does a set of tensors satisfy a line of :mod:`lib_vram.model.signatures`?"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache

from lib_vram.model.signatures import Line

Shapes = Mapping[str, tuple[int, ...]]
_SIZE = re.compile(r"(.+)\[(-?\d+)\]=([\d|]+)")


class Names:
    """Names and shapes of tensors, asked for conditions."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._sorted = sorted(shapes)

    def holds(self, condition: str) -> bool:
        """Return whether ``condition``, as :mod:`lib_vram.model.signatures` writes them, is true."""
        if condition.startswith("!"):
            return not self.holds(condition[1:])
        if condition.endswith("."):
            return self.any_begins(condition)
        asked = _sizes(condition)
        if asked is None:
            return condition in self._shapes
        name, axis, sizes = asked
        shape = self._shapes.get(name, ())
        return -len(shape) <= axis < len(shape) and shape[axis] in sizes

    def all_hold(self, conditions: Iterable[str]) -> bool:
        """Return whether every one of ``conditions`` holds."""
        return all(self.holds(condition) for condition in conditions)

    def any_begins(self, start: str) -> bool:
        """Return whether a name begins with ``start``."""
        place = bisect_left(self._sorted, start)
        return place < len(self._sorted) and self._sorted[place].startswith(start)

    def first(self, lines: Iterable[Line]) -> str | None:
        """Return the name of the first line that holds; ``None`` when none does."""
        return next((name for name, conditions in lines if self.all_hold(conditions)), None)


@lru_cache(maxsize=1024)
def _sizes(condition: str) -> tuple[str, int, frozenset[int]] | None:
    match = _SIZE.fullmatch(condition)
    if match is None:
        return None
    name, axis, sizes = match.groups()
    return name, int(axis), frozenset(int(size) for size in sizes.split("|"))
