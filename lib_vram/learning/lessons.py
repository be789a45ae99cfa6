"""What the runs of one machine teach: by how much each phase took more or less than was computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lib_vram.learning.explained import block_bytes, is_explained, most_more_bytes, unused_bytes
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
APART = 4.0
"""Activations that are further apart than this factor teach nothing about each other."""
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
    beyond_bytes: int = 0
    """What made more of it plausible than what is computed for the phase alone: the block that was asked for, and what
    runs had been measured to take."""


@dataclass(frozen=True)
class Doubt:
    """One failure that the run's own need does not explain, in bytes: it raises nothing."""

    activations_bytes: int
    needs_bytes: int
    """What was computed to be needed, with the models."""
    unused_bytes: int
    """What was left of the card."""
    start: float = 0.0
    """Of the WebUI that it came in."""


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
    doubts: Mapping[str, tuple[Doubt, ...]] = field(default_factory=dict)
    """Failures that no run as large has shown since to have been of the moment, oldest first."""


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
    found, contexts, count = _Found(), [], 0
    for run in runs:
        count += 1
        if run.context_bytes is not None:
            contexts.append(run.context_bytes)
        for record in run.phases:
            _learn(run, record, found)
        if run.fault is not None:
            _learn_fault(run, run.fault, found)
    return Lessons(
        {kind: tuple(seen[-MOST:]) for kind, seen in found.observations.items()},
        {kind: lacks for kind in found.lacks if (lacks := _standing(found.lacks[kind], found.seen(kind)))},
        tuple(contexts[-MOST:]),
        count,
        frozenset(found.failed),
        {kind: tuple(doubts[-MOST_FAULTS:]) for kind, doubts in found.doubts.items() if doubts},
    )


@dataclass(frozen=True)
class _Found:
    """What was found so far, by kind."""

    observations: dict[str, list[Observation]] = field(default_factory=dict)
    lacks: dict[str, list[Lack]] = field(default_factory=dict)
    doubts: dict[str, list[Doubt]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def seen(self, kind: str) -> list[Observation]:
        return self.observations.get(kind, [])


def _learn(run: Run, record: PhaseRecord, found: _Found) -> None:
    predicted, peak = record.predicted, record.peak
    if predicted is None or not _is_whole(run, record):
        return
    kind = kind_of(record.name, run.request)
    if kind in found.lacks:
        found.lacks[kind] = [lack for lack in found.lacks[kind] if not _disproves(run, predicted, lack)]
    if kind in found.doubts:
        found.doubts[kind] = [item for item in found.doubts[kind] if item.activations_bytes > predicted.floor_bytes]
    if peak.allocated_bytes is None or not peak.is_exact:
        return
    off_bytes = peak.allocated_bytes - predicted.allocated_bytes
    found.observations.setdefault(kind, []).append(
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


def _learn_fault(run: Run, fault: Fault, found: _Found) -> None:
    """Add what ``fault`` shows: what was missing, or that the run's own need does not explain it.

    Nothing where it was computed to fail.
    """
    predicted = next((item.predicted for item in run.phases if item.name == fault.phase), None)
    if predicted is None:
        return
    more_bytes = fault.demand_bytes - predicted.needs_bytes
    if more_bytes <= 0:
        return
    kind = kind_of(fault.phase, run.request)
    seen = found.seen(kind)
    beyond_bytes = block_bytes(fault) + _seen_more(predicted, seen[-MOST:])
    if is_explained(fault, more_bytes, most_more_bytes(predicted) + beyond_bytes):
        found.lacks.setdefault(kind, []).append(Lack(predicted.floor_bytes, more_bytes, len(seen), beyond_bytes))
        found.failed.add(kind)
    elif predicted.needs_bytes <= fault.room_bytes:
        unused = unused_bytes(fault, predicted.needs_bytes)
        found.doubts.setdefault(kind, []).append(Doubt(predicted.floor_bytes, predicted.needs_bytes, unused, run.start))


def _seen_more(predicted: Predicted, seen: Iterable[Observation]) -> int:
    """Return the most that runs near this size took beyond the computed, as bytes or as a share; 0 for none."""
    size_bytes = max(1, predicted.floor_bytes)
    shares = ((item.off_bytes, size_bytes / max(1, item.activations_bytes)) for item in seen)
    near = (int(off_bytes * max(1.0, share)) for off_bytes, share in shares if 1 / APART <= share <= APART)
    return max((0, *near))
