"""Refusing a run so that people and programs see why.

A hook that raises is only logged by the hosts, and an interrupted run answers an API call with
200 and no pictures. So the refusal waits in the processing object's ``init``, the first thing
that runs outside the hosts' own exception handling: the page shows it in red, the API answers 500.
"""

from __future__ import annotations

from typing import Any, NoReturn

from lib_vram import units
from lib_vram.errors import Refused
from lib_vram.estimate.result import Estimate, phase_name
from lib_vram.message import Message, render, say
from lib_vram.plan.result import Plan

_MARK = "vram_guard_refusal"


def refuse(p: Any, text: str) -> None:
    """Make the run of ``p`` end with ``text`` before anything is computed."""

    def init(*arguments: Any, **named: Any) -> NoReturn:
        raise Refused(text)

    setattr(init, _MARK, True)
    p.init = init


def lift(p: Any) -> None:
    """Take back a refusal that ``p`` still carries from an earlier run."""
    if hasattr(vars(p).get("init"), _MARK):
        del p.init


def refusal_text(estimate: Estimate, plan: Plan, language: str) -> str:
    """Return one paragraph: what will not fit, where, and what would.

    It never says "out of memory": some hosts take any exception with these words for a fault of the device.
    """
    parts = [render(wont_fit(estimate, language, "guard.refused"), language)]
    if plan.fits:
        parts.append(render(say("guard.would_fit", changes=steps_text(plan, language)), language))
    elif plan.when_not:
        parts.append(render(plan.when_not, language))
    return " ".join(parts)


def wont_fit(estimate: Estimate, language: str, key: str) -> Message:
    """Return the message ``key`` with the figures of the phase that binds."""
    binding = estimate.binding
    need, room = figures(estimate)
    return say(key, phase=phase_name(binding.name, language) if binding else "", need=need, available=room)


def figures(estimate: Estimate) -> tuple[str, str]:
    """Return what the binding phase needs and what is there, as precisely as it takes to tell them apart."""
    need_bytes = estimate.binding.needs_bytes if estimate.binding else estimate.peak_bytes
    for shown in (units.human, units.mib):
        need, room = shown(need_bytes), shown(estimate.available_bytes)
        if need != room:
            break
    return need, room


def steps_text(plan: Plan, language: str) -> str:
    """Return the plan's steps, and how long it takes where that is known, as one sentence part."""
    said = [*(step.text for step in plan.steps), *((plan.takes,) if plan.takes else ())]
    return "; ".join(render(item, language) for item in said)
