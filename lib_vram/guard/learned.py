"""What the guard knows from earlier runs on this machine: it keeps what each took, and corrects what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib_vram.estimate.result import Estimate
from lib_vram.guard.fail_open import fail_open
from lib_vram.host.course import steps_of, was_stopped
from lib_vram.plan.result import Plan
from lib_vram.request import Request
from lib_vram.units import MIB, round_up

if TYPE_CHECKING:
    from lib_vram.host.base import Host
    from lib_vram.learning.durations import Known
    from lib_vram.learning.record import Machine
    from lib_vram.learning.recorder import Recorder
    from lib_vram.learning.store import Store
    from lib_vram.plan.table import Correct

STEP_BYTES = 32 * MIB
"""Less room is counted in such steps, so that a plan is still at hand when a run has moved a lesson by a little."""
MOST_PLANS = 3
"""A plan that a lesson about the smaller sizes spoils is made again with a little less room, so often in all."""


def _nothing(*_: Any) -> None:
    return None


def _as_computed(fault: Exception, learned: Learned, result: Estimate, request: Request) -> Estimate:
    return result


class Learned:
    """One for a host. Does nothing until it is opened, and nothing that could stop a generation."""

    def __init__(self, host: Host, estimate: Callable[[Request], Estimate]) -> None:
        self._host, self._estimate = host, estimate
        self._about: tuple[str, bool] | None = None
        self.recorder: Recorder | None = None

    @fail_open(instead=_nothing)
    def open(self, folder: Path | None = None) -> None:
        """Keep what runs take from now on, in ``folder``; by default in the extension's own."""
        from lib_vram.learning import recorder, store

        if self.recorder is None:
            kept = store.Store(folder or store.FOLDER)
            self.recorder = recorder.Recorder(kept, self._machine, self._estimate, self._host.card)
            recorder.use(self.recorder)

    @property
    def store(self) -> Store | None:
        """Where runs are kept, ``None`` where they are not."""
        return self.recorder.store if self.recorder is not None else None

    def _machine(self, request: Request) -> Machine:
        from lib_vram.learning.versions import machine_of

        if self._about is None:
            card = self._host.card()
            self._about = self._host.version(), card is not None and card.source == "virtual"
        return machine_of(request, self._about[0], virtual=self._about[1])

    # what happens

    @fail_open(instead=_nothing)
    def heard(self, event: str, values: Mapping[str, Any], failure: str = "") -> None:
        """Hear of an event of the session: ``run``, ``phase``, ``rescued``, ``failed`` with its text, ``done``."""
        if self.recorder is None:
            return
        if event == "run":
            self.recorder.opened(values.get("request"))
        elif event == "phase":
            self.recorder.phase(str(values.get("name")))
        elif event == "failed":
            self.recorder.failed(failure)
        elif event == "rescued":
            changes, error = str(values.get("changes") or "again"), str(values.get("failure") or "")
            self._rescued(str(values.get("name")), changes, error)
        elif event == "done":
            self.recorder.dropped()

    def _rescued(self, phase: str, action: str, error: str) -> None:
        from lib_vram.learning.store import record_rescue

        if self.recorder is not None:
            self.recorder.rescued(phase, error)
        record_rescue(phase, action, is_rescued=True, host=self._host.name)

    @fail_open(instead=_nothing)
    def runs(self, p: Any, request: Request) -> None:
        """Note that the run of ``p`` will compute ``request``, after whatever the guard has changed."""
        if self.recorder is not None:
            self.recorder.runs(p, request, steps=steps_of(p))

    @fail_open(instead=_nothing)
    def measured(self, phase: str, allocated_bytes: int, reserved_bytes: int, context_bytes: int) -> None:
        """Take over what ``phase`` took on the virtual card, which has no torch to ask."""
        if self.recorder is not None:
            from lib_vram.learning.peaks import Peak

            device_bytes = reserved_bytes + context_bytes
            peak = Peak(allocated_bytes, reserved_bytes, device_bytes, True, True)
            self.recorder.measured(phase, peak, context_bytes)

    @fail_open(instead=_nothing)
    def ended(self, p: Any, *, stopped: bool = False) -> None:
        """Note that the run of ``p`` came to its end: by itself, or because a person stopped it."""
        if self.recorder is not None:
            self.recorder.ended(p, "stopped" if stopped or was_stopped() else "done")

    # what comes of it

    @fail_open(instead=_as_computed)
    def corrected(self, result: Estimate, request: Request) -> Estimate:
        """Return ``result``, the computed estimate of ``request``, as this machine's runs correct it."""
        if self.recorder is None:
            return result
        from lib_vram.learning.correct import apply

        return apply(result, request, self.recorder.lessons(request))

    @fail_open(instead=_nothing)
    def seconds(self, request: Request, steps: int | None = None) -> Known | None:
        """Return how long ``request`` took on this machine before; ``None`` where it was never run like this.

        Without ``steps``, of the runs with whatever steps.
        """
        return self.recorder.seconds(request, steps) if self.recorder is not None else None

    @fail_open(instead=_nothing)
    def correct_of(self, request: Request) -> Correct | None:
        """Return what corrects estimates of the start that ``request`` is of, ``None`` where nothing is known."""
        if self.recorder is None:
            return None
        from lib_vram.learning.correct import corrector

        return corrector(self.recorder.lessons, request)

    @fail_open(instead=lambda *_: False)
    def is_here(self, request: Request) -> bool:
        """Whether ``request`` is of this machine: the same host and card."""
        card = self._host.card()
        device = request.device
        return (
            card is not None
            and request.host == self._host.name
            and (device.name, device.total_bytes) == (card.name, card.total_bytes)
        )

    @fail_open(instead=lambda fault, learned, request, make_plan: make_plan(request))
    def planned(self, request: Request, make_plan: Callable[[Request], Plan]) -> Plan:
        """Return what would make ``request`` fit, nothing to change where it fits as it is corrected."""
        correct = self.correct_of(request)
        if correct is None:
            return make_plan(request)
        return corrected_plan(request, make_plan, self._estimate, correct)

    def plan(self, request: Request, result: Estimate, make_plan: Callable[[Request], Plan]) -> Plan:
        """Return what would make ``request`` fit, of which ``result`` is the corrected estimate."""
        if self.recorder is None:
            return make_plan(request)
        return _plan_for(request, result, make_plan, self._estimate, self.corrected)


def corrected_plan(
    request: Request, make_plan: Callable[[Request], Plan], estimate: Callable[[Request], Estimate], correct: Correct
) -> Plan:
    """Return what would make ``request`` fit on a machine whose runs ``correct`` what is computed."""
    from lib_vram.plan import ram

    result = correct(estimate(request), request)
    if result.verdict in ("fits", "tight"):
        return Plan(True, (), request, ram.noted(result, request))
    return _plan_for(request, result, make_plan, estimate, correct)


def _plan_for(
    request: Request, result: Estimate, make_plan: Callable[[Request], Plan],
    estimate: Callable[[Request], Estimate], correct: Correct,
) -> Plan:  # fmt: skip
    """Return the plan for ``request``, of which ``result`` is the corrected estimate.

    Where this machine needs more than is computed, the plan is made for a card with that much less room.
    """
    from lib_vram.plan import ram

    more_bytes = _more(result, estimate(request))
    for _ in range(MOST_PLANS):
        plan = make_plan(_on_less(request, more_bytes))
        changed = plan.request.replace(device=request.device)
        plan = replace(plan, request=changed, estimate=ram.noted(correct(estimate(changed), changed), changed))
        if not plan.fits or plan.estimate.verdict != "wont_fit":
            return plan
        more_bytes += plan.estimate.missing_bytes
    return replace(plan, fits=False)


def _more(result: Estimate, as_it_was: Estimate) -> int:
    """Return by how much the phases of ``result`` that do not fit need more than was computed."""
    computed = {phase.name: phase.needs_bytes for phase in as_it_was.phases}
    failing = [phase for phase in result.phases if phase.needs_bytes > result.available_bytes]
    return max((phase.needs_bytes - computed.get(phase.name, 0) for phase in failing), default=0)


def _on_less(request: Request, more_bytes: int) -> Request:
    if more_bytes <= 0:
        return request
    device = request.device
    held_bytes = min(device.total_bytes, device.used_by_others_bytes + round_up(more_bytes, STEP_BYTES))
    return request.replace(device=replace(device, used_by_others_bytes=held_bytes))
