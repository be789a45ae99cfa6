"""``inspect``: what a model file holds, from its header."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lib_vram import units
from lib_vram.commands.reply import Reply
from lib_vram.commands.table import table
from lib_vram.errors import BadInput
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.model.inspect import Checkpoint, ComponentWeights

NAME = "inspect"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to ``parser``."""
    takes = "a model file (safetensors, GGUF), an index, a diffusers folder, or - for standard input"
    parser.add_argument("file", nargs="?", metavar="FILE", help=takes)


def run(arguments: argparse.Namespace) -> Reply:
    """Read the file's header.

    Raises:
        BadInput: there is no file to read.
    """
    if arguments.file is None:
        raise BadInput("FILE", got=None, takes="the path of a model file")
    checkpoint = _checkpoint(arguments.file)
    if not checkpoint.readable:
        raise BadInput("FILE", got=arguments.file, takes=f"a model file; {render(checkpoint.problems[0])}")
    return Reply(checkpoint.to_dict(arguments.language), text_of(checkpoint, arguments.language))


def _checkpoint(path: str) -> Checkpoint:
    from lib_vram.model.inspect import inspect_file, inspect_stream

    if path != "-":
        return inspect_file(path)
    if sys.stdin is None:
        raise BadInput("FILE", got=path, takes="a model file: there is no standard input here")
    return inspect_stream(sys.stdin.buffer)


def text_of(checkpoint: Checkpoint, language: str = "en") -> str:
    """Return the family, the components as a table, and what is wrong."""
    family = checkpoint.family or sentence("cli.family_none", language)
    if checkpoint.variant:
        family += f" ({checkpoint.variant})"
    lines = [render(say("cli.family", family=family), language)]
    if checkpoint.components:
        heads = [sentence(f"cli.{name}", language) for name in ("component", "dtype", "parameters", "size")]
        rows = [
            [_named(item), _dtypes(item), f"{item.parameters:,}".replace(",", " "), _size(item.bytes)]
            for item in checkpoint.components
        ]
        lines += ["", table(heads, rows, left=2)]
    if checkpoint.problems:
        lines += ["", *(f"! {render(problem, language)}" for problem in checkpoint.problems)]
    return "\n".join(lines)


def _named(item: ComponentWeights) -> str:
    return f"{item.name} ({item.kind})" if item.kind else item.name


def _dtypes(item: ComponentWeights) -> str:
    """Return the dtypes that make up at least a hundredth of the component, the largest first."""
    return ", ".join(dtype for dtype, size in item.dtypes if 100 * size >= item.bytes) or item.dtype


def _size(size_bytes: int) -> str:
    return units.human(size_bytes) if size_bytes >= units.MIB else f"{size_bytes} B"
