"""The guard: looks at what is about to run, and warns, fixes or refuses as the user wants."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate
from lib_vram.guard import infotext
from lib_vram.guard.argument import RunArgument
from lib_vram.guard.between import Between
from lib_vram.guard.check import Check
from lib_vram.guard.fail_open import fail_open
from lib_vram.guard.learned import Learned
from lib_vram.guard.refusal import lift, refusal_text, refuse, steps_text, wont_fit
from lib_vram.guard.undone import Undone
from lib_vram.host.failures import WebuiErrors
from lib_vram.host.loading import LoadWatch
from lib_vram.journal.recorder import open_journal
from lib_vram.journal.session import Session
from lib_vram.live.watch import Watch
from lib_vram.machine.torch_other import why_no_card
from lib_vram.message import Message, render, say
from lib_vram.plan.preferences import ANYTHING, Preferences
from lib_vram.plan.result import Plan
from lib_vram.request import Mode, Request

if TYPE_CHECKING:
    from lib_vram.guard.in_pieces import InPieces
    from lib_vram.host.base import Host, Settings

logger = logging.getLogger("vram_guard")


def estimate(request: Request) -> Estimate:
    """Return the estimate of ``request``. Imported when first asked for: a WebUI's start need not wait for it."""
    from lib_vram.estimate.estimator import estimate as compute

    return compute(request)


def make_plan(request: Request, preferences: Preferences = ANYTHING) -> Plan:
    """Return what would make ``request`` fit. Imported when first asked for, as :func:`estimate` is."""
    from lib_vram.plan.search import make_plan as search

    return search(request, preferences=preferences)


def _check_fault(fault: Exception, *_: Any) -> Check:
    return Check.unknown(say("guard.own_fault", reason=type(fault).__name__))


def _no_answer(*_: Any) -> None:
    return None


def _take_back(fault: Exception, guard: Guard, p: Any, argument: RunArgument) -> None:
    """A fix that broke off half way would be worse than none: run what was asked for."""
    guard._start(p)
    guard._record(p, argument.changes)


class Guard:
    """One guard for a host. Between runs it keeps the host, and what this session's runs came to."""

    def __init__(self, host: Host, undone: Undone | None = None) -> None:
        self.host = host
        self.undone = undone or Undone()
        self.session = Session(WebuiErrors())
        self._loads = LoadWatch(self)
        self.live = Watch(host)
        self.between = Between(host)
        self._pieces: InPieces | None = None
        self.learned = Learned(host, estimate)
        self.session.hears = self._hear
        self.measuring_note: Callable[[], Message | None] = _no_answer

    @fail_open(instead=_check_fault)
    def check_form(self, tab: Mode, form: Mapping[str, Any]) -> Check:
        """Return what the page's fields would need, and a plan when that does not fit. Never raises for bad fields."""
        try:
            request = self.host.request_from_form(tab, form)
        except BadInput as bad:
            return Check.unknown(reason_of(bad))
        result = self._in_pieces(self._noted(self.estimate(request), request), request)
        return Check(result, request, self._plan(request, result) if result.verdict == "wont_fit" else None)

    def estimate(self, request: Request) -> Estimate:
        """Return the estimate of ``request`` as earlier runs on this machine correct it."""
        return self.learned.corrected(estimate(request), request)

    def _plan(self, request: Request, result: Estimate) -> Plan:
        preferences = self.preferences()
        plan = self.learned.plan(request, result, lambda asked: make_plan(asked, preferences))
        return dataclasses.replace(plan, takes=self._takes(request, plan.request)) if plan.fits else plan

    def _takes(self, request: Request, changed: Request) -> Message | None:
        """Return how long ``changed`` takes here, against ``request`` where that ran too; nothing is guessed."""
        before, after = self.learned.seconds(request), self.learned.seconds(changed)
        if after is None:
            return None
        if before is not None and after.seconds - before.seconds >= 1:
            return say("plan.takes_longer", seconds=round(after.seconds - before.seconds))
        return say("plan.takes", seconds=max(1, round(after.seconds)))

    def preferences(self) -> Preferences:
        """Return what a plan that nobody asked for by name must leave alone: by the settings, and as often undone."""
        return Preferences.of(self.host.settings().keep, self.undone.too_often())

    def _hear(self, event: str, values: Mapping[str, Any]) -> None:
        """Pass an event of the session on to those who follow a run."""
        self.live.heard(event, values)
        failure = self.session.last_failure if event == "failed" else None
        self.learned.heard(event, values, failure.text if failure else "")
        if failure is not None:
            self.between.failed(failure.text)

    @fail_open(instead=_no_answer)
    def _make_room(self, request: Request) -> None:
        """Free memory before the run, where the user has chosen that; never in the middle of another one."""
        if not self.session.is_inside_another:
            self.between.before(request)

    def _in_pieces(self, result: Estimate, request: Request) -> Estimate:
        """Say first that what fits would fail all the same, where this WebUI's memory is in pieces."""
        if self._pieces is None:
            from lib_vram.guard.in_pieces import InPieces

            self._pieces = InPieces(self.live)
        return self._pieces.noted(result, request)

    def _noted(self, result: Estimate, request: Request) -> Estimate:
        """Say first that the model is being measured, or could not be; where it is known, that the RAM is too small."""
        if result.verdict != "unknown":
            from lib_vram.plan import ram

            return ram.noted(result, request)
        note = self.measuring_note()
        return result if note is None else dataclasses.replace(result, notes=(note, *result.notes))

    def before_process(self, p: Any, run_argument: Sequence[Any] | RunArgument) -> None:
        """Do what the user wants about the run of ``p``, from the host's hook of the same name.

        Fails open. The one thing that may stop the run is a refusal that was asked for; it does so from ``p.init``.
        """
        if self._joins(p):
            return
        self._start(p)
        argument = _argument_of(run_argument)
        self._record(p, argument.changes)
        self._decide(p, argument)

    @fail_open(instead=_no_answer)
    def before_sampling(self, p: Any, latent: Any) -> None:
        """Let the host do what must be done before each sampling of the run of ``p``, of the second pass too."""
        self.session.phase("hires_sampling" if getattr(p, "is_hr_pass", False) else "sampling")
        self.host.before_sampling(p, latent)

    @fail_open(instead=_no_answer)
    def after_sampling(self, p: Any) -> None:
        """Note that the pictures of the run of ``p`` are about to be decoded."""
        self.session.phase("vae_decode")

    @fail_open(instead=_no_answer)
    def open_journal(self) -> None:
        """Keep a journal from now on, and learn how the last session ended. Called once the host is up."""
        if self.session.journal is None:
            name = self.host.title.partition(" (")[0]  # the Lab's title names the host that it stands in for
            opened = open_journal(name, self.host.card, self.session.look_for_failure)
            self.session.journal, self.session.before = opened

    @fail_open(instead=_no_answer)
    def loading(self) -> bool:
        """Note that a checkpoint is about to be read; returns whether that is in the journal."""
        self.open_journal()
        return self.session.loading()

    @fail_open(instead=_no_answer)
    def loaded(self) -> None:
        """Note that reading a checkpoint is over, well or not."""
        self.session.loaded()

    def after_run(self, p: Any) -> None:
        """Give back what the run of ``p`` switched on. Not sure to be called: a failed run ends without it."""
        self._tell_end(p)
        self._end_run(p)

    @fail_open(instead=_no_answer)
    def _tell_end(self, p: Any) -> None:
        self.learned.ended(p)
        self.session.ended(p)

    @fail_open(instead=_no_answer)
    def _end_run(self, p: Any) -> None:
        self.host.end_run(p)

    @fail_open(instead=_no_answer)
    def start(self) -> None:
        """Put in place what lasts as long as the extension is loaded; :meth:`stop` takes it away."""
        self.host.on_failure = self.session.failed
        self.host.start()
        self._loads.start()

    @fail_open(instead=_no_answer)
    def stop(self) -> None:
        """Undo everything, as when the extension is unloaded."""
        self._loads.stop()
        self.host.restore()

    @fail_open(instead=_no_answer)
    def _joins(self, p: Any) -> bool:
        return self.host.joins(p)

    @fail_open(instead=_no_answer)
    def _start(self, p: Any) -> None:
        self.host.restore(p)
        lift(p)
        p.extra_generation_params.pop(infotext.KEY, None)

    @fail_open(instead=_no_answer)
    def _record(self, p: Any, line: str) -> None:
        infotext.record(p.extra_generation_params, line)

    @fail_open(instead=_take_back)
    def _decide(self, p: Any, argument: RunArgument) -> None:
        settings = self.host.settings()
        try:
            request = self.host.request_from_processing(p)
        except BadInput as bad:
            logger.info("VRAM Guard cannot look at this run: %s", bad)
            self.session.started(p, None)
            self.host.prepare_run(p, None)
            return
        self.session.started(p, request)
        self._make_room(request)
        action = _action(argument, settings, is_api=bool(getattr(p, "is_api", False)))
        result = self.estimate(request) if action != "nothing" else None
        if result is None or result.verdict != "wont_fit":
            wanted = self._without_needless_swaps(request) if action.startswith("fix") else request
            self._record(p, infotext.changes_line(request, wanted))
            self.learned.runs(p, wanted)
            self.host.prepare_run(p, wanted)
            return
        self._will_not_fit(p, request, result, action, settings)

    def _without_needless_swaps(self, request: Request) -> Request:
        """Return ``request``, which fits, with a smaller reserve where the host's own makes it swap for nothing."""
        from lib_vram.plan.reserve import without_needless_swaps

        lighter = without_needless_swaps(request)
        return request if lighter is None or self.estimate(lighter).verdict != "fits" else lighter

    def _will_not_fit(self, p: Any, request: Request, result: Estimate, action: str, settings: Settings) -> None:
        plan = self._plan(request, result)
        if action.startswith("fix") and plan.fits:
            self._fix(p, request, plan, settings)
        elif action in ("refuse", "fix_or_refuse"):
            text = refusal_text(result, plan, settings.language)
            logger.warning("%s", text)
            refuse(p, text)
            self.session.refused(p)
        else:
            self._warn(p, request, result, plan, settings, quiet=action == "log")

    def _fix(self, p: Any, request: Request, plan: Plan, settings: Settings) -> None:
        self.host.apply(p, plan, request)
        self.live.computes(plan.request)
        self.learned.runs(p, plan.request)
        self.host.prepare_run(p, plan.request)
        self._record(p, infotext.changes_line(request, plan.request))
        _tell(p, render(say("guard.fixed", changes=steps_text(plan, settings.language)), settings.language))

    def _warn(self, p: Any, request: Request, result: Estimate, plan: Plan, settings: Settings, *, quiet: bool) -> None:
        self.learned.runs(p, request)
        self.host.prepare_run(p, request)
        language = settings.language
        text = render(wont_fit(result, language, "guard.warned"), language)
        if plan.fits:
            text += " " + render(say("guard.would_fit", changes=steps_text(plan, language)), language)
        if quiet:
            logger.warning("%s", text)
            return
        self._record(p, infotext.warning_line(result))
        _tell(p, text)


@fail_open(instead=lambda fault, values: RunArgument())
def _argument_of(values: Sequence[Any] | RunArgument) -> RunArgument:
    if isinstance(values, RunArgument):
        return values
    try:
        return RunArgument.of(values)
    except BadInput as bad:
        logger.warning("VRAM Guard: %s. This run goes by the settings.", bad)
        return RunArgument()


def _action(argument: RunArgument, settings: Settings, *, is_api: bool) -> str:
    """Return what to do about a run that will not fit.

    ``nothing``, ``log`` (say it in the log alone), ``warn``, ``fix``, ``fix_or_refuse`` or ``refuse``.
    """
    if argument.mode == "refuse":
        return "refuse"
    mode = argument.mode or settings.mode
    refuses = is_api and settings.refuse_api and not argument.mode
    if mode in ("off", "run"):
        return "nothing"
    if mode == "fix":
        return "fix_or_refuse" if refuses else "fix"
    if refuses:
        return "refuse"
    return "log" if mode == "show" else "warn"


def reason_of(bad: BadInput) -> Message:
    """Return why no request could be made, for people."""
    if bad.field == "device":
        return why_no_card()
    if bad.field == "model":
        return say("guard.model_elsewhere")
    if bad.field == "model.family":
        return say("guard.family_unknown", name=str(bad.got))
    return say("guard.not_usable", reason=str(bad))


def _tell(p: Any, text: str) -> None:
    """Say ``text`` in the log and under the gallery."""
    logger.warning("%s", text)
    p.comment(text)
