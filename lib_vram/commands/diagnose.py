"""``diagnose``: what an error text means. Announced by the contract and refused until it is there."""

from __future__ import annotations

import argparse

from lib_vram.commands.reply import Reply
from lib_vram.errors import NotReady

NAME = "diagnose"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    parser.add_argument(
        "file", nargs="?", metavar="TEXTFILE", help="an error text or console log, or - for standard input"
    )


def run(arguments: argparse.Namespace) -> Reply:
    """Say that this command is not ready.

    Raises:
        NotReady: always, in this version.
    """
    raise NotReady("diagnose", got=arguments.file, takes="nothing yet: reading error texts and logs is not ready")
