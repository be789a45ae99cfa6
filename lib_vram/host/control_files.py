"""The files of control models: which kind of network a unit's model is, of which family, and how large.

A file's header says it. Names say it of files whose header cannot be read (``.pth``, ``.bin``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lib_vram.errors import VramGuardError
from lib_vram.host.headers import inspect_file
from lib_vram.request import ControlKind, Family

if TYPE_CHECKING:
    from lib_vram.model.inspect import Checkpoint

TABLES = (
    ("lib_controlnet.global_state", "controlnet_filename_dict"), ("scripts.global_state", "cn_models"),
)  # fmt: skip
"""Modules of Forge's line and of A1111's extension, and their tables from a unit's model to its file."""

PLAIN = ("fp32", "fp16", "bf16")
_BY_COMPONENT: Mapping[str, ControlKind] = {
    "controlnet": "controlnet", "ip_adapter": "ip_adapter", "t2i_adapter": "t2i_adapter",
}  # fmt: skip
_BY_KIND: Mapping[str, ControlKind] = {"controllllite": "controllllite", "control_lora": "control_lora"}
_BY_NAME: tuple[tuple[ControlKind, tuple[str, ...]], ...] = (
    ("ip_adapter", ("ip_adapter", "ipadapter")),
    ("t2i_adapter", ("t2i", "t2iadapter", "_adapter")),
    ("controllllite", ("lllite",)),
    ("control_lora", ("control_lora", "256lora", "128lora")),
)
"""Parts of the files' customary names."""


@dataclass(frozen=True)
class ControlFile:
    """What a unit's model is. ``family`` and ``bytes`` are ``None`` where nothing says them.

    ``parameters`` counts the weights of a file that is stored in a plain type, which the hosts turn into the type that
    they compute in.
    """

    kind: ControlKind
    family: Family | None = None
    bytes: int | None = None
    parameters: int | None = None

    def loaded_bytes(self, weights_dtype: str) -> int | None:
        """Return what the weights take once they are loaded, ``None`` where nothing says it."""
        if self.parameters is None:
            return self.bytes
        return self.parameters * (4 if weights_dtype == "fp32" else 2)


def control_file(name: str) -> ControlFile:
    """Return what the model called ``name`` in a unit is, from its file where the host knows one by that name."""
    path = file_of(name)
    if path is None:
        return ControlFile(kind_by_name(name))
    try:
        found = inspect_file(path)
        size = os.path.getsize(path)
    except (VramGuardError, OSError):
        return ControlFile(kind_by_name(name))
    return _of_header(found) or _of_name(name, size)


def _of_name(name: str, size: int) -> ControlFile:
    """Return what a file is whose header says nothing. A whole ControlNet's size is better counted: its type is not."""
    kind = kind_by_name(name)
    return ControlFile(kind, bytes=size if size and kind != "controlnet" else None)


def _of_header(found: Checkpoint) -> ControlFile | None:
    for part in found.components:
        kind = _BY_KIND.get(part.kind) or _BY_COMPONENT.get(part.name)
        if kind is not None:
            is_plain = part.dtype in PLAIN and part.parameters > 0
            return ControlFile(kind, found.family, part.bytes or None, part.parameters if is_plain else None)
    return None


def kind_by_name(name: str) -> ControlKind:
    """Return the kind of a control model from its file's customary name."""
    lower = name.lower().replace("-", "_")
    found = (kind for kind, parts in _BY_NAME if any(part in lower for part in parts))
    return next(found, "controlnet")


def file_of(name: str) -> str | None:
    """Return the file of the model called ``name``, with or without the hash that lists show behind it."""
    wanted = _bare(name)
    for table in _tables():
        path = table.get(name) or next((path for key, path in table.items() if path and _bare(key) == wanted), None)
        if path:
            return str(path)
    return None


def _tables() -> Iterator[Mapping[str, Any]]:
    for module, attribute in TABLES:
        table = getattr(sys.modules.get(module), attribute, None)
        if isinstance(table, Mapping):
            yield table


def _bare(name: str) -> str:
    return str(name).partition(" [")[0].lower()
