"""Whether a generation fits: each phase's residents and activations against what the card has left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from lib_vram.errors import NotReady
from lib_vram.estimate.diffusers import understood
from lib_vram.estimate.flags import of_forge_line, runs_on
from lib_vram.estimate.hires_model import of_first_model
from lib_vram.estimate.notes import later_notes, notes_on
from lib_vram.estimate.patched import with_fewest_tiles
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.physics import forget as forget_physics
from lib_vram.estimate.refiner import all_placed
from lib_vram.estimate.residency import (
    CONTEXT_BYTES,
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    SEGMENT_BYTES,
    Placed,
    as_computed,
    available_bytes,
    least_bytes,
    with_part,
)
from lib_vram.estimate.result import Estimate, PhaseEstimate, PhaseName, Verdict
from lib_vram.estimate.timeline import looks_at_free_memory, timeline
from lib_vram.estimate.weights import ModelWeights, weights_of
from lib_vram.estimate.work import WORKERS, Worker, Working
from lib_vram.message import Message, say
from lib_vram.physics.addons import Addon
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.physics.interval import on_device
from lib_vram.request import Request


@dataclass(frozen=True)
class Measured:
    """A piece of work, what is on the device meanwhile, and what its activations need."""

    placed: Placed
    memory: ComponentMemory


def estimate(request: Request, physics: Physics = COMPUTED) -> Estimate:
    """Return whether ``request`` fits, which phase binds and by how much.

    What VRAM Guard cannot compute yet (a family, a part) is verdict ``"unknown"`` with a note that
    says so. The same request is answered from memory the second time.

    Raises:
        BadInput: ``request.alloc_conf`` is not a setting that PyTorch takes, or diffusers has no such thing.
    """
    request = understood(request)
    return _estimate(request, weights_of(request), physics)


def forget() -> None:
    """Forget every answer: a profile has come that was not there before."""
    forget_physics()
    _estimate.cache_clear()


def measure(request: Request, physics: Physics = COMPUTED) -> tuple[tuple[Measured, ...], tuple[Message, ...]]:
    """Return every piece of work of ``request`` with its memory, and notes on what cannot be computed yet."""
    request = understood(request)
    return _measure(request, weights_of(request), physics)


def could_fit(request: Request, physics: Physics = COMPUTED) -> bool:
    """Return whether ``request`` is not ruled out: a necessary condition that more pixels never make true.

    It compares the floor of each part, with cond and uncond apart and one picture at a time in the VAE on Forge,
    and the least that the host can keep on the device. Where it is false :func:`estimate` says
    ``"wont_fit"``; where it is true, :func:`estimate` decides. Add-ons are left out: many see the picture at a size of
    their own, for which a larger one can be smaller.
    """
    request = understood(request)
    weights = weights_of(request)
    if weights is None:
        return False
    request = with_fewest_tiles(request)
    works = of_first_model(request, timeline(request))
    room = available_bytes(request)
    for work, resident_bytes in zip(works, least_bytes(request, works, weights), strict=True):
        if isinstance(work.component, Addon):
            continue
        if resident_bytes + physics.floor(_leanest(request, as_computed(request, work.component))) > room:
            return False
    return True


def runs(
    request: Request,
    peaks: Mapping[PhaseName, int],
    physics: Physics = COMPUTED,
    workers: Collection[Worker] = WORKERS,
    *,
    forgiving: bool = False,
) -> bool:
    """Return whether all of ``request``, or what ``workers`` do, runs and peaks nowhere above its phase in ``peaks``.

    A ``forgiving`` comparison with ``peaks`` leaves out the models that Forge keeps only while there is room.
    The same answer as :func:`estimate` gives, for a request all of which can be computed, at a fraction of the time:
    the floors first, and then one replay for each part.
    """
    return (
        weights_of(request) is not None and failing_phase(request, peaks, physics, workers, forgiving=forgiving) is None
    )


def failing_phase(
    request: Request,
    peaks: Mapping[PhaseName, int],
    physics: Physics = COMPUTED,
    workers: Collection[Worker] = WORKERS,
    *,
    forgiving: bool = False,
) -> PhaseName | None:
    """Return the phase for which :func:`runs` says no, ``None`` when it says yes: of several, one."""
    request = understood(request)
    weights = weights_of(request)
    if weights is None:
        return None
    room = available_bytes(request)
    works = [_with_preview(placed, physics) for placed in all_placed(request, weights) if placed.work.worker in workers]
    for placed in works:
        floor_bytes = physics.floor(placed.component)
        compared_bytes = placed.needed_bytes if forgiving else placed.resident_bytes
        if placed.resident_bytes + floor_bytes > room:
            return placed.work.phase
        if compared_bytes + floor_bytes > peaks.get(placed.work.phase, room):
            return placed.work.phase
    for placed in works:
        if not physics.runs(placed.component, room - placed.resident_bytes):
            return placed.work.phase
    return None


def _leanest(request: Request, component: Working) -> Working:
    """The same part as the host may run it at the least: Forge halves and splits by itself, A1111 does as told.

    Where attention slices itself or is done in tiles, more pixels can need less; there the bound is that of xformers,
    which has no score matrix on either host.
    """
    if isinstance(component, Addon):
        return component
    varies = looks_at_free_memory(component) or component.shortened is not None
    lean = replace(component, attention="xformers", shortened=None) if varies else component
    return replace(lean, cfg=False, batch=1 if _is_vae(lean) else lean.batch) if of_forge_line(request) else lean


def _is_vae(component: Component) -> bool:
    return component.part in ("vae_decode", "vae_encode")


@lru_cache(maxsize=4096)
def _estimate(request: Request, weights: ModelWeights | None, physics: Physics) -> Estimate:
    room = available_bytes(request)
    measured, unknown = _measure(request, weights, physics)
    if weights is None or not measured:
        return Estimate("unknown", room, notes=unknown)
    phases = _phases(measured)
    binding = max(phases, key=lambda phase: phase.needs_bytes)
    verdict = _verdict(phases, room, known=not unknown)
    placed = tuple(item.placed for item in measured)
    notes = (*unknown, *weights.notes, *notes_on(request, placed, phases, room))
    return Estimate(
        verdict=verdict,
        available_bytes=room,
        binding_phase=binding.name,
        peak_bytes=binding.peak_bytes,
        low_bytes=binding.resident_bytes + binding.low_bytes + CONTEXT_LOW_BYTES - CONTEXT_BYTES,
        high_bytes=binding.resident_bytes + binding.high_bytes + CONTEXT_HIGH_BYTES - CONTEXT_BYTES,
        phases=phases,
        notes=notes,
    )


def _measure(
    request: Request, weights: ModelWeights | None, physics: Physics
) -> tuple[tuple[Measured, ...], tuple[Message, ...]]:
    if weights is None or not runs_on(request.host, request.model.family):
        return (), (say("estimate.family_later", family=request.model.family),)
    measured: list[Measured] = []
    later: dict[str, Message] = {}
    for placed in all_placed(request, weights):
        try:
            measured.append(_measured(placed, physics, request))
        except NotReady:
            later.update(_later(placed.component))
    refiner = request.refiner
    known = refiner is None or runs_on(request.host, refiner.family)
    return tuple(measured), (*later.values(), *later_notes(request, refiner_known=known))


def _later(component: Working) -> dict[str, Message]:
    if isinstance(component, Addon):
        return {component.kind: say("estimate.part_later", part=component.kind, family="add-ons")}
    return {component.part: say("estimate.part_later", part=component.part, family=component.family)}


def _measured(placed: Placed, physics: Physics, request: Request) -> Measured:
    placed = _with_preview(placed, physics)
    room_bytes = available_bytes(request) - placed.resident_bytes
    memory = _as_it_ends(physics.memory(placed.component), placed.component, room_bytes, physics)
    return Measured(placed, on_device(memory, request.device.name))


def _as_it_ends(memory: ComponentMemory, component: Working, room_bytes: int, physics: Physics) -> ComponentMemory:
    """Return ``memory`` with a minimum on the side of ``room_bytes`` on which a replay in just that room puts it.

    Around the minimum a slightly larger limit can fail where a smaller one succeeds, so the minimum alone does not say
    how it ends here.
    """
    if not memory.floor_bytes <= room_bytes < memory.comfortable_bytes:
        return memory
    runs = physics.runs(component, room_bytes)
    if runs == (memory.minimum_bytes <= room_bytes):
        return memory
    minimum_bytes = room_bytes if runs else min(room_bytes + SEGMENT_BYTES, memory.comfortable_bytes)
    return replace(memory, minimum_bytes=minimum_bytes)


def _with_preview(placed: Placed, physics: Physics) -> Placed:
    if placed.work.beside is None:
        return placed
    return with_part(placed, "live_preview", physics.memory(placed.work.beside).minimum_bytes)


def _phases(measured: tuple[Measured, ...]) -> tuple[PhaseEstimate, ...]:
    by_name: dict[PhaseName, list[Measured]] = {}
    for item in measured:
        by_name.setdefault(item.placed.work.phase, []).append(item)
    return tuple(_phase(name, items) for name, items in by_name.items())


def _phase(name: PhaseName, items: list[Measured]) -> PhaseEstimate:
    """One phase of several pieces of work: the residents of the one that needs most, and room for all of them."""
    top = max(items, key=lambda item: item.placed.resident_bytes + item.memory.minimum_bytes)
    base_bytes = top.placed.resident_bytes
    over = [(item.placed.resident_bytes - base_bytes, item.memory) for item in items]
    most = max(
        item.placed.resident_bytes - base_bytes + item.placed.tails_bytes + item.memory.comfortable_bytes
        for item in items
    )
    return PhaseEstimate(
        name=name,
        resident_bytes=base_bytes,
        floor_bytes=max(extra + memory.floor_bytes for extra, memory in over),
        minimum_bytes=top.memory.minimum_bytes,
        comfortable_bytes=most,
        low_bytes=max(extra + memory.low_bytes for extra, memory in over),
        high_bytes=max(extra + memory.high_bytes for extra, memory in over),
        source=top.memory.source,
        resident_parts=top.placed.resident,
    )


def _verdict(phases: tuple[PhaseEstimate, ...], room_bytes: int, *, known: bool) -> Verdict:
    if any(phase.needs_bytes > room_bytes for phase in phases):
        return "wont_fit"
    if not known:
        return "unknown"
    return "tight" if any(phase.wants_bytes > room_bytes for phase in phases) else "fits"
