"""What tiles of a VAE leave beside one another."""

from __future__ import annotations

import dataclasses

import pytest

from lib_vram.physics.component import Component
from lib_vram.physics.memory import component_memory
from lib_vram.physics.tiles import is_tiled, kept_bytes
from lib_vram.units import MIB

LARGE = Component("sdxl", "vae_decode", 2048, 2048, tile=512, code="diffusers")


@pytest.mark.parametrize(
    ("part", "side", "tile", "floor_mib"),
    [
        ("vae_decode", 1024, 512, 614.5), ("vae_decode", 2048, 512, 647.2), ("vae_decode", 2048, 1024, 2454.8),
        ("vae_decode", 1024, 256, 162.6), ("vae_encode", 1024, 512, 390.5), ("vae_encode", 2048, 512, 409.8),
    ],
)  # fmt: skip
def test_a_tiled_vae_takes_what_diffusers_takes(part: str, side: int, tile: int, floor_mib: float) -> None:
    """The peak of a trace of diffusers 0.36's own ``tiled_decode`` and ``tiled_encode``, in fp16."""
    component = Component("sdxl", part, side, side, tile=tile, code="diffusers")  # type: ignore[arg-type]
    assert component_memory(component).floor_bytes / MIB == pytest.approx(floor_mib, rel=0.005)


def test_every_tile_before_the_last_whole_one_is_kept() -> None:
    """Starts every 384 pixels: five whole tiles and a strip of 128 a row; the fifth of the fifth row is the last."""
    whole, strip = 512 * 512 * 3 * 2, 512 * 128 * 3 * 2
    assert kept_bytes(LARGE) == (*(4 * (*[whole] * 5, strip)), *[whole] * 4)


def test_the_hosts_keep_their_tiles_in_the_systems_memory() -> None:
    in_host = dataclasses.replace(LARGE, code="ldm")
    assert is_tiled(in_host)
    assert kept_bytes(in_host) == ()


@pytest.mark.parametrize("change", [{"tile": None}, {"tile": 2048}, {"part": "denoise"}])
def test_without_tiles_nothing_is_kept(change: dict[str, object]) -> None:
    component = dataclasses.replace(LARGE, **change)  # type: ignore[arg-type]
    assert not is_tiled(component)
    assert kept_bytes(component) == ()


def test_a_tiled_vae_gives_everything_back() -> None:
    memory = component_memory(LARGE)
    one_tile = component_memory(dataclasses.replace(LARGE, width=512, height=512))
    assert one_tile.floor_bytes < memory.floor_bytes <= memory.minimum_bytes <= memory.comfortable_bytes
