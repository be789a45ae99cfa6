"""What changes the UNet's work in Forge's line and by A1111's Tiled Diffusion: tiles, guidance, Kohya's HR fix.

MultiDiffusion runs the UNet on several tiles at a time and never on the whole picture; the host goes on deciding by the
whole picture's size. Self-Attention Guidance keeps a score matrix of the middle block from one step to the next, FreeU
transforms what the UNet's levels hand on. Perturbed-Attention Guidance runs the prompt's half once more by itself,
after the step, when everything of the step is free: it needs no more.

Kohya's HR fix shrinks the levels below a block. Where it is on in some of the steps, the others run whole; where it is
on in all of them the peak is what :data:`KOHYA_SHARES` leaves of it, that of a smaller picture. A factor below 1
enlarges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from lib_vram.physics.component import Component
from lib_vram.physics.families import SHAPES
from lib_vram.physics.memory import FUSED
from lib_vram.request import Family, Request, TiledDiffusion

CELL = 8
"""Pixels of a row or column of the latent, by which all these scripts divide their sizes."""
LEAST_STEP = 4
"""Cells by which the next tile is further at the least (``init_grid_bbox``)."""
WORKS_IN_TILES = ("denoise", "controlnet")

MIDDLE: Mapping[Family, tuple[int, int]] = {"sd15": (8, 8), "sd21": (20, 8), "sdxl": (20, 4)}
"""Heads of the middle block, and how coarse it is."""
PLAIN_BYTES, MIDDLE_BYTES = 153.0, 69.0
"""What SDXL's UNet takes at its peak, and around its middle block, for each pixel of each row in half precision.

Traced from Forge's own UNet of June 2025 with torch 2.13 and the scripts' own patches at 1024² and 2048², two rows:
305.9 and 1221.6 MiB without a patch, 385.9 and 4391.6 MiB with guidance. SD 1.5: 500.5 and 502.5 MiB at 1024².
"""
FREEU_BYTES: Mapping[Family, float] = {"sdxl": 7.6}
"""What FreeU adds to the peak for each pixel of each row: 320.9 MiB of SDXL at 1024² and 1281.9 MiB at 2048², traced as
above; SD 1.5's peak does not move. A GPU's own scratch for the transform is not in it."""
KOHYA_SHARES: Mapping[Family, tuple[float, ...]] = {"sd15": (0.93, 1.0, 1.0), "sdxl": (0.61, 0.88, 0.91)}
"""What is left at the most of the UNet's peak, by the block from which it is shrunk to half or less in every step; from
there on the last figure. Traced as above at 512², 1024² and 2048² with bicubic resizing."""
HALVED = 2.0


def in_tiles(request: Request, component: Component) -> Component:
    """Return ``component`` as it runs: as many tiles at once as the script puts together, where there is more than one.

    A1111's script leaves the second pass whole.
    """
    tiles = request.tiled_diffusion
    if tiles is None or component.part not in WORKS_IN_TILES or component.frames > 1:
        return component
    if tiles.first_pass_only and (component.width, component.height) != _first_size(request):
        return component
    width, height = _tile_cells(tiles, component)
    at_once = _tiles_at_once(tiles, component, width, height)
    if at_once is None:
        return component
    return replace(component, width=width * CELL, height=height * CELL, batch=component.batch * at_once)


def with_fewest_tiles(request: Request) -> Request:
    """Return ``request`` with one tile at a time: how many are put together does not grow steadily with the size."""
    tiles = request.tiled_diffusion
    return request if tiles is None else request.replace(tiled_diffusion=replace(tiles, batch=1))


def _first_size(request: Request) -> tuple[int, int]:
    return request.width // CELL * CELL, request.height // CELL * CELL


def _tile_cells(tiles: TiledDiffusion, component: Component) -> tuple[int, int]:
    width, height = tiles.tile_width // CELL, tiles.tile_height // CELL
    return min(width, component.width // CELL), min(height, component.height // CELL)


def _tiles_at_once(tiles: TiledDiffusion, component: Component, width: int, height: int) -> int | None:
    """Return how many tiles go through the UNet together, ``None`` when the picture is one tile."""
    most = min(tiles.tile_width, tiles.tile_height) // CELL - LEAST_STEP
    overlap = max(0, min(tiles.overlap // CELL, most))
    count = _along(component.width // CELL, width, overlap) * _along(component.height // CELL, height, overlap)
    if count == 1:
        return None
    return -(-count // -(-count // tiles.batch))


def _along(side: int, tile: int, overlap: int) -> int:
    """Return how many tiles lie along a side, both in cells."""
    if tile >= side:
        return 1
    return -(-(side - overlap) // max(1, tile - overlap))


def hr_fix_share(request: Request) -> float:
    """Return what Kohya's fix leaves of the UNet's peak, 1 where it lowers nothing.

    Only with fused attention, whose peak grows with the area; with a factor below 1 it is more than 1.
    """
    fix, family = request.hr_fix, request.model.family
    if fix is None or SHAPES[family].transformer:
        return 1.0
    if fix.factor < 1:
        return 1 / fix.factor**2
    everywhere = fix.start <= 0 and fix.end >= 1 and fix.factor >= HALVED
    shares = KOHYA_SHARES.get(family, ()) if everywhere and request.attention in FUSED else ()
    return shares[min(fix.block, len(shares)) - 1] if shares else 1.0


def resized(request: Request, component: Component) -> Component:
    """Return the UNet at the size whose peak it has under Kohya's fix.

    With a factor below 1 that is the size to which all but its first blocks are enlarged: the most that it can need.
    """
    share = hr_fix_share(request)
    if share == 1 or component.part != "denoise" or component.family != request.model.family:
        return component
    sides = (math.ceil(side * math.sqrt(share) / CELL) * CELL for side in (component.width, component.height))
    width, height = sides
    return replace(component, width=width, height=height)


def guidance_bytes(request: Request, component: Component) -> int:
    """Return what guidance and FreeU add to the peak of the UNet that works as ``component``."""
    if component.part != "denoise":
        return 0
    component = in_tiles(request, component)
    rows = component.batch * (2 if component.cfg else 1)
    pixels = rows * component.width * component.height
    size = 4 if component.dtype == "fp32" else 2
    total = _scores_bytes(component, rows, pixels, size) if "sag" in request.guidance and request.uses_cfg else 0
    if "freeu" in request.guidance:
        total += int(FREEU_BYTES.get(component.family, 0) * pixels)
    return total


def _scores_bytes(component: Component, rows: int, pixels: int, size: int) -> int:
    """Return what the kept scores take, and where three times as many exceed the usual peak, what they add to it."""
    if component.family not in MIDDLE:
        return 0
    heads, coarse = MIDDLE[component.family]
    tokens = -(-component.width // (CELL * coarse)) * -(-component.height // (CELL * coarse))
    scores = rows * heads * tokens**2 * size
    if component.family != "sdxl":
        return scores
    below_bytes = int((PLAIN_BYTES - MIDDLE_BYTES) * pixels * size / 2)
    return scores + max(0, 2 * scores - below_bytes)
