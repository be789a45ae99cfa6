"""``estimate``: the whole generation, phase by phase."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lib_vram import units
from lib_vram.commands import learned
from lib_vram.commands.reading import read_request
from lib_vram.commands.reply import Reply
from lib_vram.commands.table import table
from lib_vram.errors import NotReady
from lib_vram.estimate.result import phase_name
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.estimate.result import Estimate
    from lib_vram.request import Request

NAME = "estimate"
_COLUMNS = ("resident", "floor", "minimum", "comfortable", "peak")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    parser.add_argument("request", nargs="?", metavar="REQUEST", help="a JSON file, or - for standard input")
    learned.add_option(parser)


def run(arguments: argparse.Namespace) -> Reply:
    """Estimate the request.

    Raises:
        BadInput: the request is not usable; ``NotReady`` when nothing of it can be computed yet.
    """
    request = read_request(arguments.request)
    from lib_vram.estimate.estimator import estimate
    from lib_vram.plan.ram import noted

    result = noted(estimate(request), request)
    refuse_unready(request, result)
    correct = learned.correct_of(arguments, request)
    result = correct(result, request) if correct is not None else learned.noted(arguments, result, correct)
    return Reply(result.to_dict(arguments.language), text_of(result, arguments.language))


def refuse_unready(request: Request, result: Estimate) -> None:
    """Refuse ``request`` when nothing of it can be computed yet: no guess in disguise.

    Raises:
        NotReady: names the family that is not there yet.
    """
    if result.verdict != "unknown" or result.phases:
        return
    reason = "; ".join(render(note) for note in result.notes)
    raise NotReady("model.family", got=request.model.family, takes=f"one that is ready; {reason}")


def text_of(result: Estimate, language: str = "en") -> str:
    """Return the verdict in one line, the phases as a table, and the notes."""
    lines = [verdict_line(result, language)]
    if result.phases:
        heads = [sentence(f"cli.{name}", language) for name in ("phase", *_COLUMNS)]
        rows = [
            [phase_name(phase.name, language), *(units.mib(getattr(phase, f"{name}_bytes")) for name in _COLUMNS)]
            for phase in result.phases
        ]
        lines += ["", table(heads, rows)]
    if result.notes:
        lines += ["", *(f"- {render(note, language)}" for note in result.notes)]
    return "\n".join(lines)


def verdict_line(result: Estimate, language: str = "en") -> str:
    """Return the verdict with its figures and the phase that binds."""
    verdict = sentence(f"ui.verdict_{result.verdict}", language)
    if result.binding is None:
        return render(say("cli.verdict_bare", verdict=verdict, available_bytes=result.available_bytes), language)
    message = say(
        "cli.verdict",
        verdict=verdict,
        phase=phase_name(result.binding.name, language),
        needs_bytes=result.binding.needs_bytes,
        available_bytes=result.available_bytes,
        low_bytes=result.low_bytes,
        high_bytes=result.high_bytes,
    )
    return render(message, language)
