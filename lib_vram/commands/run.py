"""Reads the command line, runs the command, and turns every fault into one line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from lib_vram import __version__
from lib_vram.commands import component, devices, diagnose, estimate, fit, inspect, plan, simulate
from lib_vram.commands.options import one_of
from lib_vram.errors import BadInput, VramGuardError
from lib_vram.message import LANGUAGES, sentence

ANSWERED, OWN_FAULT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
COMMANDS = {module.NAME: module for module in (component, estimate, plan, simulate, fit, diagnose, inspect, devices)}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose refusals are raised, so that there is one place that shows them."""

    def error(self, message: str) -> NoReturn:
        missing = re.fullmatch(r"argument (\S+): expected (.*)", message)
        if missing:
            raise BadInput(missing[1].split("/")[0], got=None, takes=missing[2])
        extra = message.removeprefix("unrecognized arguments: ")
        if extra != message:
            raise BadInput("arguments", got=extra, takes=f'what "{self.prog} --help" lists, and no more')
        raise BadInput("arguments", got=None, takes=message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 answered, 2 bad input, 1 a fault of ours."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a console that lacks a sign shows its number
    try:
        return _write(_answer(sys.argv[1:] if arguments is None else arguments))
    except BadInput as error:
        return _fail(str(error), BAD_INPUT)
    except VramGuardError as error:
        return _fail(str(error), OWN_FAULT)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # the last resort: a person gets one line, not a traceback
        if os.environ.get("VRAM_GUARD_DEBUG"):
            raise
        return _fail(f"a fault of VRAM Guard, please report it: {type(error).__name__}: {error}", OWN_FAULT)


def _write(answer: str) -> int:
    try:
        print(answer, flush=True)  # noqa: T201 - the answer
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more when it ends
        if isinstance(error, BrokenPipeError):
            return ANSWERED  # whoever read the answer has seen enough
        return _fail(f"the answer cannot be written: {error.strerror}", OWN_FAULT)
    return ANSWERED


def _fail(message: str, status: int) -> int:
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))
    print("vram-guard: " + line, file=sys.stderr)  # noqa: T201 - the one line
    return status


def _answer(arguments: Sequence[str]) -> str:
    first = next(iter(arguments), None)
    if first is None or not (first.startswith("-") or first in COMMANDS):
        raise BadInput("command", got=first, takes=f"one of {', '.join(COMMANDS)}")
    chosen = _parser().parse_args(arguments)
    if chosen.command is None:
        raise BadInput("command", got=first, takes=f"one of {', '.join(COMMANDS)}, and then its options")
    return COMMANDS[chosen.command].run(chosen).shown(as_json=chosen.json)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vram-guard", description=sentence("cli.about"), allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    parsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, module in COMMANDS.items():
        text = sentence(f"cli.about_{name}")
        command = parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help=sentence("cli.about_json"))
        command.add_argument(
            "--language", type=one_of("--language", LANGUAGES), default="en", metavar="L", help="en, pt, es (en)"
        )
        module.add_options(command)
    return parser
