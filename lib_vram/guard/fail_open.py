"""Fails open: a fault of ours never stops a generation."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from lib_vram.errors import Refused

Result = TypeVar("Result")
logger = logging.getLogger("vram_guard")

_told: set[tuple[str, str]] = set()
"""Which faults were logged already, by function and kind; a handful at most."""


def fail_open(instead: Callable[..., Any]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a function return ``instead(fault, *arguments)`` when it fails for a reason that is ours.

    The first fault of each kind in each function is logged with its traceback, later ones not at
    all. :class:`~lib_vram.errors.Refused` passes: it is the one exception that is meant to travel.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Result:
            try:
                return function(*arguments, **named)
            except Refused:
                raise
            except Exception as fault:  # noqa: BLE001  whatever is wrong with us, the generation goes on
                tell_once(function.__qualname__, fault)
                return instead(fault, *arguments, **named)

        return guarded

    return decorate


def tell_once(place: str, fault: Exception) -> None:
    """Log ``fault`` with its traceback, unless the same kind was logged for ``place`` before."""
    key = (place, type(fault).__name__)
    if key in _told:
        return
    _told.add(key)
    logger.warning(
        "VRAM Guard has a fault in %s and stands aside; the generation goes on. This is said once.",
        place,
        exc_info=fault,
    )


def forget() -> None:
    """Let every fault be told again, as after a restart."""
    _told.clear()
