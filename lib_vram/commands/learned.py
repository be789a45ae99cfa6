"""The option ``--learned``: figures as the WebUI's own runs on this machine correct them.

Without it an answer depends on the request alone, on every machine the same.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from lib_vram.message import Message, say, sentence

if TYPE_CHECKING:
    from lib_vram.estimate.result import Estimate
    from lib_vram.plan.table import Correct
    from lib_vram.request import Request


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--learned`` to ``parser``."""
    parser.add_argument("--learned", action="store_true", help=sentence("learning.cli_learned"))


def correct_of(arguments: argparse.Namespace, request: Request) -> Correct | None:
    """Return what corrects the estimates of ``request``; ``None`` when nothing is known, or nobody has asked."""
    if not arguments.learned:
        return None
    from lib_vram.learning.correct import corrector
    from lib_vram.learning.known import lessons_in
    from lib_vram.learning.store import FOLDER, Store

    return corrector(lessons_in(Store(FOLDER)), request)


def noted(arguments: argparse.Namespace, result: Estimate, correct: Correct | None) -> Estimate:
    """Return ``result``; where it was to be corrected and nothing is known, with a note that says so."""
    if not arguments.learned or correct is not None:
        return result
    return replace(result, notes=(nothing(), *result.notes))


def nothing() -> Message:
    """Return that nothing was learned for a request."""
    return say("learning.note_nothing")
