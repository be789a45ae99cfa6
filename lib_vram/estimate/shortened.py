"""Token merging and HyperTile: what makes self-attention look at fewer tokens, in the hosts that have it."""

from __future__ import annotations

import math

from lib_vram.physics.attention import SCORED
from lib_vram.physics.component import Component
from lib_vram.physics.families import SHAPES
from lib_vram.physics.kernels import Shortened
from lib_vram.request import HostName, HyperTile, Request

HAVE_HYPERTILE: frozenset[HostName] = frozenset(("a1111", "reforge"))
HAVE_HYPERTILE_VAE: frozenset[HostName] = frozenset(("a1111",))
"""extensions-builtin/hypertile of A1111; reForge's ``sd_forge_hypertile`` is for the UNet alone.
Of the VAE it knows the decoder."""
FIRST_LEVELS = {"sdxl": 1, "sdxl_refiner": 1}


def shortened_attention(request: Request, component: Component) -> Shortened | None:
    """Return what makes ``component``'s self-attention look at fewer tokens, ``None`` where nothing does.

    Merged tokens are counted where a score matrix is kept; else they take about as much elsewhere as they save.
    """
    tiles = request.hypertile if request.host in HAVE_HYPERTILE else None
    if component.part == "vae_decode":
        use = tiles is not None and tiles.vae and request.host in HAVE_HYPERTILE_VAE
        return _tiled(tiles, tiles.vae_tile_size, component) if use and tiles else None
    if component.part != "denoise" or SHAPES[component.family].transformer:
        return None
    if tiles is not None and tiles.unet:
        return _tiled(tiles, tiles.unet_tile_size, component)
    ratio = request.token_merging_ratio
    return Shortened(merge_ratio=ratio) if ratio and component.attention in SCORED else None


def _tiled(tiles: HyperTile, most: int, component: Component) -> Shortened:
    """Its tiles are no larger than the largest power of two that divides both sides."""
    common = math.gcd(component.width, component.height)
    size = max(1, min(common & -common, most))
    return Shortened(
        tile_size=size, choices=max(1, tiles.swap_size), depth=tiles.depth,
        first_level=FIRST_LEVELS.get(component.family, 0) if component.part == "denoise" else 0,
    )  # fmt: skip
