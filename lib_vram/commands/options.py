"""Types of command-line options that say, when they refuse, what they got and what they take."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable, Sequence
from typing import Any

from lib_vram.errors import BadInput


def one_of(option: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Return a converter that takes one of ``choices``."""

    def convert(text: str) -> str:
        if text not in choices:
            raise BadInput(option, got=text, takes=f"one of {', '.join(choices)}")
        return text

    return convert


def one_of_type(option: str, literal: Any) -> Callable[[str], str]:
    """Return a converter that takes what the ``Literal`` type ``literal`` lists."""
    return one_of(option, typing.get_args(literal))


def whole(option: str, limits: tuple[int, int]) -> Callable[[str], int]:
    """Return a converter that takes whole numbers within ``limits``, both included."""
    low, high = limits

    def convert(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 12 and low <= int(text) <= high):
            raise BadInput(option, got=text, takes=f"a whole number from {low} to {high}")
        return int(text)

    return convert


def required(arguments: argparse.Namespace, *options: str) -> None:
    """Refuse when one of ``options`` was not given.

    Raises:
        BadInput: names the first that is missing.
    """
    for option in options:
        if getattr(arguments, option.lstrip("-").replace("-", "_"), None) is None:
            raise BadInput(option, got=None, takes="a value: this option is required")
