"""What one run may ask of a host for less memory, beyond the fields of ``p``: from a request or the run's own argument.

Each of these is done in a file of its own, ``levers_*.py``, by the host's own means, for one run.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.host.asked import Asked
from lib_vram.request import Request

PREVIEWS = ("off", "approx", "taesd", "full")
"""Live previews by what they take, the least first."""


@dataclass(frozen=True)
class Levers:
    """``None`` and ``""`` leave a thing as the host's settings have it."""

    live_preview: str = ""
    attention: str = ""
    stores_fp8: bool = False
    upscaler_tile: int | None = None
    unload_idle: bool = False
    low_vram_units: tuple[int, ...] = ()
    """Places, among the enabled ControlNet units, of those that leave the card between their turns."""


def levers_of(request: Request | None, want: Asked) -> Levers:
    """Return what ``request`` asks for; without one, what the run's own argument (in ``want``) asks for."""
    own_tile = want.upscaler_tile or None
    if request is None:
        return Levers(want.live_preview, want.attention, want.fp8_weights, own_tile, want.unload_idle)
    return Levers(
        live_preview=request.live_preview,
        attention=request.attention,
        stores_fp8=request.model.storage_dtype == "fp8",
        upscaler_tile=own_tile if request.upscaler_tile is None else request.upscaler_tile,
        unload_idle=not request.idle_models,
        low_vram_units=tuple(place for place, unit in enumerate(request.controlnets) if unit.low_vram),
    )


def cheaper_preview(one: str, other: str) -> str:
    """Return the one of two live previews that takes less; ``""`` is no wish."""
    known = [preview for preview in (one, other) if preview in PREVIEWS]
    return min(known, key=PREVIEWS.index) if known else ""
