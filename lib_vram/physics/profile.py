"""Profiles: symbolic traces of the model parts that are shipped, and their loading.

A profile holds the events of one part in the order in which they happen at every size. The
size of each is a sum of whole coefficients × monomials of the batch and the picture's size, so
that any size and batch is exact, odd ones included. Attention is kept open: its place and its
numbers are in the profile, and the way of computing it is put in when the profile is used.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from lib_vram.errors import BadProfile

FORMAT = 1
FOLDER = Path(__file__).parent / "profiles"
LEVELS = 4

ALLOC, SCRATCH, ATTEND, FREE, REPEAT, LOOP = range(6)
"""Token kinds: a block, a convolution's scratch block, attention's result, giving back, and runs of equal stretches.

A ``LOOP`` keeps nothing from one stretch beyond the next one, so that a few of them leave the
allocator as all of them do; what a ``REPEAT`` keeps adds up, and all of it is always replayed.
"""

Token = tuple[int, int]
"""Kind and argument: a term's number, a call's number, or how many blocks ago the block was taken.

The argument of a ``REPEAT`` or ``LOOP`` token is the stretch's length in tokens, and the token after it has the count.
"""
Term = tuple[tuple[int, int], ...]
"""Monomial's number and coefficient, in bytes."""

SYMBOLS = (
    "1", "B", *(f"B*A{level}" for level in range(LEVELS)), "B*S",
    *(f"A{level}" for level in range(LEVELS)), "R1", "C1", "B*A1*A1", "R0", "C0", "F",
)  # fmt: skip
"""Monomials: B the batch that the part sees, A0 the latent's area, A1 to A3 that of its halvings, S rows + columns.

A video's areas are those of all its latent frames together. What belongs to the place alone, such as the table of a
rotary embedding, grows with the area and not with the batch, or with the rows (R0, halved R1), the columns (C0, C1) or
the frames (F); a mask over pairs of tokens grows with the square of the patches.
"""


def halvings(rows: int, columns: int) -> tuple[int, ...]:
    """Return the areas of the latent and of its halvings; an odd side is halved upwards, as a stride of 2 does."""
    areas = []
    for _ in range(LEVELS):
        areas.append(rows * columns)
        rows, columns = -(-rows // 2), -(-columns // 2)
    return tuple(areas)


def monomials(batch: int, rows: int, columns: int, frames: int = 1) -> tuple[int, ...]:
    """Return the values of :data:`SYMBOLS` for a latent of ``frames`` times ``rows`` × ``columns``."""
    areas = tuple(frames * area for area in halvings(rows, columns))
    sides = (-(-rows // 2), -(-columns // 2))
    batched = (batch * area for area in areas)
    return (1, batch, *batched, batch * frames * (rows + columns), *areas, *sides, batch * areas[1] ** 2,
            rows, columns, frames)  # fmt: skip


@dataclass(frozen=True)
class CallShape:
    """Attention's place in a profile. Queries and keys are a level of the latent, a number of tokens, or both.

    ``picture`` is 0 for tokens, 1 for a picture of the VAE, 2 for tokens with a mask.
    """

    heads: int
    query_level: int
    key_level: int
    key_tokens: int
    head_size: int
    itemsize: int
    picture: int
    query_back: int
    key_back: int
    value_back: int
    """How many blocks before the result query, key and value were taken."""
    query_tokens: int = 0
    """Tokens on top of the level's, such as those of a text beside the picture's."""
    stretches: int = 1
    """How many stretches of tokens each picture of the batch is: frames of a video that are looked at one by one."""
    cells: int = 1
    """Tokens in each cell of the level: four in Flux.2's VAE, whose own latent has twice the rows and columns."""


@dataclass(frozen=True, eq=False)
class Profile:
    """One part of one model in one dtype. ``parameters`` is how many weights it has."""

    name: str
    parameters: int
    terms: tuple[Term, ...]
    calls: tuple[CallShape, ...]
    tokens: tuple[Token, ...]

    def unrolled(self, kept: int | None = None) -> Iterator[Token]:
        """Return the tokens with repeats written out: all of them, or at most ``kept`` of each loop (two or more).

        With fewer repeats the distances of later ``FREE`` tokens still count the blocks that are there.
        """
        return _unroll(self.tokens, kept)

    def to_json(self) -> dict[str, Any]:
        """Return the file's content: the same bytes for the same profile."""
        flat = [value for token in self.tokens for value in token]
        return {
            "format": FORMAT,
            "name": self.name,
            "parameters": self.parameters,
            "terms": [[list(item) for item in term] for term in self.terms],
            "calls": [list(_call_values(call)) for call in self.calls],
            "tokens": base64.b85encode(zlib.compress(_varints(flat), 9)).decode("ascii"),
        }

    @classmethod
    def from_json(cls, data: Any) -> Profile:
        """Return the profile that a file's content describes.

        Raises:
            BadProfile: it is damaged or from another version.
        """
        try:
            if data["format"] != FORMAT:
                raise BadProfile(f"profile format {data['format']!r}, this version reads {FORMAT}")
            flat = _from_varints(zlib.decompress(base64.b85decode(data["tokens"])))
            profile = cls(
                data["name"], int(data["parameters"]),
                tuple(tuple((int(m), int(c)) for m, c in term) for term in data["terms"]),
                tuple(CallShape(*map(int, values)) for values in data["calls"]),
                tuple(zip(flat[::2], flat[1::2])),
            )  # fmt: skip
            _check(profile)
        except (KeyError, TypeError, ValueError, IndexError, zlib.error) as fault:
            raise BadProfile(f"profile cannot be read: {fault}") from fault
        return profile


def _call_values(call: CallShape) -> tuple[int, ...]:
    values = dataclasses.astuple(call)
    fields = dataclasses.fields(call)
    said = max(place for place, field in enumerate(fields) if values[place] != field.default)
    return values[: said + 1]  # the last fields are left out where they say nothing


def _check(profile: Profile) -> None:
    limits = {ALLOC: len(profile.terms), SCRATCH: len(profile.terms), ATTEND: len(profile.calls)}
    for kind, argument in profile.unrolled(2):
        if kind in limits and not argument < limits[kind]:
            raise ValueError(f"token {kind} refers to {argument}")
        if kind > FREE:
            raise ValueError(f"unknown token {kind}")


def _unroll(tokens: tuple[Token, ...], kept: int | None) -> Iterator[Token]:
    """Write repeats out. Blocks of the repeats that are left out keep no number, so distances past them shrink."""
    place = taken = 0
    gaps: list[tuple[int, int]] = []
    while place < len(tokens):
        kind, argument = tokens[place]
        if kind not in (REPEAT, LOOP):
            taken += kind in (ALLOC, ATTEND)
            yield (kind, _bridged(argument, taken, gaps) if kind == FREE and gaps else argument)
            place += 1
            continue
        count = tokens[place + 1][1]
        stretch = tokens[place + 2 : place + 2 + argument]
        blocks = sum(item[0] in (ALLOC, ATTEND) for item in stretch)
        written = count if kept is None or kind == REPEAT else min(count, kept)
        for _ in range(written):
            for inner, value in stretch:
                taken += inner in (ALLOC, ATTEND)
                yield (inner, _bridged(value, taken, gaps) if inner == FREE and gaps else value)
        if written < count:
            gaps.append((taken - blocks * written, blocks * (count - written)))
        place += 2 + argument


def _bridged(distance: int, taken: int, gaps: list[tuple[int, int]]) -> int:
    """Return a distance with the blocks taken off that were left out between then and now."""
    for start, left_out in reversed(gaps):
        if taken - distance >= start:
            break
        distance -= left_out
    return distance


def _varints(values: Iterable[int]) -> bytes:
    result = bytearray()
    for value in values:
        while value > 127:
            result.append(value & 127 | 128)
            value >>= 7
        result.append(value)
    return bytes(result)


def _from_varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    if shift or len(values) % 2:
        raise ValueError("tokens are cut off")
    return values


@lru_cache(maxsize=128)
def load(name: str) -> Profile | None:
    """Return the shipped profile ``name`` (``"sdxl-denoise-fp16"``), ``None`` when there is none.

    Raises:
        BadProfile: the file is there and cannot be read.
    """
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise BadProfile(f"{path.name}: {fault}") from fault
    return Profile.from_json(data)
