"""The large picture all the same: native size first, enlarged afterwards, refined in tiles.

It is several runs and not a change of one, so it is offered in words beside a plan that costs detail or the picture,
or where there is none. Both runs are computed: the first, and one tile of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lib_vram.message import Message, say
from lib_vram.physics.families import SHAPES
from lib_vram.plan.adjustments import smaller_sizes, with_size
from lib_vram.plan.table import NATIVE_SIZES
from lib_vram.request import Family, Request

MEGAPIXEL_SIDE = 1024
"""The side of a native square picture of the families that are not listed with another."""
ROOM = 1.05
"""Over the native area: sizes on multiples of 8 do not hit it exactly."""
WORTH_IT = 1.3
"""Over the native area: below that there is nothing to enlarge."""

Fits = Callable[[Request], bool]


def recipe(request: Request, can_fit: Fits) -> Message | None:
    """Return how to come by the size of ``request`` in two runs that ``can_fit``, ``None`` where that is no way.

    ``can_fit`` is whether a request fits, with changes that cost time at the most.
    """
    family = request.model.family
    target = request.hires_size() or (request.width, request.height)
    if request.mode != "txt2img" or SHAPES[family].frames_per_latent > 1:
        return None
    if target[0] * target[1] < WORTH_IT * native_area(family):
        return None
    first = _first_size(request)
    if first is None:
        return None
    tile = native_side(family)
    alone = with_size(request, first).replace(hires=None)
    refined = with_size(alone, (tile, tile)).replace(
        mode="img2img", batch_size=1, batch_count=alone.images, controlnets=(), detailer=None,
        vae=replace(alone.vae, tiled=False, tile_size=None),
    )  # fmt: skip
    if not can_fit(alone) or not can_fit(refined):
        return None
    return say(
        "plan.recipe", width=target[0], height=target[1], first_width=first[0], first_height=first[1],
        scale=f"{max(target) / max(first):.2g}", tile=tile,
    )  # fmt: skip


def native_side(family: Family) -> int:
    """Return the side of the square picture that ``family`` was trained at, in pixels."""
    return min(NATIVE_SIZES.get(family, ((MEGAPIXEL_SIDE, MEGAPIXEL_SIDE),))[0])


def native_area(family: Family) -> int:
    """Return the largest area at which ``family`` is at home, in pixels."""
    return max(width * height for width, height in NATIVE_SIZES.get(family, ((MEGAPIXEL_SIDE, MEGAPIXEL_SIDE),)))


def _first_size(request: Request) -> tuple[int, int] | None:
    """Return the size of the first run: as asked for where that is native already, else the largest that is."""
    most = ROOM * native_area(request.model.family)
    sizes = ((request.width, request.height), *smaller_sizes(request.width, request.height))
    return next((size for size in sizes if size[0] * size[1] <= most), None)
