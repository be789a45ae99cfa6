"""Rescue: which change of the plan helps where a run has failed. Loaded with the first failure."""

from __future__ import annotations

from dataclasses import replace

from lib_vram.errors import BadInput
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.flags import host_tiles, of_forge_line
from lib_vram.estimate.result import Estimate, PhaseEstimate, PhaseName
from lib_vram.guard import infotext
from lib_vram.guard.rescue import DECODES, MOST_TRIES, Lesson, Rung
from lib_vram.message import Message, say
from lib_vram.plan.adjustments import LADDER, Adjustment
from lib_vram.plan.preferences import Preferences
from lib_vram.plan.search import make_plan
from lib_vram.request import Request
from lib_vram.units import MIB

DETAIL_FROM_TRY = 2
"""From this try on the second pass may become smaller: better a smaller picture than none. Its size never changes."""
ROOM = {1: 0.9, 2: 0.6}
"""Share of a phase's computed activations that is planned with when it ran out although it was said to fit."""
RESERVE = 1.5
"""How much more than before a host of Forge's line keeps free for computing, each time that was not enough."""
MOST_RESERVE = 0.8
"""Share of the card that such a reserve may take: some weights must be on the card."""
SAMPLES: frozenset[PhaseName] = frozenset(("sampling", "refiner_sampling", "hires_upscale", "hires_sampling"))
SECOND_PASS: frozenset[PhaseName] = frozenset(("hires_upscale", "hires_sampling"))
TIMELY = ("batch_to_count", "cond_uncond_apart")
"""Rungs of the ladder that a step of sampling can take in the middle of a run; they cost only time."""
MIDWAY = Preferences(
    undone=frozenset(
        ("free_idle_models", "live_preview", "attention", "controlnet_low_vram", "upscaler_tile", "fp8_storage")
    )
)
"""What cannot be done differently in the middle of a run is no part of its plan."""


def next_rung(
    request: Request | None, lesson: Lesson, tried: int, *, may_split: bool = True, in_tiles: bool = False
) -> Rung:
    """Return what to change for the try number ``tried`` (from 1), nothing but a fresh try where nothing helps.

    ``in_tiles`` says that the step can be done again in tiles; a decode always can.

    ``request`` is what ran, ``None`` when it cannot be computed. The change comes from the plan for a card that has
    what the failure has shown, and takes only what can be done differently in the step that failed.
    """
    in_tiles = in_tiles or lesson.phase in DECODES
    if request is None or not (in_tiles or lesson.phase in SAMPLES):
        return Rung(request)
    try:
        before = estimate(request)
        wanted = _planned(request, before, lesson, tried)
    except BadInput:  # NotReady too: this model's memory is not known
        before, wanted = Estimate("unknown", 0), None
    changed = request
    if wanted is not None:
        changed = _with_tiles(request, wanted) if in_tiles else _of_this_step(request, wanted, lesson.phase, tried)
    whole = {"batch_size": request.batch_size, "batch_count": request.batch_count} if not may_split else {}
    changed = changed.replace(**whole)
    if changed == request:
        changed = _leanest(request, ("vae_tiled",) if in_tiles else TIMELY).replace(**whole)
    changed = _with_reserve(request, changed, _phase(before, lesson.phase), lesson.phase)
    return Rung(changed, infotext.changes_line(request, changed), _steps(request, changed))


def _planned(request: Request, before: Estimate, lesson: Lesson, tried: int) -> Request | None:
    plan = make_plan(_taught(request, before, lesson, tried), preferences=MIDWAY)
    return plan.request if plan.fits else None


def _taught(request: Request, before: Estimate, lesson: Lesson, tried: int) -> Request:
    """Return ``request`` on a card that has no more than the failure has shown."""
    room_bytes = before.available_bytes
    if lesson.room_bytes is not None:
        room_bytes = min(room_bytes, lesson.room_bytes)
    phase = _phase(before, lesson.phase)
    if phase is not None and phase.needs_bytes <= room_bytes:
        room_bytes = phase.resident_bytes + int(phase.minimum_bytes * ROOM[min(tried, MOST_TRIES)])
    others_bytes = max(0, request.device.total_bytes - room_bytes)
    return request.replace(device=replace(request.device, used_by_others_bytes=others_bytes))


def _phase(before: Estimate, name: PhaseName) -> PhaseEstimate | None:
    """Return the phase of that name; an encode in a text's run is that of the second pass's picture."""
    names = (name, "hires_upscale") if name == "vae_encode" else (name,)
    found = {phase.name: phase for phase in before.phases}
    return next((found[known] for known in names if known in found), before.binding)


def _with_tiles(request: Request, wanted: Request) -> Request:
    return request.replace(vae=wanted.vae, forge=replace(request.forge, never_oom_vae=wanted.forge.never_oom_vae))


def _of_this_step(request: Request, wanted: Request, phase: PhaseName, tried: int) -> Request:
    """Return ``request`` with those changes of ``wanted`` that the step in ``phase`` can be done again with."""
    changed = request.replace(
        batch_size=wanted.batch_size, batch_count=wanted.batch_count, batch_cond_uncond=wanted.batch_cond_uncond
    )
    if phase in SECOND_PASS and tried >= DETAIL_FROM_TRY and wanted.hires is not None:
        changed = changed.replace(hires=wanted.hires)
    return changed


def _leanest(request: Request, names: tuple[str, ...]) -> Request:
    """Return ``request`` with the rungs of those ids taken as far as they go, where no plan is to be had."""
    for adjustment in LADDER:
        candidates = adjustment.candidates(request) if adjustment.id in names else ()
        if candidates:
            request = adjustment.apply(request, candidates[-1])
    return request


def _with_reserve(request: Request, changed: Request, phase: PhaseEstimate | None, name: PhaseName) -> Request:
    """Let a host of Forge's line keep more free for computing, which takes weights off the card."""
    if not of_forge_line(request) or name not in SAMPLES:
        return changed
    now_bytes = request.forge.inference_memory_bytes
    wanted_bytes = int(max(now_bytes * RESERVE, phase.comfortable_bytes if phase is not None else 0))
    wanted_bytes = min(wanted_bytes, int(request.device.total_bytes * MOST_RESERVE)) // MIB * MIB
    if wanted_bytes <= now_bytes:
        return changed
    return changed.replace(forge=replace(changed.forge, inference_memory_bytes=wanted_bytes))


def _steps(before: Request, after: Request) -> tuple[Message, ...]:
    """Return what is different, one sentence part a change, in the order of the ladder."""
    steps = [adjustment.text(before, after) for adjustment in LADDER if _differs(adjustment, before, after)]
    reserves = (before.forge.inference_memory_bytes, after.forge.inference_memory_bytes)
    if reserves[1] > reserves[0] and not any(step.key.startswith("plan.reserve") for step in steps):
        steps.append(say("rescue.reserve", reserve_bytes=reserves[1]))
    return tuple(steps)


def _differs(adjustment: Adjustment, before: Request, after: Request) -> bool:
    if adjustment.id == "vae_tiled":
        return before.vae != after.vae or before.forge.never_oom_vae != after.forge.never_oom_vae
    return bool(adjustment.value(before) != adjustment.value(after))


def tile_of(request: Request | None) -> int | None:
    """Return the tile in pixels that ``request`` decodes with, ``None`` where the host has tiles of its own."""
    if request is None or host_tiles(request) or not request.vae.tiled:
        return None
    return request.vae.tile_size
