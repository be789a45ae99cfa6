"""The per-request argument: what the script's own controls, or an API call, say about one generation.

The page sends its values in the order of the script's controls, :data:`NAMES`. After a fix in the page the first
one is ``fixed: `` and what was changed, for the picture's infotext.
An API call may send the same, as many as it likes, or one object as the first value::

    "alwayson_scripts": {"VRAM Guard": {"args": [{"mode": "refuse", "tiled": true, "tile_size": 768}]}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
RESERVE_LIMITS_MB = (0, 131072)
"""0: what the host keeps by itself. The other end lies above any card."""
UPSCALER_TILE_LIMITS = (0, 512)
UPSCALER_TILE_STEP = 16
"""The hosts' own slider for it; 0 here: as in the settings."""

PreviewForRun = Literal["", "approx", "off"]
AttentionForRun = Literal["", "sdpa", "xformers", "split", "sub_quad"]
PREVIEWS: tuple[PreviewForRun, ...] = get_args(PreviewForRun)
ATTENTIONS: tuple[AttentionForRun, ...] = get_args(AttentionForRun)
"""Of both, ``""`` leaves it as in the settings."""

NAMES = (
    "mode", "tiled", "tile_size", "apart", "reserve_mb", "unload_idle", "live_preview", "attention", "fp8_weights",
    "upscaler_tile",
)  # fmt: skip


@dataclass(frozen=True)
class RunArgument:
    """One generation's own choices. ``tile_size`` in pixels of the picture, ``upscaler_tile`` of what is enlarged.

    ``reserve_mb`` is what the host is to keep free for computing, in MiB. 0 and ``""`` leave a thing as it is set.
    ``changes`` is what a fix in the page has changed before, as it goes into the infotext; ``""`` for nothing.
    """

    mode: RunMode = ""
    tiled: bool = False
    tile_size: int = DEFAULT_TILE_SIZE
    apart: bool = False
    reserve_mb: int = 0
    unload_idle: bool = False
    live_preview: PreviewForRun = ""
    attention: AttentionForRun = ""
    fp8_weights: bool = False
    upscaler_tile: int = 0
    changes: str = ""

    @classmethod
    def of(cls, values: Sequence[Any]) -> RunArgument:
        """Return the argument that ``values``, the script's arguments as the host hands them over, describe.

        Raises:
            BadInput: a value cannot be used; the message names it.
        """
        named = dict(values[0]) if values and isinstance(values[0], Mapping) else dict(zip(NAMES, values, strict=False))
        unknown = sorted(set(named) - set(NAMES))
        if unknown:
            raise BadInput(
                f"{TITLE}.{unknown[0]}", got=named[unknown[0]], takes=f"no such name; known: {', '.join(NAMES)}"
            )
        given = {name: value for name, value in named.items() if value is not None}
        mode, changes = _changes(given.pop("mode", ""))
        return cls(
            mode=_choice("mode", mode, get_args(RunMode)),
            changes=changes,
            **{name: _TAKES[name](name, value) for name, value in given.items()},
        )


def _changes(mode: Any) -> tuple[Any, str]:
    """Return the mode and what the page says that it has changed: one of the two is empty."""
    if isinstance(mode, str) and mode.startswith(FIXED):
        return "", mode[len(FIXED) :][:CHANGES_LIMIT]
    return mode, ""


def _choice(name: str, value: Any, choices: Sequence[str]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise BadInput(f"{TITLE}.{name}", got=value, takes="one of " + ", ".join(filter(None, choices)))
    return value


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{TITLE}.{name}", got=value, takes="true or false")
    return value


def _number(name: str, value: Any, low: int, high: int, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise BadInput(f"{TITLE}.{name}", got=value, takes=f"a number of {unit} from {low} to {high}")
    return int(value)


_TAKES: dict[str, Callable[[str, Any], Any]] = {
    "tiled": _switch,
    "tile_size": lambda name, value: _number(name, value, *TILE_SIZE_LIMITS, "pixels"),
    "apart": _switch,
    "reserve_mb": lambda name, value: _number(name, value, *RESERVE_LIMITS_MB, "MiB"),
    "unload_idle": _switch,
    "live_preview": lambda name, value: _choice(name, value, PREVIEWS),
    "attention": lambda name, value: _choice(name, value, ATTENTIONS),
    "fp8_weights": _switch,
    "upscaler_tile": lambda name, value: _number(name, value, *UPSCALER_TILE_LIMITS, "pixels"),
}
