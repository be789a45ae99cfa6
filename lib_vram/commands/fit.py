"""``fit``: the largest that fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lib_vram.commands import estimate
from lib_vram.commands.options import one_of, required
from lib_vram.commands.reading import read_request
from lib_vram.commands.reply import Reply
from lib_vram.message import render, say

if TYPE_CHECKING:
    from lib_vram.plan.fit import Fit

NAME = "fit"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    estimate.add_options(parser)
    parser.add_argument(
        "--vary", type=one_of("--vary", ("size", "batch")), metavar="size|batch", help="what may grow or shrink"
    )


def run(arguments: argparse.Namespace) -> Reply:
    """Search the largest size or batch.

    Raises:
        BadInput: the request is not usable; ``NotReady`` when something of it cannot be computed yet.
    """
    required(arguments, "--vary")
    request = read_request(arguments.request)
    from lib_vram.estimate.estimator import estimate as estimate_of
    from lib_vram.plan.fit import largest

    estimate.refuse_unready(request, estimate_of(request))
    result = largest(request, arguments.vary)
    return Reply(result.to_dict(), text_of(result, arguments.language))


def text_of(result: Fit, language: str = "en") -> str:
    """Return the size, the batch and the peak in one line."""
    if not result.batch_size:
        return render(say("cli.fit_none"), language)
    message = say(
        "cli.fit",
        width=result.width,
        height=result.height,
        batch=result.batch_size,
        peak_bytes=result.peak_bytes,
    )
    return render(message, language)
