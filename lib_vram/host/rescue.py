"""Rescues a run that runs out of memory: only the step that failed is done again, inside the host's own loop.

The hosts' methods that compute a step are wrapped on their classes, for as long as the extension is loaded. When one
fails for want of the card's memory its frames are cleared, memory is freed, the next rung of the plan is taken, and
the step is computed again, at most twice. The loop around it never sees the failure: batches that are finished stay
in the result, are saved once, and scripts, grids, infotexts, Interrupt and Skip work as in any run. A batch is done
again picture by picture if need be (``rescue_shares``), with the seeds and hooks of a smaller batch size.

Every other error passes unchanged, and so does the host's own when the rescue itself has a fault.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lib_vram.errors import BadInput
from lib_vram.estimate.result import PhaseName, phase_name
from lib_vram.guard import rescue as thinking
from lib_vram.guard.fail_open import fail_open, tell_once
from lib_vram.guard.rescue import MOST_TRIES, Lesson, Rung
from lib_vram.host import rescue_levers as levers
from lib_vram.host import rescue_progress as progress
from lib_vram.host import units
from lib_vram.host.patches import Patches
from lib_vram.host.rescue_keys import RESCUE_KEY
from lib_vram.host.rescue_saves import save_once
from lib_vram.host.rescue_shares import Share, at_work_on, joined, largest_part, may_split, part_of, pictures_of
from lib_vram.message import Message, render, say
from lib_vram.request import Request

CONTROLNET = "controlnet"
_IN_HOOKS: frozenset[PhaseName] = frozenset(("controlnet_preprocess",))
_GIVEN_UP = "vram_guard_given_up"
CAUSE_LIMIT = 300
"""Characters of another failure's text that fit into one line."""

logger = logging.getLogger("vram_guard")

Step = Callable[..., Any]

_FUNCTIONS: tuple[tuple[str, str, PhaseName], ...] = (
    ("modules.extra_networks", "activate", "load"),
    ("modules.face_restoration", "restore_faces", "face_restore"),
)
"""Functions of the hosts' modules that can be repeated as they are."""


@dataclass(eq=False)
class Work:
    """A run that is going on, and what its rescues have changed so far."""

    p: Any
    request: Request | None = None
    """What runs, with what was changed; ``None`` until a failure asks for it, or when it cannot be computed."""
    asked: bool = False
    size: int | None = None
    """Pictures computed at once from now on; ``None`` for the whole batch."""
    tiles_from: int | None = None
    """Latent pixels of the smallest decode that ran out: from there on it is not tried whole again."""
    tile: int | None = None
    """Side in pixels of our own tiles, where they are ours."""
    decodes_whole: bool = False
    """Whether the host is decoding a picture whole now."""
    fell_back: bool = False
    """Whether the last such decode has fallen back to the host's own tiles because it ran out."""
    patches: Patches = field(default_factory=Patches)


class Rescuer:
    """Puts the rescue in place and takes it away. ``told`` hears of each: phase, infotext's line, the error's text."""

    def __init__(self, host: Any, told: Callable[[PhaseName, str, str], object] = lambda *_: None) -> None:
        self.host = host
        self.told = told
        self.keeper: Any = None
        """Keeps latents on disk over risky decodes; ``None`` for nobody."""
        self.ran_out_in: set[PhaseName] = set()
        """Phases in which this session's runs were rescued."""
        self._patches = Patches()
        self._alive = [False]
        self._local = threading.local()

    # in place

    def start(self) -> None:
        """Wrap the host's steps, once however often it is called."""
        self.stop()
        self._alive = [True]
        from modules import processing

        self._wrap(processing, "process_images_inner", self._following)
        base = getattr(processing, "StableDiffusionProcessing", None)
        text = getattr(processing, "StableDiffusionProcessingTxt2Img", None)
        image = getattr(processing, "StableDiffusionProcessingImg2Img", None)
        for kind in (text, image):
            self._wrap(kind, "sample", lambda step: self._in_shares(step, "sampling"))
        self._wrap(text, "sample_hr_pass", lambda step: self._in_shares(step, "hires_sampling"))
        self._wrap(image, "init", lambda step: self._again(step, "vae_encode"))
        for kind in (base, text):
            self._wrap(kind, "setup_conds", lambda step: self._again(step, "text_encode"))
        self._wrap_functions()

    def _wrap_functions(self) -> None:
        from lib_vram.host import rescue_decode

        for name, function, phase in _FUNCTIONS:
            self._wrap(sys.modules.get(name), function, lambda step, phase=phase: self._again(step, phase))
        rescue_decode.wrap(self, self._wrap)
        if self.keeper is not None:
            self.keeper.wrap(self._wrap)

    def stop(self) -> None:
        """Take everything away; what another extension has laid itself over passes through from now on."""
        self._alive[0] = False
        self._patches.undo()

    def _wrap(self, owner: Any, name: str, make: Callable[[Step], Step]) -> None:
        """Set ``make``'s wrapper on ``owner``, where it has such a function of its own."""
        original = vars(owner).get(name) if owner is not None else None
        if callable(original):
            self._patches.set_attribute(owner, name, _while(self._alive, original, make(original)))

    # the run at work

    def current(self) -> Work | None:
        """Return the innermost run at work on this thread, ``None`` outside of runs and when the user wants none."""
        work = self.at_work()
        return work if work is not None and self._is_on() else None

    def at_work(self) -> Work | None:
        """Return the innermost run at work on this thread, whatever the user wants."""
        works: list[Work] = getattr(self._local, "works", [])
        return works[-1] if works else None

    @fail_open(instead=lambda *_: False)
    def _is_on(self) -> bool:
        return bool(self.host.option(RESCUE_KEY, True))

    def _following(self, original: Step) -> Step:
        @functools.wraps(original)
        def process_images_inner(p: Any, *arguments: Any, **named: Any) -> Any:
            works = vars(self._local).setdefault("works", [])
            work = Work(p)
            works.append(work)
            well = False
            try:
                self._watch(work)
                pictures = original(p, *arguments, **named)
                well = True
                return pictures
            finally:
                works.remove(work)
                work.patches.undo()
                if self.keeper is not None:
                    self.keeper.ended(work, well=well)

        return process_images_inner

    @fail_open(instead=lambda *_: None)
    def _watch(self, work: Work) -> None:
        """Prepare for what this run may do again.

        ControlNet's preprocessors run in a hook, whose failure the hosts only log: the picture would come without it.
        """
        save_once(work.patches, work.p)
        script = units.script_titled(work.p, CONTROLNET)
        if script is not None and hasattr(script, "process"):
            work.patches.set_attribute(script, "process", self._again(script.process, "controlnet_preprocess"))

    # steps

    def _again(self, step: Step, phase: PhaseName) -> Step:
        """Return ``step``, which can be repeated as it is, with its rescue."""

        @functools.wraps(step)
        def repeated(*arguments: Any, **named: Any) -> Any:
            work = self.current()
            if work is None:
                return step(*arguments, **named)
            trying = Trying(self, work, phase)
            while True:
                result, failed = trying.attempt(lambda: step(*arguments, **named))
                if not failed:
                    return result
                trying.prepare()

        return repeated

    def _in_shares(self, step: Step, phase: PhaseName) -> Step:
        """Return ``step``, which computes the pictures of a batch, with its rescue."""

        @functools.wraps(step)
        def in_shares(p: Any, *arguments: Any, **named: Any) -> Any:
            sampling = self._sampling(p, step, phase, pictures_of(arguments, named))
            return step(p, *arguments, **named) if sampling is None else sampling.run(arguments, named)

        return in_shares

    @fail_open(instead=lambda *_: None)
    def _sampling(self, p: Any, step: Step, phase: PhaseName, count: int) -> Sampling | None:
        """Return the tries of a step of ``count`` pictures, ``None`` outside of runs."""
        work = self.current()
        return Sampling(self, work, phase, step, count) if work is not None and work.p is p and count else None

    # what a rescue does

    def language(self) -> str:
        """Return the language that people are told in."""
        return str(self.host.settings().language)

    def request_of(self, work: Work) -> Request | None:
        """Return what runs, ``None`` when it cannot be computed."""
        if not work.asked:
            work.asked = True
            try:
                work.request = self.host.request_from_processing(work.p)
            except BadInput:
                work.request = None
        return work.request

    def saved(self, work: Work, phase: PhaseName, line: str, steps: tuple[Message, ...], error: str = "") -> None:
        """Tell that the run was rescued: in the log, under the pictures and in the infotext."""
        self.ran_out_in.add(phase)
        thinking.record(work.p.extra_generation_params, phase, line)
        text = thinking.rescued_text(phase, steps, self.language())
        logger.warning("%s", text)
        work.p.comment(text)
        for run in self._around(work):
            if run.extra_generation_params is not work.p.extra_generation_params:
                thinking.record(run.extra_generation_params, "detailer", line)
            run.comment(text)
        self.told(phase, line, error)

    def lost(self, work: Work, phase: PhaseName) -> None:
        """Tell under the pictures what they came without: the hosts only log the failure of a hook.

        A hook is a ControlNet's preprocessor, or a run inside another, such as a detailer's.
        """
        runs = [work.p] if phase in _IN_HOOKS else self._around(work)
        language = self.language()
        text = render(say("rescue.lost", phase=phase_name(phase, language)), language)
        for run in runs:
            run.comment(text)

    def _around(self, work: Work) -> list[Any]:
        """Return the runs around that of ``work``, whose pictures it takes part in."""
        works: list[Work] = getattr(self._local, "works", [])
        return [outer.p for outer in works[: works.index(work)]] if work in works else []


class Trying:
    """The tries of one step: :meth:`attempt` until it has not failed, with :meth:`prepare` in between."""

    def __init__(self, rescuer: Rescuer, work: Work, phase: PhaseName) -> None:
        self.rescuer = rescuer
        self.work = work
        self.phase = phase
        self.tried = 0
        self._lines: list[str] = []
        self._steps: list[Message] = []
        self._untold = False
        self._shown = ""
        self._failures: list[Exception] = []
        self._lesson: Lesson | None = None

    def attempt(self, step: Callable[[], Any]) -> tuple[Any, bool]:
        """Return the result of ``step`` and False, or None and True when it ran out of memory.

        Raises:
            Exception: what ``step`` raised when that is something else; in a later try the failure that led to it.
        """
        try:
            result = step()
        except Exception as error:
            self._lesson = self.lesson_of(error)
            if self._lesson is None and (not self._failures or getattr(error, _GIVEN_UP, False)):
                self._failures.clear()
                raise
            self._failures.append(error)
        else:
            self._tell()
            self._failures.clear()  # they hold our frame, which holds the step's arguments and the result
            return result, False
        if self._lesson is None:  # out of the handler: inside, the failed step's tensors would still be held
            tell_once("a rescue", self._failures[-1])
            self._tell_other(self._failures[-1])
            self.give_up(0)
        return None, True

    def prepare(self) -> None:
        """Free memory and take the next rung.

        Raises:
            Exception: the step's failure, when it was tried often enough, or when preparing has a fault itself.
        """
        self.tried += 1
        if self.tried > MOST_TRIES:
            self._tell_lost()
            self.give_up(-1)
        if not self.prepared(self._failures[-1]):
            self.give_up(-1)

    def give_up(self, which: int) -> NoReturn:
        """Raise the failure at that place, which no step around this one tries to rescue again.

        Nothing of ours keeps it afterwards: its traceback holds our frames, and these the step's tensors.
        """
        failure = self._failures[which]
        self._failures.clear()
        progress.clear(self._shown)
        try:
            setattr(failure, _GIVEN_UP, True)
            raise failure
        finally:
            del failure

    @fail_open(instead=lambda *_: None)
    def lesson_of(self, error: Exception) -> Lesson | None:
        """Return what ``error`` teaches, ``None`` when it is no failure for want of memory or was given up before."""
        return None if getattr(error, _GIVEN_UP, False) else thinking.lesson_of(error, self.phase)

    @fail_open(instead=lambda *_: False)
    def prepared(self, failure: Exception) -> bool:
        """Clear what ``failure`` holds, change what the next rung changes, free memory; whether that went well."""
        if self._lesson is None:
            return False
        language = self.rescuer.language()
        logger.warning("%s", render(say("rescue.trying", phase=phase_name(self.phase, language)), language))
        self._shown = render(say("rescue.again", phase=phase_name(self.phase, language)), language)
        progress.show(self._shown)
        levers.release(failure)
        before = self.rescuer.request_of(self.work)
        rung = self.next_rung(before, self._lesson)
        if before is not None and rung.request is not None:
            levers.change(self.rescuer.host, self.work.p, before, rung.request)
            self.work.request = rung.request
        self._lines += [rung.line] if rung.line else []
        self._steps += rung.steps
        self._untold = True
        levers.free(self.rescuer.host, self.phase, self.tried)
        return True

    def next_rung(self, request: Request | None, lesson: Lesson) -> Rung:
        """Return what the next try does differently."""
        from lib_vram.guard.rescue_rungs import next_rung

        return next_rung(request, lesson, self.tried)

    @fail_open(instead=lambda *_: None)
    def _tell_lost(self) -> None:
        """Say in the host's own error, which the user sees, that the step was tried again and ran out again."""
        language = self.rescuer.language()
        line = render(say("rescue.given_up", phase=phase_name(self.phase, language)), language)
        _add_line(self._failures[-1], line)
        self.rescuer.lost(self.work, self.phase)

    @fail_open(instead=lambda *_: None)
    def _tell_other(self, fault: Exception) -> None:
        """Say in the step's first failure, which the user sees, that trying it again ended in ``fault``."""
        language, cause = self.rescuer.language(), f"{type(fault).__name__}: {fault}"[:CAUSE_LIMIT]
        line = render(say("rescue.given_up_other", phase=phase_name(self.phase, language), cause=cause), language)
        _add_line(self._failures[0], line)
        self.rescuer.lost(self.work, self.phase)

    @fail_open(instead=lambda *_: None)
    def _tell(self) -> None:
        if self._untold:
            self._untold = False
            progress.clear(self._shown)
            error = "".join(f"{type(item).__name__}: {item}" for item in self._failures[:1])
            self.rescuer.saved(self.work, self.phase, "; ".join(self._lines), tuple(self._steps), error)
            self._lines, self._steps = [], []


class Sampling(Trying):
    """The tries of a step that computes the ``count`` pictures of a batch, in shares when it must be."""

    def __init__(self, rescuer: Rescuer, work: Work, phase: PhaseName, step: Step, count: int) -> None:
        super().__init__(rescuer, work, phase)
        self.step = step
        self.count = count
        self.begun = levers.Begun.now()
        self.is_second_pass = phase == "hires_sampling"
        self.jobs = progress.Jobs.now(work.p, is_second_pass=self.is_second_pass)
        self.splits = count > 1 and count == work.p.batch_size and _may_split(work.p)
        fits = self.splits and work.size is not None and count % work.size == 0
        self.size = work.size if fits and work.size is not None else count

    def run(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return what the step returns. Raises as :meth:`attempt` and :meth:`prepare`."""
        well = False
        try:
            result = self._pictures(arguments, named)
            well = True
            return result
        finally:
            self.jobs.end(well=well)

    def _pictures(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        p = self.work.p
        noise, begun = getattr(p, "rng", None), self.begun
        parts: list[Any] = []
        start = 0
        while start < self.count:
            share = Share(start, self.size, self.count)
            if self.tried or not share.is_whole:
                p.rng = noise
                if parts and begun.has_other_model():
                    named = self._begin_again(begun, named)  # the share before ended in a refiner
                self.jobs.begin(share)
            result, failed = self.attempt(functools.partial(self._one, share, arguments, named))
            if failed:
                if self.is_second_pass and begun.has_other_model():
                    raise self._failures.pop()  # only the whole step can begin with the right model again
                self.prepare()
                named = self._begin_again(begun, named)
                continue
            parts.append(result)
            start += share.size
            if levers.is_interrupted():
                break  # the user wants what there is
        return joined(parts)

    def _one(self, share: Share, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if share.is_whole and not self.tried:
            return self.step(self.work.p, *arguments, **named)
        with at_work_on(self.work.p, share):
            cut = [part_of(value, share) for value in arguments]
            return self.step(self.work.p, *cut, **{name: part_of(value, share) for name, value in named.items()})

    def _begin_again(self, begun: levers.Begun, named: dict[str, Any]) -> dict[str, Any]:
        """Put the run back to where the step began, and return the step's arguments for that."""
        p = self.work.p
        result, fault = None, None
        try:
            result = begun.again(p, is_second_pass=self.is_second_pass)
        except Exception as error:  # noqa: BLE001  the host's own failure is what the user must see
            fault = error
        if fault is not None:
            tell_once("a rescue", fault)
            self._tell_other(fault)
            del fault
            self.give_up(0)
        if not result:
            return named
        conds = {"conditioning": p.c, "unconditional_conditioning": p.uc}
        return {name: conds.get(name, value) for name, value in named.items()}

    def lesson_of(self, error: Exception) -> Lesson | None:
        """Return what ``error`` teaches; the first pass's step contains the second."""
        if getattr(self.work.p, "is_hr_pass", False):
            self.phase = "hires_sampling"
        return super().lesson_of(error)

    def next_rung(self, request: Request | None, lesson: Lesson) -> Rung:
        """Return what the next try does differently; where nothing is known, half as many pictures at once."""
        from lib_vram.guard.rescue_rungs import next_rung

        rung = next_rung(request, lesson, self.tried, may_split=self.splits)
        if self.splits:
            wanted = rung.request.batch_size if rung.request is not None else self.size // 2
            self.size = self.work.size = largest_part(self.size, wanted)
        return rung


def _add_line(failure: Exception, line: str) -> None:
    if failure.args and isinstance(failure.args[0], str):
        failure.args = (f"{failure.args[0]}\n{line}", *failure.args[1:])


@fail_open(instead=lambda *_: False)
def _may_split(p: Any) -> bool:
    return may_split(p)


def _while(alive: list[bool], original: Step, wrapper: Step) -> Step:
    """Return ``wrapper`` as long as it is wanted, then ``original``: somebody may hold it beyond that."""

    @functools.wraps(original)
    def step(*arguments: Any, **named: Any) -> Any:
        return (wrapper if alive[0] else original)(*arguments, **named)

    return step
