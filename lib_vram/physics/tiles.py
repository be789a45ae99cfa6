"""Tiles of a VAE in diffusers' code: what the tiles before the last one leave on the device.

``tiled_decode`` keeps every tile's picture until all are there and are blended; ``tiled_encode`` looks at tiles of
a picture that is there as a whole. Tiles overlap by a quarter (``tile_overlap_factor``, or strides of 192 for tiles of
256). The hosts of the ``ldm`` line put their tiles together in the system's memory, and keep nothing.
"""

from __future__ import annotations

from lib_vram.physics.allocator import rounded
from lib_vram.physics.component import Component
from lib_vram.physics.program import GIVE_BACK, EventTrace, Layout

CHANNELS = 3
ITEM_BYTES = {"fp32": 4}
HALF_BYTES = 2


def is_tiled(component: Component) -> bool:
    """Return whether ``component`` is a VAE at work in more than one tile."""
    tile = component.tile
    return component.part.startswith("vae") and tile is not None and max(component.width, component.height) > tile


def kept_bytes(component: Component) -> tuple[int, ...]:
    """Return the blocks, in bytes, that lie beside the last whole tile while it is worked on."""
    if not is_tiled(component) or component.code != "diffusers" or component.tile is None:
        return ()
    item = ITEM_BYTES.get(component.dtype, HALF_BYTES) * CHANNELS * component.batch * component.frames
    tile, width, height = component.tile, component.width, component.height
    if component.part == "vae_encode":
        return (rounded(item * (width * height - min(tile, width) * min(tile, height))),)
    rows, columns = _sides(height, tile), _sides(width, tile)
    before = [(row, column) for row in rows for column in columns]
    last = _last_whole(rows) * len(columns) + _last_whole(columns)
    return tuple(rounded(item * row * column) for row, column in before[:last])


def _sides(length: int, tile: int) -> list[int]:
    """Return the sides of the tiles along ``length``."""
    return [min(tile, length - start) for start in range(0, length, max(1, tile * 3 // 4))]


def _last_whole(sides: list[int]) -> int:
    return max(place for place, side in enumerate(sides) if side == max(sides))


def beside(trace: EventTrace, kept: tuple[int, ...]) -> EventTrace:
    """Return ``trace`` run once, then again beside blocks of ``kept`` bytes that were taken in between."""
    if not kept:
        return trace
    layout, first = trace.layout, len(trace.sizes)
    slots = 1 + max(slot for slot, _ in layout.operations)
    numbers = range(first, first + len(kept))
    takes = tuple((slots + place, number) for place, number in enumerate(numbers))
    frees = tuple((slot, GIVE_BACK) for slot, _ in takes)
    added, gone = tuple(numbers), tuple(~number for number in numbers)
    run = (*layout.operations, *_ends(layout))
    loads, bare = ((*item, *_left(item)) for item in (layout.loads, layout.bare_loads))
    twice = Layout(
        (*run, *takes, *run, *frees),
        layout.pairs,
        (*loads, *added, *loads, *gone),
        (*bare, *added, *bare, *gone),
    )
    return EventTrace(twice, (*trace.sizes, *kept))


def _ends(layout: Layout) -> tuple[tuple[int, int], ...]:
    """Return what gives back that which is still taken at the end of a run."""
    taken: set[int] = set()
    for slot, size in layout.operations:
        if size == GIVE_BACK:
            taken.discard(slot)
        elif slot >= 0:
            taken.add(slot)
    return tuple((slot, GIVE_BACK) for slot in sorted(taken))


def _left(loads: tuple[int, ...]) -> tuple[int, ...]:
    """Return what takes away the loads that are still there at the end of a run."""
    there: dict[int, int] = {}
    for load in loads:
        number = load if load >= 0 else ~load
        there[number] = there.get(number, 0) + (1 if load >= 0 else -1)
    return tuple(~number for number, count in there.items() for _ in range(count))
