"""Physics simple enough to check by hand: each part allocates one block, frees it, and allocates a larger one.

A part's floor is linear in pixels; its minimum is the floor in whole segments; without a limit it reserves both
blocks. :func:`trace` allocates exactly that, so the replay and the figures agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lib_vram.estimate.physics import Physics
from lib_vram.estimate.work import Working
from lib_vram.physics.addons import Addon
from lib_vram.physics.allocator import CachingAllocator
from lib_vram.physics.component import ComponentMemory
from lib_vram.request import Request
from lib_vram.units import GIB, MIB, round_up

BASE_BYTES = 16 * MIB
BYTES_PER_PIXEL = {"denoise": 300, "controlnet": 150, "vae_decode": 2200, "vae_encode": 1100, "text_encode": 0}
TILE_KEEPS_PER_PIXEL = 12


def floor_bytes(component: Working) -> int:
    """Return the larger block: 16 MiB and so much for each pixel of each row; add-ons need a block of one size."""
    if isinstance(component, Addon):
        return BASE_BYTES
    rows = component.batch * (2 if component.cfg else 1)
    pixels = component.width * component.height
    kept = 0
    if component.tile is not None:
        kept = pixels * TILE_KEEPS_PER_PIXEL
        pixels = min(component.tile, component.width) * min(component.tile, component.height)
    width = 2 if component.dtype == "fp32" else 1
    return round_up(BASE_BYTES + kept + BYTES_PER_PIXEL[component.part] * pixels * rows * width, 512)


def memory(component: Working) -> ComponentMemory:
    """Return the figures of ``component``."""
    floor = floor_bytes(component)
    minimum = round_up(floor, 2 * MIB)
    return ComponentMemory(
        weights_bytes=0,
        floor_bytes=floor,
        minimum_bytes=minimum,
        comfortable_bytes=minimum + round_up(floor // 2, 2 * MIB),
        low_bytes=floor * 9 // 10,
        high_bytes=floor * 11 // 10,
        source="rule",
    )


physics = Physics.of(memory)


@dataclass(frozen=True)
class trace:
    """The events of ``component``."""

    component: Working

    def replay(self, allocator: CachingAllocator) -> None:
        """Allocate and free half of the floor, then the floor."""
        floor = floor_bytes(self.component)
        small = allocator.malloc(floor // 2) if floor // 2 >= 10 * MIB else None
        if small is not None:
            allocator.free(small)
        allocator.free(allocator.malloc(floor))


def a_request(**changes: Any) -> Request:
    """Return an SD 1.5 request of 512×512 on an A1111 with an 8 GiB card, with ``changes``."""
    data: dict[str, Any] = {
        "host": "a1111",
        "model": {"family": "sd15"},
        "device": {"total_bytes": 8 * GIB},
        "width": 512,
        "height": 512,
    }
    return Request.from_dict({**data, **changes})
