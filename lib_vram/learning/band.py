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
and exponential deviations lie inside from three runs on."""


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


def _median_without(ordered: Sequence[int], place: int) -> float:
    """Return the median of all but the value at ``place``."""
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    return (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
