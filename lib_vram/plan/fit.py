"""The largest size, or the largest batch, with which a request still runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import could_fit, estimate, measure, runs
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate
from lib_vram.plan.adjustments import MULTIPLE, same_aspect
from lib_vram.plan.search import PATIENCE, RUNS, first_true
from lib_vram.plan.table import Correct, as_computed
from lib_vram.request import BATCH_LIMITS, SIZE_LIMITS, Request

Vary = Literal["size", "batch"]


@dataclass(frozen=True)
class Fit:
    """The largest that fits and its peak in bytes. All are 0 when not even the smallest does."""

    width: int
    height: int
    batch_size: int
    peak_bytes: int
    is_known: bool = True
    """Whether the search came to its end in the time that it was given."""

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form, with ``"known": false`` where time ran out."""
        sizes = {"width": self.width, "height": self.height, "batch_size": self.batch_size}
        return {**sizes, "peak_bytes": self.peak_bytes, **({} if self.is_known else {"known": False})}


NONE_FITS, NOT_YET = Fit(0, 0, 0, 0), Fit(0, 0, 0, 0, is_known=False)


def largest(
    request: Request,
    vary: Vary,
    physics: Physics = COMPUTED,
    correct: Correct = as_computed,
    until: float = math.inf,
) -> Fit:
    """Return the largest size of the same shape on multiples of 8, or the largest batch, that runs.

    It is not capped by what ``request`` asks for. ``correct`` is what this machine's runs make of each estimate.
    After ``until``, a reading of :func:`time.monotonic`, the answer is left open; what was computed is remembered.

    Raises:
        NotReady: the memory of ``request`` cannot be computed yet.
    """
    unknown = measure(request, physics)[1]
    if unknown:
        raise NotReady("request", got=request.model.family, takes=str(unknown[0]))
    sizes = _sizes(request) if vary == "size" else _batches(request)

    def corrected(size: Tried) -> Estimate:
        candidate = size.of(request)
        return correct(estimate(candidate, physics), candidate)

    start = first_true(sizes, lambda size: could_fit(size.of(request), physics))
    if correct is not as_computed:  # what was learned moves the line further than one would go step by step
        fits_at = start + first_true(sizes[start:], lambda size: corrected(size).verdict in RUNS)
        start = max(start, fits_at - PATIENCE)  # a few sizes above may need less, as blocks happen to lie
    for size in sizes[start:]:
        if time.monotonic() >= until:
            return NOT_YET
        if correct is as_computed and not runs(size.of(request), {}, physics):
            continue  # the same answer, sooner
        result = corrected(size)
        if result.verdict in RUNS:
            return Fit(size.width, size.height, size.batch_size, result.peak_bytes)
    return NONE_FITS


class Tried(NamedTuple):
    """One size and batch to be tried; thousands are listed, and few become requests."""

    width: int
    height: int
    batch_size: int

    def of(self, request: Request) -> Request:
        """Return ``request`` at this size and batch."""
        return request.replace(width=self.width, height=self.height, batch_size=self.batch_size)


def _sizes(request: Request) -> Sequence[Tried]:
    low, high = SIZE_LIMITS
    sizes = (same_aspect(request.width, request.height, side) for side in range(high, low - 1, -MULTIPLE))
    return [Tried(width, height, request.batch_size) for width, height in sizes if min(width, height) >= low]


def _batches(request: Request) -> Sequence[Tried]:
    low, high = BATCH_LIMITS
    return [Tried(request.width, request.height, size) for size in range(high, low - 1, -1)]
