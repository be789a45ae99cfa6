"""Rescue: what a failure for want of memory teaches, and what is done differently in the next try.

The hosts catch some of these failures and lose the rest, with all that was computed. Here is what is known of a
failure and what people are told; which change helps is in ``rescue_rungs.py``. The doing is the hosts'
(``lib_vram/host/rescue*.py``) and the Lab's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lib_vram.errors import DeviceOutOfMemory, Refused
from lib_vram.estimate.result import PhaseName, phase_name
from lib_vram.guard import infotext
from lib_vram.message import Message, render, say
from lib_vram.request import Request

if TYPE_CHECKING:
    from lib_vram.diagnosis.numbers import Numbers

MOST_TRIES = 2
"""Tries after the first failure of one step; what fails three times will fail again."""
TEXT_LIMIT = 16 * 1024
CAUSES_LOOKED_AT = 4

DECODES: frozenset[PhaseName] = frozenset(("vae_decode",))


@dataclass(frozen=True)
class Lesson:
    """What a failure showed: where it was, and the figures of its text."""

    phase: PhaseName
    numbers: Numbers | None = None

    @property
    def room_bytes(self) -> int | None:
        """What this process could have had of the card when it failed, ``None`` where the text does not say."""
        if self.numbers is None:
            return None
        held = self.numbers.process_bytes if self.numbers.process_bytes is not None else self.numbers.reserved_bytes
        free = self.numbers.free_bytes
        return None if held is None or free is None else held + free


@dataclass(frozen=True)
class Rung:
    """The next try. ``line`` says for the infotext what is different, ``steps`` say it for people."""

    request: Request | None = None
    line: str = ""
    steps: tuple[Message, ...] = ()


def lesson_of(error: BaseException, phase: PhaseName) -> Lesson | None:
    """Return what ``error`` teaches when it is for want of the card's memory, however it is worded; else ``None``."""
    looked: BaseException | None = error
    for _ in range(CAUSES_LOOKED_AT):
        if looked is None or isinstance(looked, Refused):
            return None
        found = _lesson(looked, phase)
        if found is not None:
            return found
        looked = looked.__cause__
    return None


def _lesson(error: BaseException, phase: PhaseName) -> Lesson | None:
    from lib_vram.diagnosis.diagnosis import diagnose  # with the first failure: a WebUI's start need not wait for it

    text = f"{type(error).__name__}: {error}"
    if isinstance(error, DeviceOutOfMemory):
        text = getattr(error, "error_text", "") or f"OutOfMemoryError: {error}"
    found = diagnose(text[:TEXT_LIMIT])
    return Lesson(phase, found.numbers) if found.kind == "gpu_memory" and not found.recovered else None


def rescued_line(phase: PhaseName, line: str = "") -> str:
    """Return what goes into the infotext: ``rescued in sampling; batch 4x1 -> 2x2``."""
    return "; ".join(part for part in (f"rescued in {phase.replace('_', ' ')}", line) if part)


def rescued_text(phase: PhaseName, steps: tuple[Message, ...], language: str) -> str:
    """Return the one sentence that people are told."""
    if not steps:
        return render(say("rescue.done_plain", phase=phase_name(phase, language)), language)
    changes = "; ".join(render(step, language) for step in steps)
    return render(say("rescue.done", phase=phase_name(phase, language), changes=changes), language)


def record(parameters: dict[str, Any], phase: PhaseName, line: str) -> None:
    """Add to ``parameters``, the host's infotext fields, that the run was rescued; once for each way of it."""
    text = rescued_line(phase, line)
    if text not in str(parameters.get(infotext.KEY, "")):
        infotext.record(parameters, text)
