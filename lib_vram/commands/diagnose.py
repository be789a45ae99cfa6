"""``diagnose``: what an error text or a console log means, and what helps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lib_vram import units
from lib_vram.commands.reply import Reply
from lib_vram.errors import BadInput
from lib_vram.message import render, sentence

if TYPE_CHECKING:
    from lib_vram.diagnosis.diagnosis import Diagnosis

NAME = "diagnose"
HEAD_BYTES = 24 * units.MIB
TAIL_BYTES = 8 * units.MIB
"""What is read of a longer log: where the first cause stands, and its end."""
_TAKES = "an error text or console log, or - for standard input"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    parser.add_argument("file", nargs="?", metavar="TEXTFILE", help=_TAKES)


def run(arguments: argparse.Namespace) -> Reply:
    """Diagnose the text.

    Raises:
        BadInput: there is nothing to read.
    """
    from lib_vram.diagnosis.diagnosis import diagnose

    found = diagnose(_read(arguments.file))
    return Reply(found.to_dict(arguments.language), text_of(found, arguments.language))


def text_of(found: Diagnosis, language: str = "en") -> str:
    """Return the summary, the evidence, the figures and the cures."""
    lines = [f"{sentence(f'diagnosis.kind_{found.kind}', language)}: {render(found.summary, language)}"]
    lines += _list("evidence", [render(item, language) for item in found.evidence], language, "- ")
    figures = [
        f"{sentence(f'diagnosis.number_{name}', language)}: {units.human(value)}"
        for name, value in found.numbers.to_dict().items()
        if value is not None
    ]
    lines += _list("numbers", figures, language, "- ")
    fixes = [f"{number}. {render(item, language)}" for number, item in enumerate(found.fixes, 1)]
    lines += _list("fixes", fixes, language, "")
    return "\n".join(lines)


def _list(label: str, items: list[str], language: str, mark: str) -> list[str]:
    return ["", sentence(f"diagnosis.label_{label}", language) + ":", *(mark + item for item in items)] if items else []


def _read(path: str | None) -> bytes:
    if path is None:
        raise BadInput("TEXTFILE", got=None, takes=_TAKES)
    if path == "-":
        if sys.stdin is None:
            raise BadInput("TEXTFILE", got=path, takes="a file: there is no standard input here")
        return _bounded(sys.stdin.buffer)
    try:
        if Path(path).is_dir():  # Windows says "permission denied" for a folder
            raise BadInput("TEXTFILE", got=path, takes=f"{_TAKES}; this is a folder")
        with Path(path).open("rb") as file:
            return _bounded(file)
    except FileNotFoundError:
        raise BadInput("TEXTFILE", got=path, takes=f"{_TAKES}; there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput("TEXTFILE", got=path, takes=f"{_TAKES}; it cannot be read ({reason})") from None


def _bounded(file: BinaryIO) -> bytes:
    """Return the head and the tail of ``file``; what lies between them in a huge log is passed over."""
    head = file.read(HEAD_BYTES)
    tail = b""
    while chunk := file.read(TAIL_BYTES):
        tail = (tail + chunk)[-TAIL_BYTES:]
    return head + tail
