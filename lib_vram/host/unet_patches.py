"""Scripts that change the UNet's work, from their arguments in a run: diffusion in tiles, guidance, Kohya's HR fix.

Forge, reForge and Neo bring them as *… Integrated*; A1111 has Tiled Diffusion from the multidiffusion extension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lib_vram.request import BATCH_LIMITS, SIZE_LIMITS, Guidance, HrFix, TiledDiffusion

TILES, TILES_OF_A1111 = "multidiffusion integrated", "tiled diffusion"
KOHYA = "kohya hrfix integrated"
GUIDANCE: tuple[tuple[str, Guidance], ...] = (
    ("selfattentionguidance integrated", "sag"), ("perturbedattentionguidance integrated", "pag"),
    ("freeu integrated", "freeu"),
)  # fmt: skip
"""How the scripts' titles begin, in lower case: behind it some name the models that they are for."""
CELL = 8
"""Pixels of a cell of the latent, in which A1111's script has its sizes."""


@dataclass(frozen=True)
class UnetPatches:
    """What the scripts of a run do. ``size`` is the picture's, where A1111's Tiled Diffusion sets another one."""

    tiles: TiledDiffusion | None = None
    hr_fix: HrFix | None = None
    guidance: tuple[Guidance, ...] = ()
    size: tuple[int, int] | None = None


def patches_of(p: Any) -> UnetPatches:
    """Return what the scripts in ``p`` will do; what cannot be understood counts as off."""
    own, other = _arguments(p, TILES), _arguments(p, TILES_OF_A1111)
    size = _size(p, other)
    return UnetPatches(
        tiles=_tiles(own[2:6]) if own and own[0] else _tiles_of_a1111(other, sets_size=size is not None),
        hr_fix=_hr_fix(_arguments(p, KOHYA)),
        guidance=tuple(name for title, name in GUIDANCE if next(iter(_arguments(p, title)), False)),
        size=size,
    )


def patches_on_page(form: Mapping[str, Any]) -> UnetPatches:
    """Return what the scripts on the page will do: numbers of those that are on, and names of guidance."""
    tiles, cells, hr_fix, guidance = (
        form.get(name) for name in ("unet_tiles", "unet_tile_cells", "hr_fix", "guidance")
    )  # fmt: skip
    names = guidance if isinstance(guidance, list) else ()
    whole = _tiles(tuple(tiles)) if isinstance(tiles, list) else None
    sets_size = form.get("unet_sets_size") is True
    in_cells = _in_cells(tuple(cells), sets_size=sets_size) if isinstance(cells, list) else None
    return UnetPatches(
        tiles=whole or in_cells,
        hr_fix=_hr_fix((True, *hr_fix)) if isinstance(hr_fix, list) else None,
        guidance=tuple(name for _, name in GUIDANCE if name in names),
    )


def _arguments(p: Any, title: str) -> tuple[Any, ...]:
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", None) or []
    found = (item for item in scripts if item.title().lower().startswith(title))
    script = next(found, None)
    if script is None or script.args_from is None or not p.script_args:
        return ()
    return tuple(p.script_args[script.args_from : script.args_to])


def _numbers(values: tuple[Any, ...], count: int) -> tuple[float, ...] | None:
    usable = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return tuple(usable) if len(usable) == len(values) == count and all(map(math.isfinite, usable)) else None


def _tiles(values: tuple[Any, ...], *, cell: int = 1, first_pass_only: bool = False) -> TiledDiffusion | None:
    """Return the tiles of width, height, overlap and number at a time; sizes come in ``cell`` pixels."""
    numbers = _numbers(values, 4)
    if numbers is None:
        return None
    width, height, overlap, batch = (int(number) for number in numbers)
    return TiledDiffusion(
        _within(width * cell, SIZE_LIMITS), _within(height * cell, SIZE_LIMITS),
        _within(overlap * cell, (0, SIZE_LIMITS[1])), _within(batch, BATCH_LIMITS), first_pass_only,
    )  # fmt: skip


def _tiles_of_a1111(arguments: tuple[Any, ...], *, sets_size: bool) -> TiledDiffusion | None:
    return _in_cells(arguments[6:10], sets_size=sets_size) if arguments and arguments[0] else None


def _in_cells(values: tuple[Any, ...], *, sets_size: bool) -> TiledDiffusion | None:
    """Return the tiles of A1111's script, which leaves the second pass alone (``sample_one_step``)."""
    tiles = _tiles(values, cell=CELL, first_pass_only=True)
    return replace(tiles, sets_size=sets_size) if tiles else None


def _size(p: Any, arguments: tuple[Any, ...]) -> tuple[int, int] | None:
    """Return the size to which A1111's script sets a run in its ``process``: its own, or of an upscaled picture."""
    if not arguments[11:] or not arguments[0]:
        return None
    overwrites, keeps, *sizes = arguments[2:6]
    numbers, factor = _numbers(tuple(sizes), 2), _numbers(arguments[11:12], 1)
    images = getattr(p, "init_images", None) or []
    if not images:
        return (int(numbers[0]), int(numbers[1])) if overwrites and numbers and not hasattr(p, "init_images") else None
    enlarges = str(arguments[10]) != "None"
    scale = factor[0] if enlarges and factor else 1
    start = getattr(images[0], "size", None) if keeps else (p.width, p.height)
    return (int(start[0] * scale), int(start[1] * scale)) if start and (keeps or enlarges) else None


def _hr_fix(arguments: tuple[Any, ...]) -> HrFix | None:
    numbers = _numbers(arguments[1:5], 4)
    if numbers is None or not arguments[0]:
        return None
    block, factor, start, end = numbers
    return HrFix(int(block), min(9.0, max(0.1, float(factor))), min(1.0, start), min(1.0, end))


def _within(value: int, limits: tuple[int, int]) -> int:
    return max(limits[0], min(value, limits[1]))


NONE = UnetPatches()
"""No script changes anything."""
