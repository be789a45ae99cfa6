"""The per-request argument: what the script's own controls, or an API call, say about one generation.

The page sends four values in the order of the script's controls (run, tiled, tile_size, apart). After a fix in
the page the first one is ``fixed: `` and what was changed, for the picture's infotext.
An API call may send the same, or one object as the first value::

    "alwayson_scripts": {"VRAM Guard": {"args": [{"mode": "refuse", "tiled": true, "tile_size": 768}]}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lib_vram.errors import BadInput

RunMode = Literal["", "off", "show", "ask", "fix", "refuse", "run"]
"""``""``: the settings decide. ``run``: the person has seen that it will not fit and runs it anyway."""

FIXED = "fixed: "
"""Before what the page has already changed, in the place of the mode."""
CHANGES_LIMIT = 200
"""Characters of that text that are kept: several times the longest line that a fix makes."""

TITLE = "VRAM Guard"
"""Title of the script, by which API calls and this package find its arguments."""

DEFAULT_TILE_SIZE = 768
TILE_SIZE_LIMITS = (256, 2048)
TILE_SIZE_STEP = 64

_NAMES = ("mode", "tiled", "tile_size", "apart")


@dataclass(frozen=True)
class RunArgument:
    """One generation's own choices. ``tile_size`` in pixels of the picture.

    ``changes`` is what a fix in the page has changed before, as it goes into the infotext; ``""`` for nothing.
    """

    mode: RunMode = ""
    tiled: bool = False
    tile_size: int = DEFAULT_TILE_SIZE
    apart: bool = False
    changes: str = ""

    @classmethod
    def of(cls, values: Sequence[Any]) -> RunArgument:
        """Return the argument that ``values``, the script's arguments as the host hands them over, describe.

        Raises:
            BadInput: a value cannot be used; the message names it.
        """
        named = (
            dict(values[0]) if values and isinstance(values[0], Mapping) else dict(zip(_NAMES, values, strict=False))
        )
        unknown = sorted(set(named) - set(_NAMES))
        if unknown:
            raise BadInput(
                f"{TITLE}.{unknown[0]}", got=named[unknown[0]], takes=f"no such name; known: {', '.join(_NAMES)}"
            )
        given = {name: value for name, value in named.items() if value is not None}
        mode, changes = _changes(given.get("mode", ""))
        return cls(
            mode=_mode(mode),
            tiled=_switch("tiled", given.get("tiled", False)),
            tile_size=_tile_size(given.get("tile_size", DEFAULT_TILE_SIZE)),
            apart=_switch("apart", given.get("apart", False)),
            changes=changes,
        )


def _changes(mode: Any) -> tuple[Any, str]:
    """Return the mode and what the page says that it has changed: one of the two is empty."""
    if isinstance(mode, str) and mode.startswith(FIXED):
        return "", mode[len(FIXED) :][:CHANGES_LIMIT]
    return mode, ""


def _mode(value: Any) -> RunMode:
    if not isinstance(value, str) or value not in get_args(RunMode):
        raise BadInput(
            f"{TITLE}.mode", got=value, takes="one of " + ", ".join(name for name in get_args(RunMode) if name)
        )
    return value  # type: ignore[return-value]  # checked above


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{TITLE}.{name}", got=value, takes="true or false")
    return value


def _tile_size(value: Any) -> int:
    low, high = TILE_SIZE_LIMITS
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadInput(f"{TITLE}.tile_size", got=value, takes=f"a number of pixels from {low} to {high}")
    return int(value)
