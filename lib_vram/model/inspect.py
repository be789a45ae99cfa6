"""What a model file holds: its family, and its weights by component and dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from lib_vram.message import Message, render, say
from lib_vram.model.family import (
    TRANSFORMER_FAMILIES,
    ComponentName,
    Variant,
    component_of,
    family_of,
    what_alone,
)
from lib_vram.model.header import Header, Tensor, read_header, read_stream
from lib_vram.request import Family

_ORDER: tuple[ComponentName, ...] = (
    "unet", "transformer", "text_encoder", "text_encoder_2", "vae", "controlnet", "lora", "other",
)  # fmt: skip
_DTYPES = {
    "F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F8_E8M0": "fp8",
    "F6_E2M3": "fp6", "F6_E3M2": "fp6", "F4": "fp4", "I8": "int8", "U8": "uint8", "BOOL": "bool", "I16": "int16",
    "U16": "uint16", "I32": "int32", "U32": "uint32", "I64": "int64", "U64": "uint64", "C64": "complex64",
}  # fmt: skip


@dataclass(frozen=True)
class ComponentWeights:
    """The tensors of one dtype in one component. ``parameters`` counts numbers, ``bytes`` their size in the file."""

    name: ComponentName
    dtype: str
    parameters: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {"name": self.name, "dtype": self.dtype, "parameters": self.parameters, "bytes": self.bytes}


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. ``family`` is ``None`` when it is not known or, as for a VAE alone, shared by several.

    ``readable`` is false when there is no file to read at the path; ``problems`` then says why.
    """

    family: Family | None
    components: tuple[ComponentWeights, ...]
    problems: tuple[Message, ...]
    variant: Variant = ""
    readable: bool = True

    def bytes_of(self, component: ComponentName) -> int:
        """Return the bytes of ``component`` in the file, all dtypes together; 0 when it is not there."""
        return sum(item.bytes for item in self.components if item.name == component)

    def dtype_of(self, component: ComponentName) -> str | None:
        """Return the dtype that most bytes of ``component`` have; ``None`` when it is not there."""
        held = [item for item in self.components if item.name == component]
        return max(held, key=lambda item: item.bytes).dtype if held else None

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "family": self.family,
            "components": [item.to_dict() for item in self.components],
            "problems": [render(problem, language) for problem in self.problems],
        }


def inspect_file(path: str | Path) -> Checkpoint:
    """Return what the file at ``path`` holds, from its header alone. Never raises: faults are in ``problems``.

    A file is read again only when its size or time of change differs.
    """
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return _from_header(read_header(path))
    return _inspect(str(path), status.st_mtime_ns, status.st_size)


def inspect_stream(file: BinaryIO) -> Checkpoint:
    """Return what ``file``, a pipe for instance, holds; it is read to its end, a little at a time."""
    return _from_header(read_stream(file))


@lru_cache(maxsize=64)
def _inspect(path: str, changed_ns: int, file_bytes: int) -> Checkpoint:
    return _from_header(read_header(path))


def _from_header(header: Header) -> Checkpoint:
    family, variant = family_of(header.tensors)
    problems = header.problems
    components = _weigh(header.tensors, family)
    if family is None and {item.name for item in components} & {"unet", "transformer", "controlnet"}:
        problems = (*problems, say("model.family_unknown"))
    return Checkpoint(family, components, problems, variant, header.readable)


def _weigh(tensors: Iterable[Tensor], family: Family | None) -> tuple[ComponentWeights, ...]:
    held = tuple(tensors)
    alone = what_alone(tensor.name for tensor in held if component_of(tensor.name, "other") == "other")
    sums: dict[tuple[ComponentName, str], tuple[int, int]] = {}
    for tensor in held:
        component = component_of(tensor.name, alone)
        if component == "unet" and family in TRANSFORMER_FAMILIES:
            component = "transformer"
        key = (component, _DTYPES[tensor.dtype])
        parameters, size_bytes = sums.get(key, (0, 0))
        sums[key] = parameters + tensor.elements, size_bytes + tensor.size_bytes
    weights = (ComponentWeights(name, dtype, *sums[name, dtype]) for name, dtype in sums)
    return tuple(sorted(weights, key=lambda item: (_ORDER.index(item.name), -item.bytes, item.dtype)))
