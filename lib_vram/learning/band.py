"""Where the next value of a few is expected: robust to outliers, and wide enough where there are few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

LEAST_RUNS = 3
"""Below these nothing is said of how far the next run may be off."""
SHARE = 0.95
"""Of the runs of this machine that lie inside."""
WIDENING = 10
"""With ``n`` values of which not one in twenty may be missing, the largest distance is taken ``1 + WIDENING / n``
times. Chosen by simulation (``tests/learning/test_band.py``): 95 % of the next values of normal, uniform, Laplace
and exponential deviations lie inside from three runs on. ``tools/bands.py`` tries it on the whole correction."""
WIDENING_OF_TWO = 11
"""Two values say where the next one lies with that certainty within so many times the distance between them."""
FAR_SHARE = 10
"""One value in so many, and one of four at the least, may lie far from all others and be left out of account."""
FEWEST_WITH_FAR = 4


class Band(NamedTuple):
    """A middle and how far the next value may lie from it, in bytes."""

    middle_bytes: int
    half_bytes: int


def band(values: Sequence[int]) -> Band | None:
    """Return where the next of ``values`` is expected with :data:`SHARE` certainty; ``None`` for fewer than three.

    The distance is a conformal one: each value's from the median of the others.
    """
    count = len(values)
    if count < LEAST_RUNS:
        return None
    ordered = sorted(values)
    middle = median(ordered)
    distances = sorted(abs(value - _median_without(ordered, place)) for place, value in enumerate(ordered))
    rank = math.ceil((count + 1) * SHARE)
    half = distances[rank - 1] if rank <= count else distances[-1] * (1 + WIDENING / count)
    return Band(round(middle), math.ceil(half))


def of_few(values: Sequence[int], spread_bytes: int, least_bytes: int) -> Band:
    """Return where the next of one or two ``values`` is expected.

    ``spread_bytes`` is how far one may be off its computed value, which two that are close together narrow;
    ``least_bytes`` is the half width below which no two values speak.
    """
    middle, apart = round(sum(values) / len(values)), max(values) - min(values)
    if len(values) == 1:
        return Band(middle, max(spread_bytes, least_bytes))
    return Band(middle, min(max(least_bytes, WIDENING_OF_TWO * apart), max(least_bytes, spread_bytes) + apart))


def upper(values: Sequence[int]) -> Band:
    """Return the middle of ``values`` and how far the next may lie above it: those below it say nothing of that."""
    middle = median(values)
    above = max(values) - middle
    is_certain = math.ceil((len(values) + 1) * SHARE) <= len(values)
    return Band(round(middle), math.ceil(above if is_certain else above * (1 + WIDENING / len(values))))


def without_far(values: Sequence[int], far_bytes: int) -> list[int]:
    """Return ``values`` without the few that lie further than ``far_bytes`` from the middle of all.

    Where more than :data:`FAR_SHARE` allows do, they belong: a library may work in two ways.
    """
    middle = median(values)
    near = [value for value in values if abs(value - middle) <= far_bytes]
    allowed = max(1, len(values) // FAR_SHARE) if len(values) >= FEWEST_WITH_FAR else 0
    return near if len(values) - len(near) <= allowed else list(values)


def _median_without(ordered: Sequence[int], place: int) -> float:
    """Return the median of all but the value at ``place``."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
