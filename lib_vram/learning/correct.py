"""Corrects an estimate by what this machine has shown.

Two sides, not treated alike. That a phase takes *more* here is believed from one run on, since a failure costs the
picture. That it takes *less* is believed only from three runs, by what all of their band agrees on, and never below
the floor that was computed: no lesson can make a request fit whose live tensors alone have no room.

A deviation that was seen at one size may be the same number of bytes at another (a buffer) or the same share (a
kernel's workspace): the band holds both, and wider the further the size is from those that were seen.

A failure says only where the phase stopped, not what it would have come to. So until a run of its kind has been
measured, half as much again is counted for it; afterwards what was measured, up to the band's upper end. Where even
that does not explain the failure, or no driver says what it holds, something may have been missing that PyTorch does
not count, and that is counted too.

No failure raises a phase beyond what can be plausible for it (:mod:`lib_vram.learning.explained`). One that this does
not explain is told and raises nothing; after two in one start what seemed to fit is called tight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from lib_vram.estimate.residency import CONTEXT_BYTES, CONTEXT_HIGH_BYTES, CONTEXT_LOW_BYTES
from lib_vram.estimate.result import Estimate, PhaseEstimate, Verdict
from lib_vram.learning.band import LEAST_RUNS, Band, band, of_few, upper, without_far
from lib_vram.learning.explained import LIMIT_NOTE, most_more_bytes
from lib_vram.learning.lessons import APART, Doubt, Lack, Lessons, Observation, kind_in
from lib_vram.message import Message, say
from lib_vram.request import Request
from lib_vram.units import MIB

NEAR = (math.sqrt(2), 2.0, APART)
"""Sizes that teach about each other: activations apart by no more than the first of these factors that has enough
runs. Beyond the last, nothing is carried over."""
LEAST_HALF_BYTES = 8 * MIB
LEAST_HALF_SHARE = 0.005
"""Of the phase's peak: runs with the same settings differ by their prompts' lengths, however alike those seen were."""
LACK_SHARE = 1.1
"""Of what a failure shows to be missing: torch says only of the one block that did not fit any more."""
CAUTION_SHARE = 0.5
LEAST_CAUTION_BYTES = 384 * MIB
"""What a phase that has failed is taken to need beyond that, of its activations and at the least, while nothing that
was measured near this size explains the failure. The soak (``tools/soak.py``) is the test of both."""
FEW_HALVES = 3
"""With fewer measured runs than make a band, so many of its least half width lie around them at the least."""
MOST_HALF_SHARE, MOST_HALF_SEEN = 0.15, 1.5
"""Of the activations, and of the furthest run that was seen: a band of a few runs is widened no further than to the
larger of these and what is computed, since few runs that lie far apart say little of how far others may."""
DOUBTS_OF_A_LIMIT = 2
"""Failures of one start that their runs do not explain: one is an accident, two look like a limit."""
FAR_SHARE, LEAST_FAR_BYTES = 0.25, 128 * MIB
"""Of the activations, and at the least: what single runs that are further off than both do not move the band by."""


@dataclass(frozen=True)
class Correction:
    """What one phase is off by on this machine, in bytes."""

    more_bytes: int = 0
    """What it surely needs beyond what was computed; below 0 where it needs less."""
    more_reserved_bytes: int = 0
    off: Band | None = None
    """Where its peak is expected, less the computed one; ``None`` where no run has shown it."""
    runs: int = 0
    has_failed: bool = False


def apply(estimate: Estimate, request: Request, lessons: Lessons, *, only_more: bool = False) -> Estimate:
    """Return ``estimate`` of ``request`` as this machine's ``lessons`` correct it; the same object for no lesson.

    ``only_more`` leaves out that something takes less: for lessons of another start of the same machine.
    """
    result = _with_figures(estimate, request, lessons, only_more=only_more)
    return result if only_more or not lessons.doubts else _doubted(result, request, lessons)


def _with_figures(estimate: Estimate, request: Request, lessons: Lessons, *, only_more: bool) -> Estimate:
    """Return ``estimate`` with its figures corrected."""
    if not estimate.phases or not (lessons.observations or lessons.lacks or lessons.contexts_bytes):
        return estimate
    context = _context(lessons)
    corrections = [correction(phase, kind_in(phase.name, request), lessons) for phase in estimate.phases]
    if only_more:
        corrections, context = [_only_more(item) for item in corrections], _only_more_held(context)
    if context is None and not any(item.runs or item.has_failed for item in corrections):
        return estimate
    phases = tuple(_corrected(phase, item, context) for phase, item in zip(estimate.phases, corrections, strict=True))
    binding = max(phases, key=lambda phase: phase.needs_bytes)
    place = phases.index(binding)
    return replace(
        estimate,
        verdict=_verdict(estimate, phases),
        binding_phase=binding.name,
        peak_bytes=_peak(estimate.phases[place], corrections[place], context),
        low_bytes=binding.resident_bytes + binding.low_bytes + _context_ends(context)[0],
        high_bytes=binding.resident_bytes + binding.high_bytes + _context_ends(context)[1],
        phases=phases,
        notes=(*_notes(estimate.phases[place], corrections[place], context, lessons), *_kept_notes(estimate, context)),
    )


def _doubted(result: Estimate, request: Request, lessons: Lessons) -> Estimate:
    """Return ``result`` with what is to be said of failures that no need explains, tight where they look like a limit.

    Larger runs than those that failed so are meant too, smaller ones are not.
    """
    found: tuple[Doubt, ...] = ()
    for phase in result.phases:
        doubts = lessons.doubts.get(kind_in(phase.name, request), ())
        large = [doubt for doubt in doubts if doubt.activations_bytes <= phase.floor_bytes]
        found = max(found, tuple(doubt for doubt in large if doubt.start == large[-1].start), key=len)
    if not found:
        return result
    figures = {"needs_bytes": found[-1].needs_bytes, "unused_bytes": found[-1].unused_bytes}
    if len(found) < DOUBTS_OF_A_LIMIT:
        return replace(result, notes=(say("learning.note_doubt", **figures), *result.notes))
    verdict: Verdict = "tight" if result.verdict == "fits" else result.verdict
    notes = (say(LIMIT_NOTE, runs=len(found), **figures), *result.notes)
    return replace(result, verdict=verdict, notes=notes)


def corrector(
    lessons: Callable[[Request], Lessons], request: Request
) -> Callable[[Estimate, Request], Estimate] | None:
    """Return what corrects estimates by ``lessons``, ``None`` where nothing is known of the start of ``request``.

    Under another start (flags, allocator) its own runs count. Where there are none, what takes more under the start of
    ``request`` counts there too, and what takes less does not: so no flag seems to help because nothing is known of it.
    """
    now = lessons(request)
    if not now.runs:
        return None

    def correct(result: Estimate, asked: Request) -> Estimate:
        own = lessons(asked)
        return apply(result, asked, own) if own.runs else apply(result, asked, now, only_more=True)

    return correct


def _only_more(item: Correction) -> Correction:
    return replace(
        item, more_bytes=max(0, item.more_bytes), more_reserved_bytes=max(0, item.more_reserved_bytes), off=None
    )


def _only_more_held(context: Band | None) -> Band | None:
    return context if context is not None and context.middle_bytes > 0 else None


def correction(phase: PhaseEstimate, kind: str, lessons: Lessons) -> Correction:
    """Return what ``lessons`` say of ``phase``, which is of the ``kind`` that they are kept by."""
    near = _near(phase.floor_bytes, lessons.observations.get(kind, ()))
    lacks = lessons.lacks.get(kind, ())
    lack_bytes = max((0, *(_lacking(phase, lack) for lack in lacks)))
    most_bytes = max((0, *(_most_lacking(phase, lack) for lack in lacks)))
    caution_bytes = LEAST_CAUTION_BYTES
    if len(near) < LEAST_RUNS:
        caution_bytes = max(caution_bytes, int(CAUTION_SHARE * phase.minimum_bytes))
    if not near:
        more_bytes = min(lack_bytes + caution_bytes, most_bytes) if lack_bytes else 0
        return Correction(more_bytes, more_bytes, has_failed=lack_bytes > 0)
    offs = [[item.off_bytes for item in near], [_scaled(item.off_bytes, item, phase) for item in near]]
    off = _off(phase, offs)
    reserved = [item for item in near if item.reserved_off_bytes is not None]
    reserved_offs = [
        [item.reserved_off_bytes or 0 for item in reserved],
        [_scaled(item.reserved_off_bytes or 0, item, phase) for item in reserved],
    ]
    more_bytes = max(_most(phase, values) for values in offs) if kind in lessons.failed else _sure(offs, off)
    if lack_bytes > max(0, more_bytes):
        lack_bytes = min(lack_bytes + caution_bytes, most_bytes)
    elif lack_bytes and not lessons.contexts_bytes:
        lack_bytes = more_bytes + LEAST_CAUTION_BYTES
    return Correction(
        _at_least(lack_bytes, more_bytes),
        _at_least(lack_bytes, _sure(reserved_offs, _off(phase, reserved_offs))),
        off, len(near), lack_bytes > 0,
    )  # fmt: skip


def _at_least(lack_bytes: int, more_bytes: int) -> int:
    """Return ``more_bytes``, and no less than a failure has shown to be missing, where one has."""
    return max(lack_bytes, more_bytes) if lack_bytes > 0 else more_bytes


def _near(activations_bytes: int, seen: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return the observations at the nearest sizes of which there are enough."""
    found: tuple[Observation, ...] = ()
    for factor in NEAR:
        found = tuple(item for item in seen if _apart(item.activations_bytes, activations_bytes) <= factor)
        if len(found) >= LEAST_RUNS:
            break
    return found


def _apart(first_bytes: int, second_bytes: int) -> float:
    low, high = sorted((max(1, first_bytes), max(1, second_bytes)))
    return high / low


def _scaled(size_bytes: int, item: Observation, phase: PhaseEstimate) -> int:
    return size_bytes * phase.floor_bytes // max(1, item.activations_bytes)


def _off(phase: PhaseEstimate, offs: list[list[int]]) -> Band | None:
    """Return the band that holds what all of ``offs`` say, and is no narrower than like runs are apart."""
    found = [_band(phase, values) for values in offs if values]
    if not found:
        return None
    low = min(item.middle_bytes - item.half_bytes for item in found)
    high = max(item.middle_bytes + item.half_bytes for item in found)
    return Band((low + high) // 2, max(_least_half(phase), -(-(high - low) // 2)))


def _band(phase: PhaseEstimate, values: list[int]) -> Band:
    far_bytes = max(LEAST_FAR_BYTES, int(FAR_SHARE * phase.floor_bytes))
    near = without_far(values, far_bytes)
    spread_bytes = (phase.high_bytes - phase.low_bytes) // 2
    found = band(near)
    if found is None:
        return of_few(values, spread_bytes, FEW_HALVES * _least_half(phase))
    seen_bytes = max(abs(value - found.middle_bytes) for value in near)
    return Band(found.middle_bytes, min(found.half_bytes, _most_half(phase, seen_bytes)))


def _most_half(phase: PhaseEstimate, seen_bytes: int) -> int:
    """Return how wide a band of ``phase`` may be where the furthest run lies ``seen_bytes`` from its middle."""
    spread_bytes = (phase.high_bytes - phase.low_bytes) // 2
    return max(spread_bytes, int(MOST_HALF_SHARE * phase.floor_bytes), int(MOST_HALF_SEEN * seen_bytes))


def _most(phase: PhaseEstimate, values: list[int]) -> int:
    """Return the most that is expected beyond the computed, for a kind that has failed; below 0 where it takes less."""
    if len(values) < LEAST_RUNS:
        found = _band(phase, values)
        return found.middle_bytes + found.half_bytes
    found = upper(values)
    half_bytes = min(found.half_bytes, _most_half(phase, max(values) - found.middle_bytes))
    return found.middle_bytes + max(_least_half(phase), half_bytes)


def _least_half(phase: PhaseEstimate) -> int:
    return LEAST_HALF_BYTES + int(LEAST_HALF_SHARE * phase.peak_bytes)


def _sure(offs: list[list[int]], off: Band | None) -> int:
    """Return what is surely needed beyond the computed (above 0), or surely not (below 0)."""
    more = max((round(median(values)) if len(values) >= LEAST_RUNS else min(values) for values in offs if values),
               default=0)  # fmt: skip
    if more > 0:
        return more
    is_enough = off is not None and min(map(len, offs)) >= LEAST_RUNS
    return min(0, off.middle_bytes + off.half_bytes) if off is not None and is_enough else 0


def _lacking(phase: PhaseEstimate, lack: Lack) -> int:
    """Return what a failure says is missing in ``phase``: at a smaller size its share, at a larger one as much more."""
    share = phase.floor_bytes / max(1, lack.activations_bytes)
    return int(lack.more_bytes * min(share, NEAR[-1]) * LACK_SHARE)


def _most_lacking(phase: PhaseEstimate, lack: Lack) -> int:
    """Return the most that a failure can say of ``phase``: what is plausible for it, and what explained the failure."""
    share = phase.floor_bytes / max(1, lack.activations_bytes)
    return most_more_bytes(phase) + int(lack.beyond_bytes * min(share, NEAR[-1]))


def _context(lessons: Lessons) -> Band | None:
    """Return what the driver's part is off by, ``None`` for too few readings."""
    found = band(lessons.contexts_bytes)
    if found is None:
        return None
    return Band(found.middle_bytes - CONTEXT_BYTES, max(found.half_bytes, LEAST_HALF_BYTES))


def _context_ends(context: Band | None) -> tuple[int, int]:
    if context is None:
        return CONTEXT_LOW_BYTES - CONTEXT_BYTES, CONTEXT_HIGH_BYTES - CONTEXT_BYTES
    return context.middle_bytes - context.half_bytes, context.middle_bytes + context.half_bytes


def _corrected(phase: PhaseEstimate, item: Correction, context: Band | None) -> PhaseEstimate:
    """Return ``phase`` with its figures corrected; the computed floor stays, and no figure goes below it."""
    driver = 0
    if context is not None:
        surely_less = min(0, context.middle_bytes + context.half_bytes)
        driver = context.middle_bytes if context.middle_bytes > 0 else surely_less
    minimum = max(phase.floor_bytes, phase.minimum_bytes + item.more_bytes + driver)
    low, high = phase.low_bytes, phase.high_bytes
    if item.off is not None:
        middle = phase.floor_bytes + item.off.middle_bytes
        low, high = middle - item.off.half_bytes, middle + item.off.half_bytes
    return replace(
        phase,
        minimum_bytes=minimum,
        comfortable_bytes=max(minimum, phase.comfortable_bytes + item.more_reserved_bytes + driver),
        low_bytes=low,
        high_bytes=max(high, phase.floor_bytes + max(0, item.more_bytes)),
    )


def _peak(phase: PhaseEstimate, item: Correction, context: Band | None) -> int:
    """Return where the peak of ``phase`` is expected, as the computed one is off here."""
    off_bytes = item.off.middle_bytes if item.off is not None else max(0, item.more_bytes)
    return phase.peak_bytes + off_bytes + (context.middle_bytes if context is not None else 0)


def _verdict(estimate: Estimate, phases: tuple[PhaseEstimate, ...]) -> Verdict:
    room = estimate.available_bytes
    if any(phase.needs_bytes > room for phase in phases):
        return "wont_fit"
    if estimate.verdict == "unknown" or _unknown_beside(estimate):
        return "unknown"
    return "tight" if any(phase.wants_bytes > room for phase in phases) else "fits"


def _unknown_beside(estimate: Estimate) -> bool:
    """Whether the estimate leaves a part out, which a computed ``wont_fit`` hides: then nothing may be promised."""
    return any(note.key.endswith("_later") for note in estimate.notes)


def _notes(phase: PhaseEstimate, item: Correction, context: Band | None, lessons: Lessons) -> tuple[Message, ...]:
    """Return what is said about the binding phase; of another one's correction, from how many runs it comes."""
    notes: list[Message] = []
    if item.has_failed:
        notes.append(say("learning.note_failed"))
    if item.runs:
        off_bytes = (item.off.middle_bytes if item.off else item.more_bytes) + (context.middle_bytes if context else 0)
        notes.append(_said("note_run", item.runs, percent=percent(off_bytes, phase.peak_bytes)))
    elif not item.has_failed:
        notes.append(_said("note_other", lessons.runs))
    return tuple(notes)


def _said(key: str, runs: int, **values: str) -> Message:
    return say(f"learning.{key}{'' if runs == 1 else 's'}", runs=runs, **values)


def _kept_notes(estimate: Estimate, context: Band | None) -> tuple[Message, ...]:
    """Return what was said before, less how much the driver's part is allowed for once that is known."""
    return tuple(note for note in estimate.notes if context is None or note.key != "estimate.interval")


def percent(off_bytes: int, of_bytes: int) -> str:
    """Return a share with its sign, as ``+3 %``."""
    share = round(100 * off_bytes / of_bytes) if of_bytes else 0
    return f"{'+' if share > 0 else '−' if share < 0 else '±'}{abs(share)} %"
