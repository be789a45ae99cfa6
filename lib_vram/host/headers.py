"""Reading a model file's header, by a module that comes with the first file that is read: the start waits for none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lib_vram.model.inspect import Checkpoint


def inspect_file(path: str | Path) -> Checkpoint:
    """Return what :func:`lib_vram.model.inspect.inspect_file` says of ``path``."""
    from lib_vram.model import inspect

    return inspect.inspect_file(path)
