"""The Lab's rescue: a phase that runs out on the virtual card is run again with the plan's next rung.

The WebUIs do this around their own steps (``lib_vram/host/rescue.py``); here the steps are replays, and the thinking
is the same (``lib_vram/guard/rescue.py``). What was done before the phase that failed is not done again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lib_vram.estimate.result import PhaseName, phase_name
from lib_vram.estimate.simulate import PhaseOutOfMemory, PhaseRun, simulate_steps
from lib_vram.guard import rescue as thinking
from lib_vram.guard.fail_open import fail_open
from lib_vram.guard.rescue_rungs import next_rung
from lib_vram.host.lab import LabRun
from lib_vram.journal.session import Session
from lib_vram.message import render, say

logger = logging.getLogger("vram_guard")

Rescued = tuple[PhaseName, thinking.Rung, str]
"""The phase that ran out, what the next try does differently, and the error's text."""


def phases(run: LabRun, session: Session, language: str, *, rescues: bool) -> Iterator[PhaseRun]:
    """Run the phases of ``run`` and yield each as it ends; with ``rescues`` one that runs out is run again.

    Raises:
        PhaseOutOfMemory: a phase does not fit, nor does it after the rescue's tries.
    """
    done = 0
    tried = 0
    untold: list[Rescued] = []
    while True:
        try:
            for number, phase in enumerate(simulate_steps(run.request)):
                if number >= done:
                    done, tried = number + 1, 0
                    for item in untold:
                        _tell(run, item, session, language)
                    untold.clear()
                    yield phase
            return
        except PhaseOutOfMemory as error:
            tried += 1
            rescued = _changed(run, error, tried) if rescues and tried <= thinking.MOST_TRIES else None
            if rescued is None:
                if tried > 1:
                    run.comment(render(say("rescue.given_up", phase=phase_name(error.phase, language)), language))
                raise
            untold.append(rescued)


@fail_open(instead=lambda *_: None)
def _changed(run: LabRun, error: PhaseOutOfMemory, tried: int) -> Rescued | None:
    """Take the next rung for ``run``, ``None`` when there is none.

    Where nothing helps, the phase is run once more as it is: another program may have given back what it took.
    """
    lesson = thinking.lesson_of(error, error.phase)
    in_tiles = error.phase == "vae_encode" or (error.phase == "hires_upscale" and tried == 1)
    rung = next_rung(run.request, lesson, tried, in_tiles=in_tiles) if lesson is not None else thinking.Rung()
    if rung.request is None or (rung.request == run.request and tried > 1):
        return None
    run.request = rung.request
    return error.phase, rung, error.error_text


@fail_open(instead=lambda *_: None)
def _tell(run: LabRun, rescued: Rescued, session: Session, language: str) -> None:
    """Say what was done differently, once it has helped."""
    phase, rung, error = rescued
    thinking.record(run.extra_generation_params, phase, rung.line)
    text = thinking.rescued_text(phase, rung.steps, language)
    logger.warning("%s", text)
    run.comment(text)
    session.rescued(phase, rung.line, error)
