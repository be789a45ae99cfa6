"""The grammars of error texts: which words stand around which figure. To teach it another wording, add a line.

Patterns meet the text in small letters, with its line ends and runs of blanks made single blanks. ``SIZE`` is a
number and its unit. They were read from PyTorch's sources, from 1.12's ``CUDACachingAllocator.cpp`` to 2.9's, from
``CUDAMallocAsyncAllocator.cpp``, ``XPUCachingAllocator.cpp`` and ``MPSAllocator.mm``, and from the texts of users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lib_vram.diagnosis.sizes import NUMBER, SIZE, STAND_IN_BYTES, size_bytes

WINDOW = 1600
"""Characters after the start of a failure in which its figures stand; torch's longest text has some 900."""


@dataclass(frozen=True)
class Grammar:
    """One wording of one figure. ``binary``: its GB means 2**30. Without a unit in the text, ``unit`` holds."""

    figure: str
    pattern: str
    binary: bool = False
    unit: str = ""


_BYTES = "bytes"

GRAMMARS: tuple[Grammar, ...] = (
    # Asked for
    Grammar("requested", rf"max allowed: [^)]{{0,20}}\)\. tried to allocate {SIZE}", binary=True),
    Grammar("requested", rf"invalid buffer size:? {SIZE}", binary=True),
    Grammar("requested", rf"tried to allocate {SIZE}"),
    Grammar("requested", rf"tried to allocate ({NUMBER})(?! ?[kmgtb])", unit=_BYTES),
    Grammar("requested", rf"could not allocate tensor with {SIZE}"),
    Grammar("requested", rf"\brequested ?: {SIZE}"),
    Grammar("requested", rf"allocation: requested {SIZE}"),
    Grammar(
        "requested", rf"(?:failed|unable) to allocate [\d.]{{1,20}}[kmgt]i?b? \(({NUMBER})(?: bytes)\)", unit=_BYTES
    ),
    Grammar("requested", rf"(?:failed|unable) to allocate {SIZE}"),
    Grammar("requested", rf"(?:failed|unable) to alloc(?:ate)? [^.]{{0,60}}? of size ({NUMBER})", unit=_BYTES),
    Grammar("requested", rf"(?:try|trying|attempt|attempting|attempted) to allocate {SIZE}"),
    Grammar("requested", rf"allocating {SIZE} on device \d+: cudamalloc failed"),
    Grammar("requested", rf"device memory allocation of size ({NUMBER}) failed", unit=_BYTES),
    Grammar("requested", rf"requested (?:amount of gpu memory|size) (?:was )?\(?{SIZE}"),
    Grammar("requested", rf"\bneed: ?{SIZE} free", binary=True),
    # The card
    Grammar("capacity", rf"{SIZE} total capacity"),
    Grammar("capacity", rf"total capaci?ty of {SIZE}"),
    Grammar("capacity", rf"device limit ?: {SIZE}"),
    Grammar("capacity", rf"max allowed: {SIZE}", binary=True),
    # Free
    Grammar("free", rf"\bhave: ?{SIZE} free", binary=True),
    Grammar("free", rf"{SIZE} free\b(?! ?[:(])"),
    Grammar("free", rf"of which {SIZE} is free"),
    Grammar("free", rf"free \(according to cuda\) ?: {SIZE}"),
    # Held by PyTorch
    Grammar("allocated", rf"mps allocated: {SIZE}", binary=True),
    Grammar("allocated", rf"{SIZE} already allocated"),
    Grammar("allocated", rf"{SIZE} is allocated by pytorch"),
    Grammar("allocated", rf"currently allocated ?: {SIZE}"),
    Grammar("other_allocations", rf"other allocations: {SIZE}", binary=True),
    Grammar("reserved", rf"{SIZE} reserved in total"),
    Grammar("reserved", rf"{SIZE} cached\b"),
    Grammar("unallocated", rf"{SIZE} is reserved by pytorch but unallocated"),
    Grammar("private_pools", rf"with {SIZE} allocated in private pools"),
    # Limits and processes
    Grammar("allowed", rf"(?<!max ){SIZE} allowed\b"),
    Grammar("allowed", rf"pytorch limit \(set by user-supplied memory fraction\) ?: {SIZE}"),
    Grammar("process", rf"this process has {SIZE} memory in use"),
)

_COMPILED = tuple((grammar, re.compile(grammar.pattern)) for grammar in GRAMMARS)
_OTHER_PROCESS = re.compile(rf"(?<!this )process (\d{{1,9}}) has {SIZE} memory in use")
_STARTS = ("tried to allocate", "could not allocate tensor", "would exceed allowed memory", "outofmemoryerror")


def read_figures(window: str) -> Mapping[str, int]:
    """Return the figures in ``window``, the text from the start of a failure on, each in bytes.

    Of a figure that is worded in two ways the first grammar of the table wins, and of one that stands twice the first.
    """
    text = _first_failure(window)
    found: dict[str, int] = {}
    for grammar, pattern in _COMPILED:
        if grammar.figure in found:
            continue
        match = pattern.search(text)
        if match is None:
            continue
        unit = match[2] if (match.re.groups or 0) > 1 else grammar.unit
        value = size_bytes(match[1], unit, binary=grammar.binary)
        if value is not None:
            found[grammar.figure] = value
    return found


def read_processes(window: str) -> Mapping[int, int]:
    """Return what the text says other processes hold, bytes by process number."""
    text = _first_failure(window)
    sizes = ((match[1], size_bytes(match[2], match[3])) for match in _OTHER_PROCESS.finditer(text))
    return {int(number): size for number, size in sizes if size is not None and 0 <= size < STAND_IN_BYTES}


def _first_failure(window: str) -> str:
    """Cut ``window`` before the failure after its own, which has figures of its own."""
    text = " ".join(window.lower().split())[:WINDOW]
    seconds = [text.find(start, text.find(start) + 1) for start in _STARTS if start in text]
    return text[: min((place for place in seconds if place > 0), default=WINDOW)]
