"""The ladder: what may be changed so that a generation fits, from harmless to harmful.

=======================  ========  =========================================================================
id                       costs     what it does
=======================  ========  =========================================================================
``free_idle_models``     nothing   models that this run does not use leave the card
``live_preview``         nothing   previews by approximation while it runs
``attention``            nothing   another way of computing attention; ``sub_quad`` costs time
``vae_sliced``           time      diffusers: a batch is decoded one picture after the other
``batch_to_count``       time      fewer pictures at once, more batches: the same pictures with the same seeds
``cond_uncond_apart``    time      the two halves of a step one after the other
``offload``              time      diffusers: one component on the card at a time
``vae_tiled``            time      the VAE decodes in overlapping tiles
``upscaler_tile``        time      the upscaler of the second pass works in smaller tiles
``controlnet_low_vram``  time      a ControlNet is on the card only for its own turn in each step
``offload_layers``       time      diffusers: one layer on the card at a time
``reserve``              time      more memory stays free for computing, so more weights are swapped
``fp8_storage``          detail    weights stored in 8 bits and computed from in 16
``hires_scale``          detail    a smaller second pass
``smaller_size``         picture   a smaller picture of the same shape; its composition changes
=======================  ========  =========================================================================

What cannot help is not on it: a second pass by an image upscaler needs a decode and an encode more than one by
the latent, and the hosts that decode several pictures at once already take only as many as half of what is free
is enough for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lib_vram.estimate.flags import host_tiles
from lib_vram.estimate.timeline import own_tile, size_multiple
from lib_vram.message import Message, say
from lib_vram.physics.attention import SELF_SLICING
from lib_vram.plan import host_rungs
from lib_vram.plan.levers import has_lever
from lib_vram.plan.preferences import ANYTHING, Preferences
from lib_vram.plan.rung import Adjustment, Candidate, always, named
from lib_vram.request import SIZE_LIMITS, Request

MULTIPLE = 8
"""Sizes stay on whole rows of the latent."""
TILE_CANDIDATES = tuple(range(1024, 255, -64))
"""Sides of a tile in pixels: our own slider's step; below 256 the overlap is most of the tile."""
TILED_TEXTS = {"forge": "plan.vae_tiled_forge", "classic": "plan.vae_tiled_forge"}
"""Where the host has a switch of its own for decoding in tiles, the text that names it."""
FORGE_TILED_FROM = 128
"""Forge's tiled decode fails for pictures with a side below this many pixels (its blending window is larger)."""
HARDLY_SMALLER = 64
"""Pixels of the longer side."""
HIRES_STEP = 0.05
"""The step of both hosts' "Upscale by" slider."""


def with_size(request: Request, size: tuple[int, int]) -> Request:
    """Return ``request`` at another width and height."""
    return request.replace(width=size[0], height=size[1])


def same_aspect(width: int, height: int, long_side: int) -> tuple[int, int]:
    """Return the size with ``long_side`` whose shape is that of ``width`` × ``height`` to within half a latent row."""
    short_side = round(long_side * min(width, height) / max(width, height) / MULTIPLE) * MULTIPLE
    return (long_side, short_side) if width >= height else (short_side, long_side)


def smaller_sizes(width: int, height: int, least: int = SIZE_LIMITS[0]) -> tuple[tuple[int, int], ...]:
    """Return all smaller sizes of the same shape on multiples of 8, largest first; both sides at least ``least``."""
    sizes = []
    for long_side in range(_below(max(width, height)), least - 1, -MULTIPLE):
        size = same_aspect(width, height, long_side)
        if min(size) >= least and size[0] <= width and size[1] <= height:
            sizes.append(size)
    return tuple(sizes)


def sizes_on_grid(width: int, height: int, step: int) -> tuple[tuple[int, int], ...]:
    """Return all smaller sizes on multiples of ``step`` whose shape is the same to within one latent row."""
    long_side, short_side = max(width, height), min(width, height)
    sizes = []
    for long in range((long_side - 1) // step * step, 0, -step):
        short = round(long * short_side / long_side / step) * step
        off = min(abs(short - long * short_side / long_side), abs(long - short * long_side / short_side))
        if SIZE_LIMITS[0] <= short <= short_side and off <= MULTIPLE:
            sizes.append((long, short) if width >= height else (short, long))
    return tuple(sizes)


def _smaller(request: Request) -> tuple[Candidate, ...]:
    if request.tiled_diffusion is not None and request.tiled_diffusion.sets_size:
        return ()
    return _sizes_for_host(request, request.width, request.height)


def _sizes_for_host(request: Request, width: int, height: int) -> tuple[tuple[int, int], ...]:
    """Return smaller sizes that the host does not round to others; all of them where it would round each."""
    step = size_multiple(request)
    on_grid = sizes_on_grid(width, height, step) if step > MULTIPLE else ()
    return on_grid or smaller_sizes(width, height)


def _below(pixels: int) -> int:
    return (pixels - 1) // MULTIPLE * MULTIPLE


def _batches(request: Request) -> tuple[int, ...]:
    images = request.images
    return tuple(size for size in range(request.batch_size - 1, 0, -1) if images % size == 0)


def _with_batch(request: Request, size: int) -> Request:
    return request.replace(batch_size=size, batch_count=request.images // size)


def _batch_text(before: Request, after: Request) -> Message:
    key = "plan.batch_to_count" if before.batch_count == 1 else "plan.batch_to_more_runs"
    return say(
        key, before=before.batch_size, after=after.batch_size,
        count_before=before.batch_count, count_after=after.batch_count,
    )  # fmt: skip


def _tiles(request: Request) -> tuple[Candidate, ...]:
    if host_tiles(request):
        too_small = min(request.width, request.height) < FORGE_TILED_FROM
        return () if too_small or request.forge.never_oom_vae or request.vae.tiled else (True,)
    if request.host == "diffusers":  # a tile that holds the whole picture does nothing there
        size = request.hires_size() or (request.width, request.height)
        now = min(max(size), _tile(request)) if request.vae.tiled else max(size)
        own = own_tile(request)
        return tuple(tile for tile in dict.fromkeys((own, *TILE_CANDIDATES)) if tile <= own and tile < now)
    now = _tile(request) if request.vae.tiled else TILE_CANDIDATES[0] + 1
    return tuple(tile for tile in TILE_CANDIDATES if tile < now)


def _with_tile(request: Request, tile: Candidate) -> Request:
    if host_tiles(request):
        return request.replace(forge=replace(request.forge, never_oom_vae=True))
    return request.replace(vae=replace(request.vae, tiled=True, tile_size=tile))


def _tile_field(request: Request) -> str:
    if host_tiles(request):
        return "forge.never_oom_vae"
    return "vae.tile_size" if request.vae.tiled else "vae.tiled"


def _tile_value(request: Request) -> bool | int:
    if host_tiles(request):
        return request.forge.never_oom_vae
    return _tile(request) if request.vae.tiled else False


def _tile(request: Request) -> int:
    return request.vae.tile_size or own_tile(request)


def _tile_text(before: Request, after: Request) -> Message:
    if host_tiles(after):
        return say(TILED_TEXTS.get(after.host, "plan.vae_tiled_by_host"))
    if after.host == "diffusers":
        key = "plan.vae_tiled_diffusers" if _tile(after) == own_tile(after) else "plan.vae_smaller_tiles_diffusers"
        return say(key, tile=_tile(after), latent=_tile(after) // MULTIPLE)
    if before.vae.tiled:
        return say("plan.vae_smaller_tiles", before=_tile(before), tile=_tile(after))
    return say("plan.vae_tiled", tile=_tile(after))


def _hires_targets(request: Request) -> tuple[Candidate, ...]:
    want = request.hires
    if want is None or request.mode != "txt2img":
        return ()
    if want.width == 0 and want.height == 0:
        steps = range(round(want.scale / HIRES_STEP) + 1, round(1 / HIRES_STEP), -1)
        scales = (round(step * HIRES_STEP, 2) for step in steps)
        return tuple(scale for scale in scales if 1 < scale < want.scale)
    if want.width and want.height:
        return tuple(size for size in _sizes_for_host(request, want.width, want.height) if _is_enlarged(request, size))
    side = want.width or want.height
    given = request.width if want.width else request.height
    return tuple(range(_below(side), given, -MULTIPLE))


def _is_enlarged(request: Request, size: tuple[int, int]) -> bool:
    return size[0] * size[1] > request.width * request.height


def _with_hires(request: Request, target: Candidate) -> Request:
    if request.hires is None:
        return request
    want = request.hires
    if want.width == 0 and want.height == 0:
        return request.replace(hires=replace(want, scale=target))
    if want.width and want.height:
        return request.replace(hires=replace(want, width=target[0], height=target[1]))
    side = "width" if want.width else "height"
    return request.replace(hires=replace(want, **{side: target}))


def _hires_field(request: Request) -> str:
    want = request.hires
    if want is None or (want.width and want.height):
        return "hires"
    if want.width == 0 and want.height == 0:
        return "hires.scale"
    return "hires.width" if want.width else "hires.height"


def _hires_value(request: Request) -> Any:
    want = request.hires
    values = {"hires.scale": "scale", "hires.width": "width", "hires.height": "height"}
    name = values.get(_hires_field(request))
    return getattr(want, name) if name else _hires_size(request)


def _hires_size(request: Request) -> str:
    width, height = request.hires_size() or (0, 0)
    return f"{width}×{height}"


def _hires_text(before: Request, after: Request) -> Message:
    if _hires_field(before) == "hires.scale":
        return say("plan.hires_scale", before=_hires_value(before), after=_hires_value(after))
    return say("plan.hires_size", before=_hires_size(before), after=_hires_size(after))


def _size_shown(request: Request) -> str:
    return f"{request.width}×{request.height}"


def _size_text(before: Request, after: Request) -> Message:
    key = "plan.size_snapped" if _is_off_the_cliff(before, after) else "plan.smaller_size"
    return say(key, before=_size_shown(before), after=_size_shown(after))


def _is_off_the_cliff(before: Request, after: Request) -> bool:
    """Return whether the size is hardly smaller, and attention that slices itself can cut it into more equal parts.

    It slices only where the tokens divide by the number of slices, a power of 2, and else takes them all at once.
    """
    near = max(before.width, before.height) - max(after.width, after.height) <= HARDLY_SMALLER
    tokens = [(item.width // MULTIPLE) * (item.height // MULTIPLE) for item in (before, after)]
    parts = [count & -count for count in tokens]
    return near and after.attention in SELF_SLICING and parts[1] > parts[0]


BATCH_TO_COUNT = Adjustment(
    id="batch_to_count",
    field=named("batch_size"),
    costs=always("time"),
    candidates=_batches,
    apply=_with_batch,
    value=lambda request: request.batch_size,
    text=_batch_text,
)
VAE_TILED = Adjustment(
    id="vae_tiled",
    field=_tile_field,
    costs=always("time"),
    candidates=_tiles,
    apply=_with_tile,
    value=_tile_value,
    text=_tile_text,
    by_need=True,
)
HIRES_SCALE = Adjustment(
    id="hires_scale",
    field=_hires_field,
    costs=always("detail"),
    candidates=_hires_targets,
    apply=_with_hires,
    value=_hires_value,
    text=_hires_text,
)
SMALLER_SIZE = Adjustment(
    id="smaller_size",
    field=named("size"),
    costs=always("picture"),
    candidates=_smaller,
    apply=with_size,
    value=_size_shown,
    text=_size_text,
)

LADDER: tuple[Adjustment, ...] = (
    host_rungs.FREE_IDLE_MODELS,
    host_rungs.LIVE_PREVIEW,
    host_rungs.ATTENTION,
    host_rungs.VAE_SLICED,
    BATCH_TO_COUNT,
    host_rungs.COND_UNCOND_APART,
    host_rungs.OFFLOAD,
    VAE_TILED,
    host_rungs.UPSCALER_TILE,
    host_rungs.CONTROLNET_LOW_VRAM,
    host_rungs.OFFLOAD_LAYERS,
    host_rungs.RESERVE,
    host_rungs.FP8_STORAGE,
    HIRES_SCALE,
    SMALLER_SIZE,
)


def offered(request: Request, preferences: Preferences = ANYTHING) -> tuple[Adjustment, ...]:
    """Return the rungs that the host of ``request`` can really take and a person does not rule out."""
    left_out = preferences.left_out
    return tuple(rung for rung in LADDER if rung.id not in left_out and has_lever(request.host, rung.id))
