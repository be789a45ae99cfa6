"""``simulate``: the generation, or several in one process, run on the virtual card."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lib_vram.commands import estimate
from lib_vram.commands.reading import read_requests
from lib_vram.commands.reply import Reply
from lib_vram.estimate.result import phase_name
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.estimate.life import Life
    from lib_vram.estimate.simulate import Simulation

NAME = "simulate"
add_options = estimate.add_options


def run(arguments: argparse.Namespace) -> Reply:
    """Run the request's event trace; a list of requests one after the other, as one process would.

    Raises:
        BadInput: a request is not usable; ``NotReady`` when something of it cannot be computed yet.
    """
    requests = read_requests(arguments.request)
    from lib_vram.estimate.estimator import estimate as estimate_of
    from lib_vram.estimate.life import simulate_life
    from lib_vram.estimate.simulate import simulate

    for request in requests:
        estimate.refuse_unready(request, estimate_of(request))
    if len(requests) == 1:
        result = simulate(requests[0])
        return Reply(result.to_dict(), text_of(result, arguments.language))
    life = simulate_life(requests)
    return Reply(life.to_dict(), text_of_life(life, arguments.language))


def text_of_life(life: Life, language: str = "en") -> str:
    """Return how each of several generations ended, and whether the last one failed because of the others."""
    lines = [f"{place}. {text_of(run, language)}" for place, run in enumerate(life.runs, 1)]
    return "\n".join([*lines, sentence("estimate.in_pieces", language)] if life.in_pieces else lines)


def text_of(result: Simulation, language: str = "en") -> str:
    """Return how it ended, with the peak."""
    phase = phase_name(result.phase, language) if result.phase else ""
    lines = [render(say(f"cli.simulate_{result.outcome}", phase=phase, peak_bytes=result.peak_bytes), language)]
    return "\n".join([*lines, result.error_text] if result.error_text else lines)
