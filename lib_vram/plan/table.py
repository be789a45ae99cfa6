"""What fits: common sizes at several batches on this card, and the same request on other cards and in lighter weights.

Everything here is :func:`~lib_vram.estimate.estimator.estimate` asked a bounded number of times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import could_fit, estimate, measure
from lib_vram.estimate.flags import of_forge_line
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate, Verdict
from lib_vram.message import Message, say
from lib_vram.physics.families import SHAPES
from lib_vram.request import Family, HostName, Request, WeightsDtype
from lib_vram.units import GIB, MIB

Column = Literal["batch_size", "frames"]
Size = tuple[int, int]
Correct = Callable[[Estimate, Request], Estimate]
"""What this machine's own runs make of an estimate."""

BATCHES = (1, 2, 4, 8)
FRAMES = (17, 33, 49, 81)
"""Four frames a latent frame and one: about 1, 2, 3 and 5 seconds at Wan's 16 frames a second."""

_MEGAPIXEL = ((1024, 1024), (896, 1152), (832, 1216), (768, 1344))
_QWEN = ((1328, 1328), (1104, 1472), (1056, 1584), (928, 1664))
NATIVE_SIZES: dict[Family, tuple[Size, ...]] = {
    "sd15": ((512, 512), (512, 768)),
    "sd21": ((768, 768),),
    "qwen_image": _QWEN,
    "wan21_1b": ((480, 832),),
    "wan21_14b": ((480, 832), (720, 1280)),
}
"""What the models were trained at, upright, where that is not one megapixel: from their own pages. SD 1.5 was trained
at 512×512; 512×768 is what its finetunes and their users take."""
OTHER_SIZES: dict[Family, tuple[Size, ...]] = {
    "sd15": ((640, 960), (768, 768), (768, 1152), (1024, 1024)),
    "sd21": ((512, 512), (768, 1152), (1024, 1024)),
    "wan21_1b": ((720, 1280),),
    "wan21_14b": (),
}
_ABOVE_MEGAPIXEL = ((768, 768), (1280, 1280), (1536, 1536), (2048, 2048))

CARD_CLASSES: tuple[tuple[int, str], ...] = (
    (4, "GTX 1650"), (6, "RTX 2060, GTX 1660"), (8, "RTX 3070, RTX 4060"), (10, "RTX 3080"), (11, "GTX 1080 Ti"),
    (12, "RTX 3060, RTX 4070"), (16, "RTX 4060 Ti 16GB, RTX 4080"), (24, "RTX 3090, RTX 4090"), (32, "RTX 5090"),
    (48, "RTX A6000, L40S"), (80, "A100, H100"),
)  # fmt: skip
"""Gigabytes on the box, and cards that have them."""
DRIVER_KEEPS_BYTES, DRIVER_KEEPS_SHARE = 160 * MIB, 0.01
"""What PyTorch sees is less than what is on the box: 11.77 GiB of 12, 7.79 of 8, 23.65 of 24, 79.15 of 80, as
PyTorch prints them in reports of failures on Linux; Windows says more. The line through these, rounded down."""
SAME_CLASS = 0.06

LIGHTER: dict[HostName, tuple[WeightsDtype, ...]] = {
    "a1111": ("fp16", "fp8"), "classic": ("fp16", "fp8"), "reforge": ("fp16", "fp8"),
    "forge": ("fp16", "q8_0", "fp8", "nf4", "q4_k"), "neo": ("fp16", "q8_0", "fp8", "nf4", "q4_k"),
    "diffusers": ("fp16", "q8_0", "fp8", "nf4", "q4_k"),
}  # fmt: skip
"""Types of weights that a host loads, heaviest first; GGUF and NF4 files are made for transformers only."""
FOR_TRANSFORMERS = ("q8_0", "nf4", "q4_k")


@dataclass(frozen=True)
class Cell:
    """One size at one batch. ``needs_bytes`` is the smallest free memory with which its binding phase runs."""

    verdict: Verdict
    needs_bytes: int
    peak_bytes: int
    swaps: bool

    @classmethod
    def of(cls, result: Estimate) -> Cell:
        """Return what a table shows of ``result``."""
        needs_bytes = result.binding.needs_bytes if result.binding else 0
        return cls(result.verdict, needs_bytes, result.peak_bytes, swaps_weights(result))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "verdict": self.verdict,
            "needs_bytes": self.needs_bytes,
            "peak_bytes": self.peak_bytes,
            "swaps": self.swaps,
        }


NOT_YET, WONT_FIT = Cell("unknown", 0, 0, False), Cell("wont_fit", 0, 0, False)


@dataclass(frozen=True)
class Row:
    """One size: whether the model was made for it, whether the request asks for it, and a cell per column."""

    width: int
    height: int
    native: bool
    current: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class SizeTable:
    """Sizes by batches or, for videos, by frames."""

    vary: Column
    columns: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every cell was computed in the time that was given."""
        return all(cell.verdict != "unknown" for row in self.rows for cell in row.cells)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: each cell with its size and its column's value."""
        rows = [
            {
                "width": row.width, "height": row.height, "native": row.native, "current": row.current,
                "cells": [
                    {self.vary: value, **cell.to_dict()} for value, cell in zip(self.columns, row.cells, strict=True)
                ],
            }
            for row in self.rows
        ]  # fmt: skip
        return {"vary": self.vary, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True)
class CardFit:
    """The request on a card of ``gigabytes``, of which PyTorch sees ``total_bytes``; ``current`` is the present one."""

    gigabytes: int
    names: str
    total_bytes: int
    current: bool
    cell: Cell


@dataclass(frozen=True)
class Cards:
    """The request on every class of card."""

    cards: tuple[CardFit, ...]

    @property
    def runs_from(self) -> int | None:
        """Gigabytes of the smallest card from which on it runs, ``None`` when no card is enough."""
        return self._smallest(lambda cell: cell.verdict in ("fits", "tight"))

    @property
    def whole_from(self) -> int | None:
        """Gigabytes of the smallest card from which on it fits with no weights swapped; ``None`` when none does."""
        return self._smallest(lambda cell: cell.verdict == "fits" and not cell.swaps)

    @property
    def is_complete(self) -> bool:
        """Whether every card was computed in the time that was given."""
        return all(card.cell.verdict != "unknown" for card in self.cards)

    def sentences(self) -> tuple[Message, ...]:
        """Return from which card up it runs, and from which up without swapping where that is another one."""
        if not self.is_complete:
            return ()
        if self.runs_from is None:
            return (say("advice.runs_nowhere", gigabytes=self.cards[-1].gigabytes),)
        runs = say("advice.runs_from", gigabytes=self.runs_from)
        if self.whole_from is None:
            return (runs, say("advice.whole_nowhere", gigabytes=self.cards[-1].gigabytes))
        if self.whole_from == self.runs_from:
            return (runs,)
        return (runs, say("advice.whole_from", gigabytes=self.whole_from))

    def _smallest(self, good: Callable[[Cell], bool]) -> int | None:
        found = None
        for card in reversed(self.cards if self.is_complete else ()):
            if not good(card.cell):
                break
            found = card.gigabytes
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        cards = [
            {
                "gigabytes": card.gigabytes, "names": card.names, "total_bytes": card.total_bytes,
                "current": card.current, **card.cell.to_dict(),
            }
            for card in self.cards
        ]  # fmt: skip
        return {"runs_from_gigabytes": self.runs_from, "whole_from_gigabytes": self.whole_from, "cards": cards}


@dataclass(frozen=True)
class WeightsFit:
    """The request with its weights in ``weights_dtype``."""

    weights_dtype: WeightsDtype
    current: bool
    cell: Cell

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"weights_dtype": self.weights_dtype, "current": self.current, **self.cell.to_dict()}


def swaps_weights(result: Estimate) -> bool:
    """Return whether the host keeps only a part of the weights on the card and swaps the rest."""
    return any(note.key == "estimate.forge_swaps" for note in result.notes)


def as_computed(result: Estimate, request: Request) -> Estimate:
    """Return ``result``: nothing was learned."""
    return result


def size_table(
    request: Request, physics: Physics = COMPUTED, correct: Correct = as_computed, until: float = math.inf
) -> SizeTable:
    """Return common sizes of the family, upright or lying as ``request`` is, at several batches or frames.

    The row that is asked for comes first. After ``until``, a reading of :func:`time.monotonic`, a cell that is not
    ruled out by its floor is left ``"unknown"``; what was computed is remembered, so that another call goes on there.

    Raises:
        NotReady: the memory of ``request`` cannot be computed yet.
    """
    refuse_unknown(request, physics)
    vary: Column = "frames" if SHAPES[request.model.family].frames_per_latent > 1 else "batch_size"
    usual = FRAMES if vary == "frames" else BATCHES
    columns = tuple(sorted({*usual, getattr(request, vary)}))
    now = (request.width, request.height)

    def row(size: Size, native: bool) -> Row:
        at_size = request.replace(width=size[0], height=size[1])
        cells = tuple(_cell(at_size.replace(**{vary: value}), physics, correct, until) for value in columns)
        return Row(*size, native, size == now, cells)

    sizes = dict(sizes_for(request))
    first = {size: row(size, sizes[size]) for size in sorted(sizes, key=lambda size: size != now)}
    return SizeTable(vary, columns, tuple(first[size] for size in sizes))


def _cell(request: Request, physics: Physics, correct: Correct, until: float) -> Cell:
    if time.monotonic() < until:
        return Cell.of(correct(estimate(request, physics), request))
    return NOT_YET if could_fit(request, physics) else WONT_FIT


def sizes_for(request: Request) -> tuple[tuple[Size, bool], ...]:
    """Return the sizes of the table, smallest first, each with whether the model was made for it."""
    family = request.model.family
    native = tuple(_turned(size, request) for size in NATIVE_SIZES.get(family, _MEGAPIXEL))
    more = tuple(_turned(size, request) for size in OTHER_SIZES.get(family, _ABOVE_MEGAPIXEL))
    now = (request.width, request.height)
    both_ways = {*native, *(size[::-1] for size in native)}
    sizes = sorted({*native, *more, now}, key=lambda size: (size[0] * size[1], size))
    return tuple((size, size in both_ways) for size in sizes)


def _turned(size: Size, request: Request) -> Size:
    return size[::-1] if request.width > request.height else size


def cards_table(
    request: Request, physics: Physics = COMPUTED, correct: Correct = as_computed, until: float = math.inf
) -> Cards:
    """Return ``request`` on every class of card, as much held by other programs as on the present one.

    What was learned counts for the present card alone. After ``until``, a reading of :func:`time.monotonic`, cards
    are left ``"unknown"``.

    Raises:
        NotReady: the memory of ``request`` cannot be computed yet.
    """
    refuse_unknown(request, physics)
    mine = class_of(request.device.total_bytes)
    cards = []
    for gigabytes, names in CARD_CLASSES:
        total_bytes = request.device.total_bytes if gigabytes == mine else seen_bytes(gigabytes)
        there = request.replace(device=replace(request.device, total_bytes=total_bytes))
        cell = _cell(there, physics, correct if gigabytes == mine else as_computed, until)
        cards.append(CardFit(gigabytes, names, total_bytes, gigabytes == mine, cell))
    return Cards(tuple(cards))


def class_of(total_bytes: int) -> int | None:
    """Return the gigabytes on the box of a card with ``total_bytes``, ``None`` for one between the classes."""
    nearest = min((gigabytes for gigabytes, _ in CARD_CLASSES), key=lambda size: abs(size * GIB - total_bytes))
    return nearest if abs(nearest * GIB - total_bytes) <= SAME_CLASS * nearest * GIB else None


def seen_bytes(gigabytes: int) -> int:
    """Return what PyTorch sees of a card with ``gigabytes`` on its box."""
    return int(gigabytes * GIB * (1 - DRIVER_KEEPS_SHARE)) - DRIVER_KEEPS_BYTES


def lighter_weights(
    request: Request, physics: Physics = COMPUTED, correct: Correct = as_computed, until: float = math.inf
) -> tuple[WeightsFit, ...]:
    """Return ``request`` with its weights in each type that its host loads, heaviest first; none where it has one.

    The counts are the family's, not those of the request's file, so that all rows compare. ``correct`` is what this
    machine's runs make of each estimate.

    Raises:
        NotReady: the memory of ``request`` cannot be computed yet.
    """
    refuse_unknown(request, physics)
    transformer = SHAPES[request.model.family].transformer
    found = []
    for dtype in LIGHTER.get(request.host, ()):
        if dtype in FOR_TRANSFORMERS and not transformer:
            continue
        model = replace(request.model, checkpoint=None, storage_dtype=None, weights_dtype=_plain(request, dtype))
        there = request.replace(model=model)
        cell = _cell(there, physics, correct, until)
        now = request.model.storage_dtype or request.model.weights_dtype
        found.append(WeightsFit(model.weights_dtype, model.weights_dtype == now, cell))
    return tuple(found)


def _plain(request: Request, dtype: WeightsDtype) -> WeightsDtype:
    """Return ``dtype``; half precision is bf16 where the host computes the family in it."""
    return "bf16" if dtype == "fp16" and of_forge_line(request) and request.model.weights_dtype == "bf16" else dtype


def refuse_unknown(request: Request, physics: Physics = COMPUTED) -> None:
    """Refuse a request of which something cannot be computed yet: a table of guesses would look like one of answers.

    Raises:
        NotReady: says what cannot be computed.
    """
    unknown = measure(request, physics)[1]
    if unknown:
        raise NotReady("request", got=request.model.family, takes=str(unknown[0]))
