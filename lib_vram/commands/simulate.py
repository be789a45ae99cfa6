"""``simulate``: the generation run on the virtual card."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lib_vram.commands import estimate
from lib_vram.commands.reading import read_request
from lib_vram.commands.reply import Reply
from lib_vram.estimate.result import phase_name
from lib_vram.message import render, say

if TYPE_CHECKING:
    from lib_vram.estimate.simulate import Simulation

NAME = "simulate"
add_options = estimate.add_options


def run(arguments: argparse.Namespace) -> Reply:
    """Run the request's event trace.

    Raises:
        BadInput: the request is not usable; ``NotReady`` when something of it cannot be computed yet.
    """
    request = read_request(arguments.request)
    from lib_vram.estimate.estimator import estimate as estimate_of
    from lib_vram.estimate.simulate import simulate

    estimate.refuse_unready(request, estimate_of(request))
    result = simulate(request)
    return Reply(result.to_dict(), text_of(result, arguments.language))


def text_of(result: Simulation, language: str = "en") -> str:
    """Return how it ended, with the peak."""
    phase = phase_name(result.phase, language) if result.phase else ""
    lines = [render(say(f"cli.simulate_{result.outcome}", phase=phase, peak_bytes=result.peak_bytes), language)]
    return "\n".join([*lines, result.error_text] if result.error_text else lines)
