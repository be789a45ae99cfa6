"""The least harmful plan that fits, searched exactly.

A plan is one choice per rung of the ladder: leave it, or one of its candidates. Of two plans the better one
changes the more harmful rung less: first the size, then the second pass, then cond and uncond, the tiles and
the batch. So no plan costs more than it must, no step of it can be left out, and each step goes no further than
it must. A plan may end in ``"fits"`` or ``"tight"``: both run, and the line is the same that
``"wont_fit"`` is drawn at. It raises no phase's peak; only where that would cost detail or the picture, a plan
for Forge may let it keep other models in memory that stays free, which it sends away first when room is short.

Two thousand sizes and scales need not all be estimated: :func:`could_fit` is false from some size up, so a
bisection finds where to start, and from there every candidate is tried in order. Where hundreds have failed,
a size whose smallest second pass fails too is not tried with the larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from lib_vram.estimate.estimator import could_fit, estimate, failing_phase, measure
from lib_vram.estimate.flags import host_tiles, of_forge_line
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate, PhaseName
from lib_vram.estimate.timeline import Worker
from lib_vram.message import say
from lib_vram.plan.adjustments import LADDER, Adjustment, Candidate
from lib_vram.plan.otherwise import what_would_fit
from lib_vram.plan.result import Plan, Step
from lib_vram.request import Request

RUNS = ("fits", "tight")
SAMPLERS: frozenset[Worker] = frozenset(("unet", "controlnet"))

FIRST_PASS: frozenset[PhaseName] = frozenset(("vae_encode", "text_encode", "sampling"))
"""What is done before a second pass begins, and so does not depend on its size."""

PATIENCE = 300
"""Sizes and scales tried, a second or so, before a size is left out because its least second pass does not run."""

Choice = tuple[Adjustment, Candidate]
"""A rung and the candidate taken; a rung that is left alone is not in a list of choices."""
Choices = tuple[Choice, ...]

_BATCH, _TILE, _APART, _HIRES, _SIZE = LADDER


def make_plan(request: Request, physics: Physics = COMPUTED) -> Plan:
    """Return the least harmful change after which ``request`` fits, or what else would help when none does."""
    before = estimate(request, physics)
    if before.verdict in RUNS:
        return Plan(True, (), request, before)
    if measure(request, physics)[1]:
        return Plan(False, (), request, before, say("plan.when_not_known"))
    choices = find_choices(request, before, physics)
    if choices is None:
        return Plan(False, (), request, before, what_would_fit(request, physics, _can_be_made_to_fit))
    after = apply_choices(request, choices)
    return Plan(True, _steps(request, choices, physics), after, estimate(after, physics))


def find_choices(request: Request, before: Estimate, physics: Physics) -> Choices | None:
    """Return the best choices, in ladder order, ``None`` when no combination fits."""
    leanest = apply_choices(request, _leanest_choices(request))
    peaks = {phase.name: phase.peak_bytes for phase in before.phases}
    sizes, scales = _options(_SIZE, request), _options(_HIRES, request)

    def can_work(size: Candidate, scale: Candidate) -> bool:
        return could_fit(_with(_HIRES, _with(_SIZE, leanest, size), scale), physics)

    attempts = 0
    for size in sizes[first_true(sizes, lambda size: can_work(size, scales[-1])) :]:
        hopeless: set[Choices] = set()
        least = _with(_HIRES, _with(_SIZE, leanest, size), scales[-1])
        if attempts > PATIENCE and failing_phase(least, peaks, physics, forgiving=True) is not None:
            continue
        for scale in scales[first_true(scales, lambda scale: can_work(size, scale)) :]:  # noqa: B023 (called at once)
            harm = _chosen(((_HIRES, scale), (_SIZE, size)))
            attempts += 1
            times = _time_choices(apply_choices(request, harm), peaks, physics, hopeless)
            if times is not None:
                return (*times, *harm)
    return None


def is_acceptable(before: Estimate, after: Estimate) -> bool:
    """Return whether ``after`` runs and none of its phases peaks higher than it did ``before``."""
    if after.verdict not in RUNS:
        return False
    peaks = {phase.name: phase.peak_bytes for phase in before.phases}
    return all(phase.peak_bytes <= peaks.get(phase.name, phase.peak_bytes) for phase in after.phases)


def is_sure(request: Request, physics: Physics) -> bool:
    """Return whether ``request``, which runs, is also said to fit: a replay may get by with less than the minimum.

    Blocks can come to lie well by chance on a device that is a little too small; nobody should count on it.
    """
    return estimate(request, physics).verdict in RUNS


def apply_choices(request: Request, choices: Sequence[Choice]) -> Request:
    """Return ``request`` with ``choices`` made."""
    for adjustment, candidate in choices:
        request = adjustment.apply(request, candidate)
    return request


def first_true(items: Sequence[Candidate], holds: Callable[[Candidate], bool]) -> int:
    """Return the index of the first item for which ``holds``, by bisection: once true, true for all that follow."""
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if holds(items[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _options(adjustment: Adjustment, request: Request) -> tuple[Candidate, ...]:
    """Leaving the rung alone (``None``), then its candidates."""
    return (None, *adjustment.candidates(request))


def _time_options(request: Request) -> Iterator[Choices]:
    """Every combination of the rungs that cost only time, least harmful first: the batch changes fastest."""
    rungs = (_APART, _TILE, _BATCH)
    for values in product(*(_options(rung, request) for rung in rungs)):
        yield _chosen(tuple(zip(reversed(rungs), reversed(values), strict=True)))


def _time_choices(
    request: Request, peaks: Mapping[PhaseName, int], physics: Physics, hopeless: set[Choices]
) -> Choices | None:
    """Return the best choices of the rungs that cost only time, ``None`` when none of them is enough.

    Where the tiles do not touch what samples, a batch that cannot be sampled is not tried with every tile.
    On Forge choices after which it keeps more of other models in what stays free come second. ``hopeless`` are
    the choices whose first pass has failed at this size: no second pass changes that, and more are added here.
    """
    samples: dict[Choices, PhaseName | None] = {}
    second_best: Choices | None = None
    without_tiles = not host_tiles(request) and request.live_preview != "full"  # full previews decode in them
    for choices in _time_options(request):
        sampling = choices
        if without_tiles:
            sampling = tuple(choice for choice in choices if choice[0] is not _TILE)
        if sampling in hopeless:
            continue
        if without_tiles and sampling not in samples:
            samples[sampling] = failing_phase(apply_choices(request, sampling), peaks, physics, SAMPLERS)
        failing = samples.get(sampling)
        if failing is None:
            changed = apply_choices(request, choices)
            failing = failing_phase(changed, peaks, physics)
            if failing is None and is_sure(changed, physics):
                return choices
            if of_forge_line(request) and second_best is None:
                failing = failing_phase(changed, peaks, physics, forgiving=True)
                second_best = choices if failing is None and is_sure(changed, physics) else None
        if failing in FIRST_PASS:
            hopeless.add(sampling)
    return second_best


def _leanest_choices(request: Request) -> Choices:
    return _chosen(tuple((rung, _options(rung, request)[-1]) for rung in (_BATCH, _TILE, _APART)))


def _chosen(choices: Sequence[Choice]) -> Choices:
    return tuple(choice for choice in choices if choice[1] is not None)


def _with(adjustment: Adjustment, request: Request, candidate: Candidate) -> Request:
    return request if candidate is None else adjustment.apply(request, candidate)


def _steps(request: Request, choices: Choices, physics: Physics) -> tuple[Step, ...]:
    """Each choice as a step, in ladder order; what it saves is what would be missing without it."""
    after = estimate(apply_choices(request, choices), physics)
    steps = []
    now = request
    for choice in choices:
        adjustment, candidate = choice
        then = adjustment.apply(now, candidate)
        without = estimate(apply_choices(request, [other for other in choices if other is not choice]), physics)
        steps.append(
            Step(
                id=adjustment.id,
                field=adjustment.field(now),
                before=adjustment.value(now),
                after=_value_after(adjustment, now, then),
                saves_bytes=_saved_bytes(without, after),
                costs=adjustment.costs,
                text=adjustment.text(now, then),
            )
        )
        now = then
    return tuple(steps)


def _value_after(adjustment: Adjustment, now: Request, then: Request) -> Any:
    """A field that is switched on has the value ``True``; how far it goes is in the text and in the plan's request."""
    value = adjustment.value(then)
    return True if adjustment.value(now) is False else value


def _saved_bytes(without: Estimate, after: Estimate) -> int:
    needs = {phase.name: phase.needs_bytes for phase in after.phases}
    if without.binding is None:
        return 0
    return without.binding.needs_bytes - needs.get(without.binding.name, 0)


def _can_be_made_to_fit(request: Request, physics: Physics) -> bool:
    before = estimate(request, physics)
    return before.verdict in RUNS or find_choices(request, before, physics) is not None
