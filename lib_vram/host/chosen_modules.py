"""The files that Forge and Neo take instead of a checkpoint's own parts: *VAE / Text Encoder* above the tabs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from lib_vram.errors import VramGuardError
from lib_vram.host.headers import inspect_file
from lib_vram.request import EncoderName

OPTION = "forge_additional_modules"
_NAMES = frozenset(get_args(EncoderName))


@dataclass(frozen=True)
class Chosen:
    """Which of the chosen files is which part of the model."""

    text_encoders: tuple[dict[str, Any], ...] = ()
    vae_checkpoint: str | None = None


def chosen_modules(paths: Any) -> Chosen:
    """Return what the files at ``paths``, as the host's option holds them, are by their headers.

    What cannot be read or is not known is left to the host, which says so by itself.
    """
    encoders: dict[str, str] = {}
    vae = None
    for path, kind, name in _parts(paths if isinstance(paths, (list, tuple)) else ()):
        if name == "vae":
            vae = path
        elif name.startswith("text_encoder") and kind in _NAMES:
            encoders[kind] = path
    return Chosen(tuple({"name": kind, "checkpoint": path} for kind, path in encoders.items()), vae)


def paths_of(names: tuple[str, ...] | None, paths: Any) -> Any:
    """Return the files of ``names``, as the page shows them; ``paths``, the host's option, where it shows none.

    The option follows the page a moment later, and until it does the page is right.
    """
    known: Any = getattr(sys.modules.get("modules_forge.main_entry"), "module_list", None)
    if names is None or not isinstance(known, Mapping):
        return paths
    return [known[name] for name in names if name in known]


def _parts(paths: Iterable[Any]) -> Iterable[tuple[str, str, str]]:
    for path in paths:
        try:
            found = inspect_file(str(path)).components
        except (VramGuardError, OSError, ValueError):
            continue
        for part in found:
            yield str(path), part.kind, part.name
