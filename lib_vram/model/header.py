"""The header of a safetensors file: what tensors it holds, without reading one of them.

The format: 8 bytes, the length of the header as an unsigned little-endian integer; the header, a
JSON object from tensor name to dtype, shape and place; then the tensors without gaps. Files come
from strangers and from broken downloads, so nothing in a header is believed before it is checked,
and no more than :data:`HEADER_LIMIT_BYTES` is ever read.
Source: the format's description in the safetensors project's README.
"""

from __future__ import annotations

import io
import json
import math
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lib_vram.message import Message, say

HEADER_LIMIT_BYTES = 32 * 1024**2
"""Above any real header: SDXL's is 0.3 MB, and LoRA trainers have written 20 MB of notes into theirs."""
CHUNK_BYTES = 1024**2
ENTRY_LIMIT = 1_000_000
"""Objects and lists in one header; the largest models have some 10 000 tensors."""
DIMENSION_LIMIT = 2**62
RANK_LIMIT = 16

BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element, by the format's dtype names."""

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_ENDINGS = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_SIGNS = (
    (b"GGUF", "model.gguf_not_ready"),
    (b"version https://git-lfs", "model.lfs_pointer"),
    (b"<!DOCTYPE", "model.web_page"),
    (b"<!doctype", "model.web_page"),
    (b"<html", "model.web_page"),
)


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: ``dtype`` in the format's own name, ``size_bytes`` as its shape and dtype say."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a file says it holds, and what is wrong with it. ``readable`` is false when the path is no file."""

    tensors: tuple[Tensor, ...] = ()
    problems: tuple[Message, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    readable: bool = True


def read_header(path: str | Path) -> Header:
    """Return the header of the file at ``path``. Never raises: what is wrong is in ``problems``."""
    try:
        file_path = Path(path)
        status = file_path.stat()
        if stat.S_ISDIR(status.st_mode):
            return Header(problems=(say("model.is_folder"),), readable=False)
        if not stat.S_ISREG(status.st_mode):
            return Header(problems=(say("model.not_a_file"),), readable=False)
        with file_path.open("rb") as file:
            return _read(file, status.st_size, file_path.suffix.lower())
    except FileNotFoundError:
        return Header(problems=(say("model.missing"),), readable=False)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        return Header(problems=(say("model.cannot_open", reason=shown(_reason(error))),), readable=False)


def read_stream(file: BinaryIO) -> Header:
    """Return the header of what comes from ``file``, a pipe for instance, and count what follows it."""
    start = file.read(8 + HEADER_LIMIT_BYTES)
    file_bytes = len(start)
    if start[8:9] == b"{":
        while chunk := file.read(CHUNK_BYTES):
            file_bytes += len(chunk)
    return _read(io.BytesIO(start), file_bytes, "")


def shown(text: str, limit: int = 80) -> str:
    """Return ``text`` from a file fit to be shown: one line, printable, at most ``limit`` characters."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _read(file: BinaryIO, file_bytes: int, ending: str) -> Header:
    start = file.read(32)
    if not start:
        return _only("model.empty")
    if start.startswith(_PICKLES):
        return _only("model.pickle")
    for sign, key in _SIGNS:
        if start.startswith(sign):
            return _only(key)
    if len(start) < 8:
        return _only("model.pickle" if ending in _PICKLE_ENDINGS else "model.not_safetensors")
    (length,) = struct.unpack("<Q", start[:8])
    if start[8:9] not in (b"{", b""):
        return _only("model.pickle" if ending in _PICKLE_ENDINGS else "model.not_safetensors")
    if length > HEADER_LIMIT_BYTES:
        return _only("model.header_too_long", header_bytes=min(length, 2**63), limit_bytes=HEADER_LIMIT_BYTES)
    if 8 + length > file_bytes:
        return _only("model.header_cut_off")
    file.seek(8)
    text = file.read(length)
    if len(text) < length:
        return _only("model.header_cut_off")
    return _parse(text, file_bytes - 8 - length)


def _only(key: str, **values: str | int) -> Header:
    return Header(problems=(say(key, **values),))


class _Duplicate(ValueError):
    """A JSON object that has the same name twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _Duplicate(counts.most_common(1)[0][0])
    return result


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def _parse(text: bytes, data_bytes: int) -> Header:
    if text.count(b"{") + text.count(b"[") > ENTRY_LIMIT:
        return _only("model.header_too_many", limit=ENTRY_LIMIT)
    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _Duplicate as error:
        return _only("model.duplicate", name=shown(str(error)))
    except (ValueError, RecursionError):
        return _only("model.header_not_json")
    if not isinstance(content, dict):
        return _only("model.header_not_json")
    notes = content.pop("__metadata__", None)
    if not isinstance(notes, dict):
        notes = {}
    metadata = {key: value for key, value in notes.items() if isinstance(value, str)}
    return _Entries(data_bytes).header(content, metadata)


class _Entries:
    """Checks the entries of one header; each kind of fault is told once, with its first example and its count."""

    def __init__(self, data_bytes: int) -> None:
        self._data_bytes = data_bytes
        self._faults: dict[str, list[str]] = {}
        self._places: list[tuple[int, int, str]] = []

    def header(self, content: Mapping[str, Any], metadata: Mapping[str, str]) -> Header:
        tensors = []
        for name, entry in content.items():
            tensor = self._tensor(name, entry)
            if isinstance(tensor, Tensor):
                tensors.append(tensor)
            else:
                self._fault(tensor, name)
        self._check_places()
        problems = tuple(
            say(f"model.{kind}", count=len(names), name=shown(names[0])) for kind, names in self._faults.items()
        )
        if not tensors and not problems:
            problems = (say("model.no_tensors"),)
        return Header(tuple(tensors), problems, metadata)

    def _tensor(self, name: str, entry: object) -> Tensor | str:
        """Return the tensor that ``entry`` describes, or which fault it has."""
        if not isinstance(entry, dict):
            return "entry_malformed"
        dtype, shape, place = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
        if not isinstance(dtype, str) or dtype not in BITS:
            return "dtype_unknown"
        if shape is None or len(shape) > RANK_LIMIT:
            return "shape_malformed"
        if place is None or len(place) != 2 or place[0] > place[1]:
            return "place_malformed"
        size_bytes = -(-math.prod(shape) * BITS[dtype] // 8)
        if place[1] - place[0] != size_bytes:
            return "size_differs"
        self._places.append((place[0], place[1], name))
        return Tensor(name, dtype, shape, size_bytes)

    def _check_places(self) -> None:
        end = 0
        for begin, stop, name in sorted(self._places):
            if begin < end:
                self._fault("overlaps", name)
            if stop > self._data_bytes:
                self._fault("cut_off", name)
            end = max(end, stop)

    def _fault(self, kind: str, name: str) -> None:
        self._faults.setdefault(kind, []).append(name)


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return ``value`` as whole numbers, ``None`` when it is anything but a list of them."""
    if not isinstance(value, list):
        return None
    good = all(type(item) is int and 0 <= item <= DIMENSION_LIMIT for item in value)
    return tuple(value) if good else None
