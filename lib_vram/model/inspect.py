"""What a model file holds: its family, and its weights by component and dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, get_args

from lib_vram.message import Message, render, say
from lib_vram.model.family import ComponentName, Part, Variant, recognise
from lib_vram.model.folder import Piece, gather
from lib_vram.model.gguf import TYPES
from lib_vram.model.header import Header, read_header, read_stream
from lib_vram.model.packing import Weight, weights_in
from lib_vram.physics.weights import loaded_bytes
from lib_vram.request import Family

_ORDER: tuple[ComponentName, ...] = get_args(ComponentName)
_GGUF_DTYPES = frozenset(name.lower() for name, block, _ in TYPES.values() if block > 1)
_NO_MATMUL = ("token_embedding", "embed_tokens", "token_embd", "shared.weight", "position_embedding", "pos_embed")
"""Tensors that are looked up rather than multiplied with."""


@dataclass(frozen=True)
class ComponentWeights:
    """One component. ``parameters`` counts its numbers, ``bytes`` all that the file holds of it.

    ``dtype`` is that of most of its bytes, ``dtypes`` has every one with its bytes, the largest first. ``kind`` is
    which text encoder (``t5_xxl``) or VAE (the family that it is profiled under) it is, ``""`` when that is not known.
    ``largest_layer`` is how many numbers the largest layer has that is multiplied with; ``loaded_bytes`` what Forge and
    Neo keep of the component on the device in the file's own types. ``numbers`` is how many each tensor has, in the
    file's order, below 0 for vectors.
    """

    name: ComponentName
    dtype: str
    parameters: int
    bytes: int
    kind: str = ""
    dtypes: tuple[tuple[str, int], ...] = ()
    largest_layer: int = 0
    loaded_bytes: int = 0
    numbers: tuple[int, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {"name": self.name, "dtype": self.dtype, "parameters": self.parameters, "bytes": self.bytes}


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds. ``family`` is ``None`` when it is not known or, as for a VAE alone, shared by several.

    ``readable`` is false when there is no file to read at the path; ``problems`` then says why. ``not_yet`` is the
    name of a model that is recognised but not computed.
    """

    family: Family | None
    components: tuple[ComponentWeights, ...]
    problems: tuple[Message, ...]
    variant: Variant = ""
    readable: bool = True
    not_yet: str = ""

    def bytes_of(self, component: ComponentName) -> int:
        """Return the bytes of ``component`` in the file, all dtypes together; 0 when it is not there."""
        return sum(item.bytes for item in self.components if item.name == component)

    def dtype_of(self, component: ComponentName) -> str | None:
        """Return the dtype that most bytes of ``component`` have; ``None`` when it is not there."""
        held = [item for item in self.components if item.name == component]
        return max(held, key=lambda item: item.bytes).dtype if held else None

    def text_encoder(self, kind: str) -> ComponentWeights | None:
        """Return the text encoder of this ``kind`` (``t5_xxl``, as in ``physics.families``), ``None`` without it."""
        found = (item for item in self.components if item.name.startswith("text_encoder") and item.kind == kind)
        return next(found, None)

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "family": self.family,
            "components": [item.to_dict() for item in self.components],
            "problems": [render(problem, language) for problem in self.problems],
        }


def inspect_file(path: str | Path) -> Checkpoint:
    """Return what the file or folder at ``path`` holds, from headers alone. Never raises: faults are in ``problems``.

    A file is read again only when its size or time of change differs. An index (``….safetensors.index.json``,
    ``model_index.json``) or a folder of diffusers stands for all its files, the first part of a split GGUF for all.
    """
    try:
        found = gather(Path(path))
    except (OSError, ValueError):
        return _from_header(read_header(path))
    if not found.pieces:
        answer = _from_header(read_header(path))
        return replace(answer, problems=found.problems, readable=True) if found.problems else answer
    answer = _inspect(found.pieces)
    if not found.problems:
        return answer
    known = (problem for problem in answer.problems if problem.key != "model.content_unknown")  # not of a part of it
    return replace(answer, problems=(*known, *found.problems))


def inspect_stream(file: BinaryIO) -> Checkpoint:
    """Return what ``file``, a pipe for instance, holds; it is read to its end, a little at a time."""
    return _from_header(read_stream(file))


@lru_cache(maxsize=64)
def _inspect(pieces: tuple[Piece, ...]) -> Checkpoint:
    headers = [(piece.prefix, read_header(piece.path)) for piece in pieces]
    if len(headers) == 1 and not headers[0][0]:
        return _from_header(headers[0][1])
    tensors = tuple(
        replace(tensor, name=prefix + tensor.name) for prefix, header in headers for tensor in header.tensors
    )
    problems = tuple(dict.fromkeys(problem for _, header in headers for problem in header.problems))
    return _from_header(Header(tensors, problems, readable=any(header.readable for _, header in headers)))


def _from_header(header: Header) -> Checkpoint:
    found = recognise(weights_in(header.tensors))
    components = tuple(sorted(map(_weigh, found.parts), key=lambda item: _ORDER.index(item.name)))
    problems = header.problems
    if found.not_yet:
        problems = (*problems, say("model.not_yet", name=found.not_yet))
    elif found.family is None and {item.name for item in components} & {"unet", "transformer", "controlnet"}:
        problems = (*problems, say("model.family_unknown"))
    elif components and all(item.name == "other" for item in components):
        problems = (*problems, say("model.content_unknown"))
    return Checkpoint(found.family, components, problems, found.variant, header.readable, found.not_yet)


def _weigh(part: Part) -> ComponentWeights:
    dtypes: dict[str, int] = {}
    for weight in part.weights:
        dtypes[weight.dtype] = dtypes.get(weight.dtype, 0) + weight.size_bytes
    ranked = tuple(sorted(dtypes.items(), key=lambda item: (-item[1], item[0])))
    counted = {weight.dtype for weight in part.weights if weight.parameters}
    dtype = next((dtype for dtype, _ in ranked if dtype in counted), ranked[0][0] if ranked else "")
    parameters = sum(weight.parameters for weight in part.weights)
    total_bytes = sum(weight.size_bytes for weight in part.weights)
    largest, loaded = _largest(part.weights), _loaded(part.weights, dtypes)
    numbers = tuple(
        -weight.parameters if len(weight.shape) == 1 else weight.parameters
        for weight in part.weights
        if weight.parameters
    )
    return ComponentWeights(part.name, dtype, parameters, total_bytes, part.kind, ranked, largest, loaded, numbers)


def _loaded(weights: Iterable[Weight], stored: Mapping[str, int]) -> int:
    """Return what a part takes once it is loaded: a quantised table that is looked up in is unpacked to 16 bits.

    Forge and Neo do that to a GGUF text encoder's tokens (``dequantize_as_pytorch_parameter`` in their loaders).
    """
    dtypes, tables = dict(stored), 0
    for weight in weights if _GGUF_DTYPES & set(stored) else ():
        if weight.dtype in _GGUF_DTYPES and any(mark in weight.name for mark in _NO_MATMUL):
            dtypes[weight.dtype] -= weight.size_bytes
            tables += 2 * weight.parameters
    return tables + sum(loaded_bytes(size_bytes, dtype) for dtype, size_bytes in dtypes.items())


def _largest(weights: Iterable[Weight]) -> int:
    """Return the parameters of the largest layer that is multiplied with; one-dimensional ones are no layers."""
    return max(
        (
            weight.parameters
            for weight in weights
            if len(weight.shape) != 1 and not any(mark in weight.name for mark in _NO_MATMUL)
        ),
        default=0,
    )
