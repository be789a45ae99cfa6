"""The tiles in which an upscaling model works, for one run: the options that the upscalers read at every picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib_vram.host.webui import WebUI

TILE_OPTIONS = ("ESRGAN_tile", "DAT_tile", "SWIN_tile", "SCUNET_tile")
"""One for each family of upscalers; what has none of its own reads the first. 0 is the whole picture at once."""
WITHOUT_TILES = ("UpscalerNone", "UpscalerLanczos", "UpscalerNearest", "UpscalerLDSR")
"""Classes of the hosts' upscalers that compute in no tiles: the first three need no model, the last one diffuses."""
_BY_CLASS = {"UpscalerDAT": "DAT_tile", "UpscalerSwinIR": "SWIN_tile", "UpscalerScuNET": "SCUNET_tile"}


def tile_in_settings(host: WebUI, upscaler: str) -> int | None:
    """Return the tile in which the upscaler of that name works; ``None`` where it works in none, or is not known."""
    from modules import shared

    found = [item for item in getattr(shared, "sd_upscalers", ()) if item.name == upscaler]
    kinds = [kind.__name__ for kind in type(found[0].scaler).__mro__] if found else []
    if not kinds or any(kind in WITHOUT_TILES for kind in kinds):
        return None
    key = next((_BY_CLASS[kind] for kind in kinds if kind in _BY_CLASS), TILE_OPTIONS[0])
    size = host.option(key, host.option(TILE_OPTIONS[0], None))
    return None if size is None else int(size)


def tile_smaller(host: WebUI, p: Any, wanted: int | None) -> None:
    """Let upscalers work in tiles of at most ``wanted`` pixels in the run of ``p``."""
    if not wanted:
        return
    for key in TILE_OPTIONS:
        now = host.option(key, None)
        if now is not None and (now == 0 or now > wanted):
            host.override(p, key, wanted)
