"""The header of a GGUF file: notes and tensors, without reading a weight.

The format (versions 2 and 3): ``GGUF``, the version (uint32), the numbers of tensors and of notes (uint64); the
notes, each a name, a type and a value; the tensors' names, sizes (the fastest first), types and places; then the
tensors, each at a multiple of the alignment. All numbers have the byte order of the machine that wrote the file.
Source: docs/gguf.md of the ggml project; block sizes: ggml's ``ggml-common.h``.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import BinaryIO

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

MAGIC = b"GGUF"
VERSIONS = (2, 3)
CHUNK_BYTES = 1024**2
_NESTING_LIMIT = 8
_ALIGNMENT = "general.alignment"
_ALIGNMENT_BYTES = 32
_SHAPE_NOTE = "comfy.gguf.orig_shape."
"""ComfyUI-GGUF stores tensors whose rows are no whole blocks in another shape and notes the real one."""

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    31: ("Q4_0", 32, 18), 32: ("Q4_0", 32, 18), 33: ("Q4_0", 32, 18),
    36: ("IQ4_NL", 32, 18), 37: ("IQ4_NL", 32, 18), 38: ("IQ4_NL", 32, 18),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Name, weights in a block, bytes of a block, by ggml's number. 31 to 38 are Q4_0 and IQ4_NL in another order."""

_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The notes' types of one number, as ``struct`` codes."""
_STRING, _ARRAY = 8, 9
_WHOLE = frozenset("BbHhIiQq")


class _Malformed(ValueError):
    """The header cannot be read on; ``key`` says why."""

    def __init__(self, key: str, **values: str | int) -> None:
        super().__init__(key)
        self.key, self.values = key, values


def read(file: BinaryIO, file_bytes: int) -> Header:
    """Return the header of the GGUF file that ``file`` stands at the beginning of. Faults are in ``problems``."""
    start = file.read(8)
    if len(start) < 8:
        return only("model.header_cut_off")
    order = _order(start)
    if order is None:
        return only("model.gguf_version", version=int.from_bytes(start[4:8], "little"))
    source = _Source(file, order)
    try:
        return _Reader(source).header(file_bytes)
    except _Malformed as error:
        return only(error.key, **error.values)


def _order(start: bytes) -> str | None:
    """Return the byte order as ``struct`` writes it; ``None`` for a version that is not known in either."""
    for order in "<>":
        if struct.unpack(f"{order}I", start[4:8])[0] in VERSIONS:
            return order
    return None


class _Source:
    """Reads a file forward, a chunk at a time, and never beyond the header limit."""

    def __init__(self, file: BinaryIO, order: str) -> None:
        self._file, self._order = file, order
        self._data, self._at = bytearray(), 0
        self._codes = {code: struct.Struct(order + code) for code in "BbHhIiQqfd"}

    @property
    def place(self) -> int:
        """How many bytes of the file have been taken, magic and version among them."""
        return 8 + self._at

    def take(self, count: int) -> int:
        """Return the place in :attr:`data` of the next ``count`` bytes, and go past them."""
        begin = self._at
        if begin + count > HEADER_LIMIT_BYTES:
            raise _Malformed(
                "model.header_too_long", header_bytes=min(begin + count, 2**63), limit_bytes=HEADER_LIMIT_BYTES
            )
        while len(self._data) < begin + count:
            chunk = self._file.read(max(CHUNK_BYTES, begin + count - len(self._data)))
            if not chunk:
                raise _Malformed("model.header_cut_off")
            self._data += chunk
        self._at = begin + count
        return begin

    def number(self, code: str) -> int | float:
        """Return the next number, whose type is a ``struct`` code."""
        form = self._codes[code]
        return form.unpack_from(self._data, self.take(form.size))[0]

    def count(self) -> int:
        """Return the next uint64."""
        form = self._codes["Q"]
        return form.unpack_from(self._data, self.take(8))[0]

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        """Return the next ``count`` whole numbers."""
        begin = self.take(count * self._codes[code].size)
        return struct.unpack_from(f"{self._order}{count}{code}", self._data, begin)

    def text(self) -> str:
        """Return the next string; what is no UTF-8 in it is replaced."""
        length = self.count()
        begin = self.take(length)
        return self._data[begin : begin + length].decode("utf-8", "replace")

    def skip(self, code: str, count: int) -> None:
        """Go past ``count`` numbers."""
        self.take(count * self._codes[code].size)

    def skip_texts(self, count: int) -> None:
        """Go past ``count`` strings: a vocabulary has some 250 000, so no call is made for each."""
        length_at, data, at = self._codes["Q"].unpack_from, self._data, self._at
        end = len(data)
        for _ in range(count):
            if at + 8 > end:
                self._at = at
                self.take(8)
                end = len(data)
            at += 8 + length_at(data, at)[0]
        self._at = at
        self.take(0)


class _Reader:
    def __init__(self, source: _Source) -> None:
        self._source = source
        self._notes: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._faults = Faults()
        self._places: list[tuple[int, int, str]] = []
        self._entries = 0

    def header(self, file_bytes: int) -> Header:
        tensor_count, note_count = self._source.count(), self._source.count()
        self._count_entries(max(tensor_count, note_count))
        for _ in range(note_count):
            self._note()
        tensors = [tensor for tensor in (self._tensor() for _ in range(tensor_count)) if tensor is not None]
        for name, count in Counter(tensor.name for tensor in tensors).items():
            if count > 1:
                self._faults.add("gguf_duplicate", name)
        alignment = self._alignment()
        self._faults.check_places(self._places, file_bytes - -(-self._source.place // alignment) * alignment)
        problems = self._faults.messages()
        if not tensors and not problems and "split.count" not in self._notes:
            return only("model.no_tensors")
        return Header(tuple(tensors), problems, self._notes)

    def _count_entries(self, count: int) -> None:
        self._entries += count
        if self._entries > ENTRY_LIMIT:
            raise _Malformed("model.header_too_many", limit=ENTRY_LIMIT)

    def _alignment(self) -> int:
        given = self._notes.get(_ALIGNMENT, "")
        alignment = int(given) if given.isdecimal() else _ALIGNMENT_BYTES
        if not 1 <= alignment <= CHUNK_BYTES:
            self._faults.add("gguf_alignment", given)
            return _ALIGNMENT_BYTES
        return alignment

    def _note(self) -> None:
        name = self._source.text()
        kind = self._source.number("I")
        if kind == _STRING:
            self._notes[name] = self._source.text()
        elif kind == _ARRAY:
            self._array(name, 0)
        elif kind in _SCALARS:
            value = self._source.number(_SCALARS[int(kind)])
            self._notes[name] = str(value)
        else:
            raise _Malformed("model.gguf_note_malformed", name=shown(name))

    def _array(self, name: str, depth: int) -> None:
        """Go past an array; only the shapes that ComfyUI-GGUF notes are kept."""
        kind, count = int(self._source.number("I")), self._source.count()
        if kind == _STRING:
            self._count_entries(count)
            self._source.skip_texts(count)
        elif kind == _ARRAY and depth < _NESTING_LIMIT:
            self._count_entries(count)
            for _ in range(count):
                self._array("", depth + 1)
        elif kind in _SCALARS:
            code = _SCALARS[kind]
            if name.startswith(_SHAPE_NOTE) and count <= RANK_LIMIT and code in _WHOLE:
                self._shapes[name[len(_SHAPE_NOTE) :]] = self._source.numbers(code, count)
            else:
                self._source.skip(code, count)
        else:
            raise _Malformed("model.gguf_note_malformed", name=shown(name))

    def _tensor(self) -> Tensor | None:
        name = self._source.text()
        rank = int(self._source.number("I"))
        if rank > RANK_LIMIT:
            raise _Malformed("model.gguf_tensor_malformed", name=shown(name))
        sizes = self._source.numbers("Q", rank)
        kind, begin = int(self._source.number("I")), self._source.count()
        tensor = self._described(name, sizes, kind)
        if isinstance(tensor, Tensor):
            self._places.append((begin, begin + tensor.size_bytes, name))
            return tensor
        self._faults.add(tensor, name)
        return None

    def _described(self, name: str, sizes: tuple[int, ...], kind: int) -> Tensor | str:
        """Return the tensor, or which fault it has."""
        if kind not in TYPES:
            return "dtype_unknown"
        dtype, block, block_bytes = TYPES[kind]
        elements = math.prod(sizes)
        if elements > DIMENSION_LIMIT:
            return "shape_malformed"
        if (sizes[0] if sizes else 1) % block:
            return "gguf_no_whole_blocks"
        shape = self._shapes.get(name, ())
        if math.prod(shape) != elements or not shape:
            shape = tuple(reversed(sizes))
        return Tensor(name, dtype, shape, elements // block * block_bytes)
