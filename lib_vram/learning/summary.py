"""The history in figures: each phase computed against measured, and how far the whole was off, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lib_vram.learning.band import band
from lib_vram.learning.record import Predicted, Run


@dataclass(frozen=True)
class PhaseSummary:
    """One phase of one family, over the runs in which its peak is known exactly. Sizes in bytes, as torch counts."""

    phase: str
    family: str
    runs: int
    computed_bytes: int
    measured_bytes: int
    """Of the newest of the runs."""
    off: float
    """The median of how far they were off, as a share of the computed."""
    half: float | None
    """How far the next one may be from that, as such a share; ``None`` for too few runs."""


@dataclass(frozen=True)
class Miss:
    """How far one run's peak was off, as shares: above 0 it took more."""

    run: Run
    computed: float
    """Against the estimate without what was learned."""
    said: float
    """Against the estimate as it was shown."""
    low: float
    high: float
    """The band that was shown, against its own middle."""

    @property
    def is_inside(self) -> bool:
        """Whether it lay in the band that was shown."""
        return self.low <= self.said <= self.high


def by_phase(runs: Sequence[Run]) -> tuple[PhaseSummary, ...]:
    """Return each phase's summary, in the order in which the families and phases were last run."""
    seen: dict[tuple[str, str], list[tuple[Predicted, int]]] = {}
    for run in runs:
        if run.outcome != "done" or run.is_rescued:
            continue
        family = family_of(run)
        for record in run.phases:
            if record.predicted is not None and record.peak.is_exact and record.peak.allocated_bytes is not None:
                seen.setdefault((family, record.name), []).append((record.predicted, record.peak.allocated_bytes))
    return tuple(_summary(family, phase, pairs) for (family, phase), pairs in seen.items())


def _summary(family: str, phase: str, pairs: list[tuple[Predicted, int]]) -> PhaseSummary:
    predicted, measured_bytes = pairs[-1]
    computed_bytes = max(1, predicted.allocated_bytes)
    parts = [_millionths(measured - item.allocated_bytes, item.allocated_bytes) for item, measured in pairs]
    found = band(parts)
    return PhaseSummary(
        phase, family, len(pairs), computed_bytes, measured_bytes, median(parts) / 1e6,
        found.half_bytes / 1e6 if found else None,
    )  # fmt: skip


def _millionths(off_bytes: int, of_bytes: int) -> int:
    return round(1e6 * off_bytes / max(1, of_bytes))


def misses(runs: Sequence[Run]) -> tuple[Miss, ...]:
    """Return how far each run was off in the phase that was to peak, oldest first; only where that is known."""
    found = []
    for run in runs:
        measured, record = run.measured_bytes, run.peak
        if run.outcome != "done" or run.is_rescued or measured is None or record is None or record.predicted is None:
            continue
        computed = record.predicted.resident_bytes + record.predicted.floor_bytes
        said = max(1, run.expected_bytes)
        found.append(
            Miss(run, measured / max(1, computed) - 1, measured / said - 1, run.low_bytes / said - 1,
                 run.high_bytes / said - 1)
        )  # fmt: skip
    return tuple(found)


def family_of(run: Run) -> str:
    """Return the family of the run's model."""
    return str((run.request.get("model") or {}).get("family") or "")
