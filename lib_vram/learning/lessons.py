"""What the runs of one machine teach: by how much each phase took more or less than was computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lib_vram.learning.record import Fault, PhaseRecord, Predicted, Run
from lib_vram.request import Request
from lib_vram.units import MIB

MOST = 40
"""Runs of one kind that are looked at, the newest: a machine drifts, and more would not be sharper."""
MOST_FAULTS = 10
OUTLIVED = 20
"""Whole runs of a kind whose peaks were measured: after so many they know better than a failure that came before."""
UNSEEN_BYTES = 512 * MIB
"""So much may still be missing then: what the driver holds, or lies between blocks, is in no peak that is measured."""
_VAE = frozenset(("vae_decode", "vae_encode", "hires_upscale"))
_ABOUT = ("family", "weights_dtype", "storage_dtype")


@dataclass(frozen=True)
class Observation:
    """One phase of one run, in bytes: what its activations were computed to take, and what was off."""

    activations_bytes: int
    off_bytes: int
    """Measured allocated less computed."""
    reserved_off_bytes: int | None = None
    """The same for reserved; ``None`` where it says nothing, as when the card was nearly full."""


@dataclass(frozen=True)
class Lack:
    """One failure, in bytes: what was computed, and by how much more it needed at the least."""

    activations_bytes: int
    more_bytes: int
    since: int = 0
    """How many runs of the kind had been measured by then."""


@dataclass(frozen=True)
class Lessons:
    """What one machine has shown, by the kind of phase. ``runs`` is how many runs it comes from."""

    observations: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    lacks: Mapping[str, tuple[Lack, ...]] = field(default_factory=dict)
    contexts_bytes: tuple[int, ...] = ()
    """What the driver's own part came to, run by run."""
    runs: int = 0
    failed: frozenset[str] = frozenset()
    """Kinds that have run out although they were computed to run, also those that were measured since."""


NOTHING = Lessons()


def kind_of(phase: str, request: Mapping[str, Any]) -> str:
    """Return what a phase's deviation hangs on beside the machine: model, attention, types, tiles.

    ``request`` is the JSON form.
    """
    model, vae = request.get("model") or {}, request.get("vae") or {}
    about = [str(model.get(name) or "") for name in _ABOUT]
    if phase in _VAE:
        about += [str(vae.get("dtype") or ""), "tiled" if vae.get("tiled") else "whole"]
    return "|".join((phase, *about, str(request.get("attention") or "")))


def kind_in(phase: str, request: Request) -> str:
    """Return the same of a request that is about to run, without making its whole JSON form."""
    model, vae = request.model, request.vae
    return kind_of(
        phase,
        {
            "model": {name: getattr(model, name, None) for name in _ABOUT},
            "vae": {"dtype": vae.dtype, "tiled": vae.tiled},
            "attention": request.attention,
        },
    )


def lessons_of(runs: Iterable[Run]) -> Lessons:
    """Return what ``runs`` of one machine, oldest first, teach."""
    observations: dict[str, list[Observation]] = {}
    lacks: dict[str, list[Lack]] = {}
    contexts: list[int] = []
    failed: set[str] = set()
    count = 0
    for run in runs:
        count += 1
        if run.context_bytes is not None:
            contexts.append(run.context_bytes)
        for record in run.phases:
            _learn(run, record, observations, lacks)
        if run.fault is not None:
            failed |= _learn_fault(run, run.fault, observations, lacks)
    return Lessons(
        {kind: tuple(found[-MOST:]) for kind, found in observations.items()},
        {kind: found for kind in lacks if (found := _standing(lacks[kind], observations.get(kind, [])))},
        tuple(contexts[-MOST:]),
        count,
        frozenset(failed),
    )


def _learn(
    run: Run, record: PhaseRecord, observations: dict[str, list[Observation]], lacks: dict[str, list[Lack]]
) -> None:
    predicted, peak = record.predicted, record.peak
    if predicted is None or not _is_whole(run, record):
        return
    kind = kind_of(record.name, run.request)
    if kind in lacks:
        lacks[kind] = [lack for lack in lacks[kind] if not _disproves(run, predicted, lack)]
    if peak.allocated_bytes is None or not peak.is_exact:
        return
    off_bytes = peak.allocated_bytes - predicted.allocated_bytes
    observations.setdefault(kind, []).append(
        Observation(predicted.floor_bytes, off_bytes, _reserved_off(run, record, predicted))
    )


def _is_whole(run: Run, record: PhaseRecord) -> bool:
    """Whether ``record`` is of a phase that ran to its end: one that was cut off says nothing of the whole."""
    if run.outcome == "failed":
        return (
            run.fault is not None
            and not run.is_rescued
            and record.name != run.fault.phase
            and record is not run.phases[-1]
        )
    return run.outcome == "done" and not run.is_rescued


def _reserved_off(run: Run, record: PhaseRecord, predicted: Predicted) -> int | None:
    peak = record.peak
    roomy = predicted.resident_bytes + predicted.comfortable_bytes <= run.available_bytes
    if peak.reserved_bytes is None or not peak.is_reserved_exact or not roomy:
        return None
    return peak.reserved_bytes - predicted.reserved_bytes


def _disproves(run: Run, predicted: Predicted, lack: Lack) -> bool:
    """Whether ``run`` did what a failure before it said could not be done: at a smaller size by its share."""
    share = min(1.0, predicted.floor_bytes / max(1, lack.activations_bytes))
    return predicted.needs_bytes + lack.more_bytes * share > run.available_bytes


def _standing(found: list[Lack], seen: list[Observation]) -> tuple[Lack, ...]:
    return tuple(
        replace(lack, more_bytes=min(lack.more_bytes, UNSEEN_BYTES)) if len(seen) - lack.since >= OUTLIVED else lack
        for lack in found
    )[-MOST_FAULTS:]


def _learn_fault(
    run: Run, fault: Fault, observations: dict[str, list[Observation]], lacks: dict[str, list[Lack]]
) -> set[str]:
    """Add what ``fault`` shows to ``lacks``; return the kind that failed, nothing where it was computed to fail."""
    predicted = next((item.predicted for item in run.phases if item.name == fault.phase), None)
    if predicted is None:
        return set()
    more_bytes = fault.demand_bytes - predicted.needs_bytes
    if more_bytes <= 0:
        return set()
    kind = kind_of(fault.phase, run.request)
    since = len(observations.get(kind, ()))
    lacks.setdefault(kind, []).append(Lack(predicted.floor_bytes, more_bytes, since))
    return {kind}
