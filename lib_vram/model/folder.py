"""Models of several files: diffusers' folders, sharded safetensors with their index, split GGUF.

Nothing but names beside the given file is ever followed: an index that points elsewhere is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from lib_vram.message import Message, say
from lib_vram.model.tensor import shown

INDEX_LIMIT_BYTES = 16 * 1024**2
SHARD_LIMIT = 1000
_INDEX_ENDING = ".safetensors.index.json"
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf|\.safetensors)")
_PREFIXES = {
    "unet": "model.diffusion_model.", "transformer": "model.diffusion_model.", "prior": "model.diffusion_model.",
    "transformer_2": "model.diffusion_model_2.", "vae": "first_stage_model.",
    "text_encoder": "text_encoders.1.", "text_encoder_2": "text_encoders.2.", "text_encoder_3": "text_encoders.3.",
    "controlnet": "control_model.", "image_encoder": "clip_vision.",
}  # fmt: skip
"""The folders of a diffusers model, and the prefix that a checkpoint of one file has for the same part."""


@dataclass(frozen=True)
class Piece:
    """One file of a model: what its names begin with, and what tells whether it has changed."""

    path: str
    prefix: str
    changed_ns: int
    file_bytes: int


@dataclass(frozen=True)
class Pieces:
    """The files of one model, and what is wrong with them. Without pieces there is no model to read."""

    pieces: tuple[Piece, ...] = ()
    problems: tuple[Message, ...] = ()


def gather(path: Path) -> Pieces:
    """Return the files that make the model at ``path``: itself, its shards, or what lies in its folder.

    Raises:
        OSError: there is nothing at ``path``.
    """
    if path.is_dir():
        return _folder(path)
    if path.name == "model_index.json":
        return _folder(path.parent)
    if path.name.endswith(_INDEX_ENDING):
        return _index(path, "")
    return _file(path)


def _piece(path: Path, prefix: str = "") -> Piece:
    status = path.stat()
    return Piece(str(path), prefix, status.st_mtime_ns, status.st_size)


def _file(path: Path) -> Pieces:
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return Pieces((_piece(path),))
    start, _, count, ending = match.groups()
    if ending == ".safetensors":
        return Pieces((_piece(path),), (say("model.shard", count=int(count)),))
    if int(count) > SHARD_LIMIT:
        return Pieces((_piece(path),), (say("model.shard_missing", count=int(count), name=shown(path.name)),))
    names = [f"{start}-{number:05}-of-{count}{ending}" for number in range(1, int(count) + 1)]
    return _together(path.parent, names, "")


def _together(folder: Path, names: list[str], prefix: str) -> Pieces:
    missing = [name for name in names if not (folder / name).is_file()]
    pieces = tuple(_piece(folder / name, prefix) for name in names if name not in set(missing))
    if not missing:
        return Pieces(pieces)
    return Pieces(pieces, (say("model.shard_missing", count=len(missing), name=shown(missing[0])),))


def _index(path: Path, prefix: str) -> Pieces:
    """Return the shards that a safetensors index names."""
    names = _names_in_index(path)
    if names is None:
        return Pieces((), (say("model.index_malformed", name=shown(path.name)),))
    return _together(path.parent, names, prefix)


def _names_in_index(path: Path) -> list[str] | None:
    if path.stat().st_size > INDEX_LIMIT_BYTES:
        return None
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        return None
    names = sorted(set(places.values()))
    plain = all(name and not set(name) & set("/\\:\0") and name not in (".", "..") for name in names)
    return names if names and plain and len(names) <= SHARD_LIMIT else None


def _folder(path: Path) -> Pieces:
    """Return the files of a diffusers folder: of every part, or of the one part that lies there itself."""
    if not (path / "model_index.json").is_file():
        return _part(path, "")
    found = [_part(part, _PREFIXES.get(part.name, "other.")) for part in sorted(path.iterdir()) if part.is_dir()]
    pieces = tuple(piece for part in found for piece in part.pieces)
    return Pieces(pieces, tuple(problem for part in found for problem in part.problems))


def _part(path: Path, prefix: str) -> Pieces:
    """Return the files of one part: those of its index, else the one of the plainest name (no ``.fp16`` in it)."""
    indexes = sorted(path.glob(f"*{_INDEX_ENDING}"), key=lambda file: (len(file.name), file.name))
    if indexes:
        return _index(indexes[0], prefix)
    files = sorted(path.glob("*.safetensors"), key=lambda file: (len(file.name), file.name))
    is_part = (path / "config.json").is_file() or prefix
    return Pieces((_piece(files[0], prefix),)) if files and is_part else Pieces()
