"""The largest size, or the largest batch, with which a request still runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "width": self.width,
            "height": self.height,
            "batch_size": self.batch_size,
            "peak_bytes": self.peak_bytes,
        }


def largest(request: Request, vary: Vary, physics: Physics = COMPUTED, correct: Correct = as_computed) -> Fit:
    """Return the largest size of the same shape on multiples of 8, or the largest batch, that runs.

    It is not capped by what ``request`` asks for. ``correct`` is what this machine's runs make of each estimate.

    Raises:
        NotReady: the memory of ``request`` cannot be computed yet.
    """
    unknown = measure(request, physics)[1]
    if unknown:
        raise NotReady("request", got=request.model.family, takes=str(unknown[0]))
    candidates = _sizes(request) if vary == "size" else _batches(request)
    start = first_true(candidates, lambda candidate: could_fit(candidate, physics))

    def corrected(candidate: Request) -> Estimate:
        return correct(estimate(candidate, physics), candidate)

    if correct is not as_computed:  # what was learned moves the line further than one would go step by step
        fits_at = start + first_true(candidates[start:], lambda candidate: corrected(candidate).verdict in RUNS)
        start = max(start, fits_at - PATIENCE)  # a few sizes above may need less, as blocks happen to lie
    for candidate in candidates[start:]:
        if correct is as_computed and not runs(candidate, {}, physics):
            continue  # the same answer, sooner
        result = corrected(candidate)
        if result.verdict in RUNS:
            return Fit(candidate.width, candidate.height, candidate.batch_size, result.peak_bytes)
    return Fit(0, 0, 0, 0)


def _sizes(request: Request) -> Sequence[Request]:
    low, high = SIZE_LIMITS
    sizes = (same_aspect(request.width, request.height, side) for side in range(high, low - 1, -MULTIPLE))
    return [request.replace(width=width, height=height) for width, height in sizes if min(width, height) >= low]


def _batches(request: Request) -> Sequence[Request]:
    low, high = BATCH_LIMITS
    return [request.replace(batch_size=size) for size in range(high, low - 1, -1)]
