"""What a rung of the ladder is: one thing that may be changed, from the least change of it to the most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib_vram.message import Message
from lib_vram.plan.levers import LeverName
from lib_vram.plan.result import Cost
from lib_vram.request import Request

Candidate = Any


@dataclass(frozen=True)
class Adjustment:
    """One rung of the ladder. ``field`` names what it changes in a request, ``value`` is what that holds.

    ``candidates`` go from the least change to the most; leaving the rung alone comes before all of them.
    """

    id: LeverName
    field: Callable[[Request], str]
    costs: Callable[[Candidate], Cost]
    candidates: Callable[[Request], tuple[Candidate, ...]]
    apply: Callable[[Request, Candidate], Request]
    value: Callable[[Request], Any]
    text: Callable[[Request, Request], Message]
    either: bool = False
    """Whether a candidate further on is another one rather than a leaner one: then each has to be tried."""
    by_need: bool = False
    """Whether only being changed counts and not how far: then the extent is set last, to what the rest leaves it."""


def always(cost: Cost) -> Callable[[Candidate], Cost]:
    """Return the cost of a rung whose candidates all cost the same."""
    return lambda _candidate: cost


def named(field: str) -> Callable[[Request], str]:
    """Return the field of a rung that always changes the same one."""
    return lambda _request: field
