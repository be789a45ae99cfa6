"""Model files that are as large as real ones and take no room: a header, and a hole where the tensors would be."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Tensor name → dtype in the format's own name, shape."""
_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1}


def entries_of(shapes: Shapes) -> dict[str, Any]:
    """Return the header's entries for ``shapes``, one after the other."""
    entries, place = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = _BYTES[dtype]
        for side in shape:
            size *= side
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
        place += size
    return entries


def header_bytes(content: object) -> bytes:
    """Return the start of a safetensors file with this header."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def model_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model file with these tensors and returns its path."""

    def write(shapes: Shapes, *, metadata: object = None, missing_bytes: int = 0) -> Path:
        entries = entries_of(shapes)
        data_bytes = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        start = header_bytes({"__metadata__": metadata, **entries} if metadata is not None else entries)
        path = tmp_path / "model.safetensors"
        with path.open("wb") as file:
            file.write(start)
            file.truncate(len(start) + data_bytes - missing_bytes)
        return path

    return write


@pytest.fixture
def raw_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes these bytes to a file and returns its path."""

    def write(content: bytes, name: str = "model.safetensors") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write
