"""A card as it is at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CardSource = Literal["nvml", "torch", "amdgpu", "virtual"]


@dataclass(frozen=True)
class Holder:
    """A program that holds memory of the card; ``used_bytes`` is ``None`` where the system does not say (WDDM).

    ``name`` is as the system gives it, so it is escaped where it is shown; ``""`` when the program is gone.
    """

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True)
class Card:
    """One card. ``None`` means not known, never 0. All sizes in bytes."""

    name: str
    total_bytes: int
    free_bytes: int | None
    used_by_others_bytes: int | None
    """What is in use and does not belong to this process."""
    source: CardSource
    uuid: str | None = None
    holders: tuple[Holder, ...] = ()
    """The programs on the card, this one among them, the largest first."""
    spills: bool = False
    """Whether the driver moves memory to shared RAM instead of failing (Windows, WDDM)."""
