"""What the headers of all formats come to: tensors with name, dtype, shape and size, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lib_vram.message import Message, say

HEADER_LIMIT_BYTES = 32 * 1024**2
"""Above any real header: SDXL's is 0.3 MB, a GGUF text encoder with its vocabulary 12 MB, and LoRA trainers have
written 20 MB of notes into theirs."""
ENTRY_LIMIT = 1_000_000
"""Objects and lists in one header; the largest models have some 10 000 tensors."""
DIMENSION_LIMIT = 2**62
RANK_LIMIT = 16


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: ``dtype`` in the format's own name, ``size_bytes`` as its shape and dtype say."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds, as the file counts them: 4-bit weights packed in bytes count as bytes."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a file says it holds, and what is wrong with it. ``readable`` is false when the path is no file."""

    tensors: tuple[Tensor, ...] = ()
    problems: tuple[Message, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    readable: bool = True


def only(key: str, **values: str | int) -> Header:
    """Return a header that has nothing but the problem ``key``."""
    return Header(problems=(say(key, **values),))


def shown(text: str, limit: int = 80) -> str:
    """Return ``text`` from a file fit to be shown: one line, printable, at most ``limit`` characters."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


class Faults:
    """Faults of a header's entries: each kind is told once, with its first example and its count."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, kind: str, name: str) -> None:
        """Note that the entry ``name`` has the fault ``kind``, a key of the area ``model``."""
        self._names.setdefault(kind, []).append(name)

    def check_places(self, places: Iterable[tuple[int, int, str]], data_bytes: int) -> None:
        """Note tensors, given as (begin, end, name), that overlap or lie beyond the ``data_bytes`` that are there."""
        end = 0
        for begin, stop, name in sorted(places):
            if begin < end:
                self.add("overlaps", name)
            if stop > data_bytes:
                self.add("cut_off", name)
            end = max(end, stop)

    def messages(self) -> tuple[Message, ...]:
        """Return one message for each kind of fault."""
        return tuple(
            say(f"model.{kind}", count=len(names), name=shown(names[0])) for kind, names in self._names.items()
        )
