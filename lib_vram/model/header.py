"""The header of a model file: what tensors it holds, without reading one of them. GGUF is read in ``gguf.py``.

The format of safetensors: 8 bytes, the length of the header as an unsigned little-endian integer; the header, a
JSON object from tensor name to dtype, shape and place; then the tensors without gaps. Files come
from strangers and from broken downloads, so nothing in a header is believed before it is checked,
and no more than ``HEADER_LIMIT_BYTES`` is ever read.
Source: the format's description in the safetensors project's README.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import re
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lib_vram.message import say
from lib_vram.model import gguf
from lib_vram.model.tensor import (
    DIMENSION_LIMIT,
    ENTRY_LIMIT,
    HEADER_LIMIT_BYTES,
    RANK_LIMIT,
    Faults,
    Header,
    Tensor,
    only,
    shown,
)

CHUNK_BYTES = 1024**2

BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element, by the format's dtype names."""

_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_ENDINGS = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_SIGNS = (
    (b"version https://git-lfs", "model.lfs_pointer"),
    (b"<!doctype", "model.web_page"),
    (b"<html", "model.web_page"),
)
"""Beginnings in small letters, without the blanks and the mark before them."""
_TEXT = re.compile(rb"[\t\r\n\x20-\x7e]{8}")
"""The length of a header ends in zeros, as no text does."""


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
    if start[8:9] == b"{" or start.startswith(gguf.MAGIC):
        while chunk := file.read(CHUNK_BYTES):
            file_bytes += len(chunk)
    return _read(io.BytesIO(start), file_bytes, "")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _read(file: BinaryIO, file_bytes: int, ending: str) -> Header:
    start = file.read(32)
    sign = _sign(start, ending)
    if sign:
        return only(sign)
    if start.startswith(gguf.MAGIC):
        file.seek(0)
        return gguf.read(file, file_bytes)
    (length,) = struct.unpack("<Q", start[:8])
    if length > HEADER_LIMIT_BYTES:
        return only("model.header_too_long", header_bytes=min(length, 2**63), limit_bytes=HEADER_LIMIT_BYTES)
    if 8 + length > file_bytes:
        return only("model.header_cut_off")
    file.seek(8)
    text = file.read(length)
    if len(text) < length:
        return only("model.header_cut_off")
    return _parse(text, file_bytes - 8 - length)


def _sign(start: bytes, ending: str) -> str:
    """Return what the first bytes of a file say that it is instead of a model; ``""`` when they do not."""
    if not start:
        return "model.empty"
    if start.startswith(_PICKLES):
        return "model.pickle"
    words = start.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    for sign, key in _SIGNS:
        if words.startswith(sign):
            return key
    if ending not in _PICKLE_ENDINGS and len(start) > 8 and _TEXT.match(start.removeprefix(codecs.BOM_UTF8)):
        return "model.text_file"
    if len(start) >= 8 and not start.strip(b"\0"):
        return "model.zeros"
    if start.startswith(gguf.MAGIC) or (len(start) >= 8 and start[8:9] in (b"{", b"")):
        return ""
    return "model.pickle" if ending in _PICKLE_ENDINGS else "model.not_safetensors"


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
        return only("model.header_too_many", limit=ENTRY_LIMIT)
    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except _Duplicate as error:
        return only("model.duplicate", name=shown(str(error)))
    except (ValueError, RecursionError):
        return only("model.header_not_json")
    if not isinstance(content, dict):
        return only("model.header_not_json")
    notes = content.pop("__metadata__", None)
    if not isinstance(notes, dict):
        notes = {}
    metadata = {key: value for key, value in notes.items() if isinstance(value, str)}
    return _Entries(data_bytes).header(content, metadata)


class _Entries:
    """Checks the entries of one header."""

    def __init__(self, data_bytes: int) -> None:
        self._data_bytes = data_bytes
        self._faults = Faults()
        self._places: list[tuple[int, int, str]] = []

    def header(self, content: Mapping[str, Any], metadata: Mapping[str, str]) -> Header:
        tensors = []
        for name, entry in content.items():
            tensor = self._tensor(name, entry)
            if isinstance(tensor, Tensor):
                tensors.append(tensor)
            else:
                self._faults.add(tensor, name)
        self._faults.check_places(self._places, self._data_bytes)
        problems = self._faults.messages()
        if not tensors and not problems:
            problems = (say("model.no_tensors"),)
        elif not problems and self._uncovered():
            problems = (say("model.uncovered", count=self._uncovered()),)
        return Header(tuple(tensors), problems, metadata)

    def _uncovered(self) -> int:
        """Return how many bytes after the header belong to no tensor: programs refuse a file that has any."""
        return self._data_bytes - sum(stop - begin for begin, stop, _ in self._places)

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


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return ``value`` as whole numbers, ``None`` when it is anything but a list of them."""
    if not isinstance(value, list):
        return None
    for item in value:
        if type(item) is not int or not 0 <= item <= DIMENSION_LIMIT:
            return None
    return tuple(value)
