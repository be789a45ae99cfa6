"""The least harmful plan that fits.

A plan is one choice per rung of the ladder: leave it, or one of its candidates. Of two plans the better one
changes the more harmful rung less: first the size, then the second pass, and so down to what costs nothing. So no
plan costs more than it must, no step of it can be left out, and each step goes no further than it must. How large a
tile is, or a reserve, nobody sees: of these it only counts that they are changed, and they go as far as the rest of
the plan leaves them to.

A plan may end in ``"fits"`` or ``"tight"``: both run, and the line is the same that ``"wont_fit"`` is drawn at. It
raises no phase's peak: not even with weights that a host would load because there is room for them again. Nor does
it move so much off the card that a machine would swap to disk which did not before.

The rungs are gone through from the most harmful one down. At each the least candidate is taken with which some
choice of the rungs below still works, and that is tried with all of those at their leanest: one question for each
candidate, not one for each combination. Two things need more than one: ways of attention and of storing weights, of
which none is the leanest everywhere; and hosts of Forge's line as long as their reserve is left alone, where less work
at once makes the host load more. Where the reserve may still be set, it holds that down.

Two thousand sizes need not all be tried: :func:`could_fit` is false from some size up, so a bisection finds where
to start, and after :data:`PATIENCE` sizes in order the steps get longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from lib_vram.estimate.diffusers import understood
from lib_vram.estimate.estimator import could_fit, estimate, failing_phase, measure
from lib_vram.estimate.flags import of_forge_line
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate
from lib_vram.message import Message, say
from lib_vram.plan import ram
from lib_vram.plan.adjustments import offered
from lib_vram.plan.host_rungs import RESERVE, finer_reserves
from lib_vram.plan.levers import LeverName
from lib_vram.plan.otherwise import what_would_fit
from lib_vram.plan.preferences import ANYTHING, KEPT, Preferences
from lib_vram.plan.recipe import recipe
from lib_vram.plan.result import Plan, Step
from lib_vram.plan.rung import Adjustment, Candidate
from lib_vram.request import Request

RUNS = ("fits", "tight")

FEW = 8
"""So many candidates are tried in order; of more, those that could not fit are left out by bisection."""
PATIENCE = 64
"""So many are tried in order before the steps get longer."""

TO_RAM = ("reserve", "controlnet_low_vram", "offload", "offload_layers")
"""Rungs that keep weights in RAM instead of on the card."""
SMALLER = ("hires_scale", "smaller_size")
"""Steps that give up some of the size that was asked for."""

RESERVE_MARGIN_STEPS = 2
"""What a reserve is set above the least that will do, in its finest steps: 128 MiB, about what drivers differ by."""

Choice = tuple[Adjustment, Candidate]
"""A rung and the candidate taken; a rung that is left alone is not in a list of choices."""
Choices = tuple[Choice, ...]
Ladder = tuple[Adjustment, ...]


def make_plan(request: Request, physics: Physics = COMPUTED, preferences: Preferences = ANYTHING) -> Plan:
    """Return the least harmful change after which ``request`` fits, or what else would help when none does.

    What ``preferences`` rule out is left alone.
    """
    request = understood(request)
    before = estimate(request, physics)
    if before.verdict in RUNS:
        return Plan(True, (), request, before)
    if measure(request, physics)[1]:
        return Plan(False, (), request, before, say("plan.when_not_known"))
    ladder = offered(request, preferences)
    choices = find_choices(request, before, physics, ladder)
    if choices is None:
        when_not = _what_else(request, before, physics, preferences)
        return Plan(False, (), request, before, when_not, _recipe(request, physics, ladder))
    after = apply_choices(request, choices)
    steps = _steps(request, before, choices, physics)
    smaller = any(step.id in SMALLER for step in steps)
    offered_beside = _recipe(request, physics, ladder) if smaller else None
    return Plan(True, steps, after, ram.noted(estimate(after, physics), after, physics), recipe=offered_beside)


def _recipe(request: Request, physics: Physics, ladder: Ladder) -> Message | None:
    """Return how to come by the asked size in several runs, each of which costs time at the most."""
    harmless = tuple(rung for rung in ladder if rung.costs(None) in ("nothing", "time"))

    def can_fit(run: Request) -> bool:
        asked = estimate(run, physics)
        return asked.verdict in RUNS or find_choices(run, asked, physics, harmless) is not None

    return recipe(request, can_fit)


def _what_else(request: Request, before: Estimate, physics: Physics, preferences: Preferences) -> Message:
    """Return what would help: first what a person rules out, then what is no change of the request."""
    if preferences.left_out:
        choices = find_choices(request, before, physics)
        ruled_out = [rung.id for rung, _ in choices or () if rung.id in preferences.left_out]
        if ruled_out:
            return _ruled_out(preferences, ruled_out)

    def can_be_made_to_fit(other: Request, physics: Physics) -> bool:
        asked = estimate(other, physics)
        return asked.verdict in RUNS or (find_choices(other, asked, physics, offered(other, preferences)) is not None)

    return what_would_fit(request, physics, can_be_made_to_fit)


def _ruled_out(preferences: Preferences, levers: Sequence[LeverName]) -> Message:
    """Return that ``levers`` would do it: named by what is kept, one after the other, or as what was undone."""
    reasons = [preferences.why(lever) for lever in levers]
    kept = [name for name in KEPT if name in reasons]
    if not kept:
        return say("plan.when_not_undone")
    return say(f"plan.when_not_kept_{kept[0]}" if len(kept) == 1 else "plan.when_not_kept")


def find_choices(request: Request, before: Estimate, physics: Physics, ladder: Ladder | None = None) -> Choices | None:
    """Return the best choices, in ladder order, ``None`` when no combination fits."""
    rungs = _within_ram(request, offered(request) if ladder is None else ladder, physics)
    choices = Search(request, before, physics, rungs).best()
    if choices is None or is_sure(apply_choices(request, choices), physics):
        return choices
    return Search(request, before, physics, rungs, counts_on_luck=False).best()


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


class Search:
    """The search for the best choices of ``ladder`` with which ``request`` fits; answers are kept while it lasts."""

    def __init__(
        self, request: Request, before: Estimate, physics: Physics, ladder: Ladder, *, counts_on_luck: bool = True
    ) -> None:
        self.request = request
        self.physics = physics
        self.ladder = ladder
        self.counts_on_luck = counts_on_luck
        """Whether a replay that gets by is enough: quick, and nearly always right."""
        self._peaks = {phase.name: phase.peak_bytes for phase in before.phases}
        self._runs: dict[Request, bool] = {}

    def best(self) -> Choices | None:
        """Return the best choices, in ladder order, ``None`` when no combination fits."""
        request, taken = self.request, []
        for place in reversed(range(len(self.ladder))):
            rung, below = self.ladder[place], self.ladder[:place]
            if self._can_work(request, below):
                continue
            candidate = self._least(request, rung, below)
            if candidate is None:
                return None
            request = rung.apply(request, candidate)
            taken.append((rung, candidate))
        return self._by_need(self._trimmed(tuple(reversed(taken))))

    def _least(self, request: Request, rung: Adjustment, below: Ladder) -> Candidate | None:
        """Return the least candidate of ``rung`` with which some choice of the rungs below works."""
        candidates = rung.candidates(request)
        if rung.by_need:
            candidates = candidates[-1:]

        def holds(candidate: Candidate) -> bool:
            return self._can_work(rung.apply(request, candidate), below)

        def could(candidate: Candidate) -> bool:
            return any(could_fit(lean, self.physics) for lean in _leanest(rung.apply(request, candidate), below))

        start = first_true(candidates, could) if len(candidates) > FEW else 0
        place = first_in_order(candidates[start:], holds)
        return None if place is None else candidates[start + place]

    def _can_work(self, request: Request, below: Ladder) -> bool:
        return any(self._is_acceptable(lean) for lean in _leanest(request, below))

    def _is_acceptable(self, request: Request) -> bool:
        """Return whether ``request`` runs and raises no phase's peak."""
        answer = self._runs.get(request)
        if answer is None:
            answer = failing_phase(request, self._peaks, self.physics) is None
            if answer and not self.counts_on_luck:
                answer = is_sure(request, self.physics)
            self._runs[request] = answer
        return answer

    def _trimmed(self, choices: Choices) -> Choices:
        """Return ``choices`` without those that turn out not to be needed."""
        for choice in reversed(choices):
            rest = tuple(other for other in choices if other is not choice)
            if self._is_offered(rest) and self._is_acceptable(apply_choices(self.request, rest)):
                choices = rest
        return choices

    def _by_need(self, choices: Choices) -> Choices:
        """Return ``choices`` with tiles as large and the reserve as small as the others leave them, one by one."""
        for place, (rung, most) in enumerate(choices):
            if not rung.by_need:
                continue
            before, after = choices[:place], choices[place + 1 :]
            others = apply_choices(self.request, (*before, *after))
            if _is_reserve(rung):
                value = self._needed_reserve(others, most)
            else:
                candidates = rung.candidates(others)
                found = first_in_order(candidates, self._accepts(others, rung))
                value = most if found is None else candidates[found]
            choices = (*before, (rung, value), *after)
        return choices

    def _accepts(self, others: Request, rung: Adjustment) -> Callable[[Candidate], bool]:
        return lambda candidate: self._is_acceptable(rung.apply(others, candidate))

    def _is_offered(self, choices: Choices) -> bool:
        """Return whether each of ``choices`` is still one of its rung's, beside the more harmful ones of them."""
        request = self.request
        for rung, candidate in reversed(choices):
            if candidate not in rung.candidates(request):
                return False
            request = rung.apply(request, candidate)
        return True

    def _needed_reserve(self, others: Request, most_bytes: int) -> int:
        """Return the least reserve that will do up to ``most_bytes``, and the margin where that does no harm."""
        accepts = self._accepts(others, RESERVE)
        sizes = finer_reserves(self.request, most_bytes)
        least = first_true(sizes, accepts)
        if least == len(sizes) or not accepts(sizes[least]):
            return most_bytes
        wide = sizes[min(least + RESERVE_MARGIN_STEPS, len(sizes) - 1)]
        return wide if accepts(wide) else sizes[least]


def _within_ram(request: Request, ladder: Ladder, physics: Physics) -> Ladder:
    """Return ``ladder`` without what moves so much to RAM that a machine swaps to disk which does not already."""
    if request.system.ram_total_bytes is None or _swaps_to_disk(request, physics):
        return ladder
    return tuple(_rung_within_ram(request, rung, physics) if rung.id in TO_RAM else rung for rung in ladder)


def _rung_within_ram(request: Request, rung: Adjustment, physics: Physics) -> Adjustment:
    candidates = rung.candidates(request)
    if not candidates or not _swaps_to_disk(rung.apply(request, candidates[-1]), physics):
        return rung
    most = first_true(candidates, lambda candidate: _swaps_to_disk(rung.apply(request, candidate), physics))
    allowed = frozenset(candidates[:most])
    return replace(rung, candidates=lambda asked: tuple(item for item in rung.candidates(asked) if item in allowed))


def _swaps_to_disk(request: Request, physics: Physics) -> bool:
    """Return whether what stays in RAM while pictures are made is more than this machine has for it."""
    room_bytes = ram.room_bytes(request)
    need = ram.ram_need(request, physics) if room_bytes is not None else None
    return need is not None and room_bytes is not None and need.running_bytes > room_bytes


def _is_reserve(rung: Adjustment) -> bool:
    return rung.id == RESERVE.id


def first_in_order(items: Sequence[Candidate], holds: Callable[[Candidate], bool]) -> int | None:
    """Return the index of the first item for which ``holds``, ``None`` when there is none.

    After :data:`PATIENCE` items the steps double; where one of those holds, a bisection goes back to the first.
    """
    place, last, step = 0, 0, 1
    while place < len(items):
        if holds(items[place]):
            return last + first_true(items[last:place], holds)
        last = place + 1
        step = step * 2 if place >= PATIENCE else 1
        is_last = last == len(items)
        place = len(items) if is_last else min(place + step, len(items) - 1)
    return None


def _leanest(request: Request, below: Ladder) -> Iterator[Request]:
    """Yield ``request`` with the rungs ``below`` such that at least one needs as little as any choice of them can."""
    loads_more = of_forge_line(request) and not any(map(_is_reserve, below))
    choices = [_lean_options(rung, request, every=rung.either or loads_more) for rung in reversed(below)]
    for values in product(*choices):
        yield apply_choices(request, [choice for choice in values if choice is not None])


def _lean_options(rung: Adjustment, request: Request, *, every: bool) -> tuple[Choice | None, ...]:
    candidates = rung.candidates(request)
    if not candidates:
        return (None,)
    if not every:
        return ((rung, candidates[-1]),)
    return (None, *((rung, candidate) for candidate in (candidates[-1:] if rung.by_need else candidates)))


def _steps(request: Request, before: Estimate, choices: Choices, physics: Physics) -> tuple[Step, ...]:
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
                saves_bytes=_saved_bytes(before, without, after),
                costs=adjustment.costs(candidate),
                text=adjustment.text(now, then),
            )
        )
        now = then
    return tuple(steps)


def _value_after(adjustment: Adjustment, now: Request, then: Request) -> object:
    """A field that is switched on has the value ``True``; how far it goes is in the text and in the plan's request."""
    value = adjustment.value(then)
    return True if adjustment.value(now) is False else value


def _saved_bytes(before: Estimate, without: Estimate, after: Estimate) -> int:
    """Return what a step takes off the phase that fails ``without`` it: does not run, or peaks higher than before."""
    now = {phase.name: phase for phase in after.phases}
    if without.verdict not in RUNS and without.binding is not None:
        binding = without.binding
        return binding.needs_bytes - (now[binding.name].needs_bytes if binding.name in now else 0)
    peaks = {phase.name: phase.peak_bytes for phase in before.phases}
    both = [phase for phase in without.phases if phase.name in now]
    raised = [phase for phase in both if phase.peak_bytes > peaks.get(phase.name, phase.peak_bytes)]
    return max((phase.peak_bytes - now[phase.name].peak_bytes for phase in raised or both), default=0)
