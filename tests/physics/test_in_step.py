"""Our tiled decode and encode, as they are computed, against a trace of the code that runs."""

from __future__ import annotations

import pytest

from lib_vram.physics.in_step import VaeShape, shape_trace

torch = pytest.importorskip("torch", reason="the code that is traced needs torch")

from lib_vram.host import tiled_decode, tiled_encode  # noqa: E402  needs torch
from tests.physics import traced_in_step  # noqa: E402  needs torch

SMALL = VaeShape((16, 32, 64, 64), 2, 4)
SIZES = [(512, 512, 256), (512, 768, 256), (328, 520, 192), (768, 768, 128), (512, 256, 320)]
"""Rows and columns of the picture, and the tile: several not multiples of it, and one bound by its middle block."""
CASES = [(*size, torch.float16, 2) for size in SIZES] + [(*size, torch.float32, 4) for size in SIZES[:2]]


@pytest.mark.parametrize(("rows", "columns", "tile", "dtype", "item_bytes"), CASES)
def test_the_computed_encode_is_the_traced_one(rows, columns, tile, dtype, item_bytes):
    traced = traced_in_step.peaks(
        traced_in_step.ldm_decoder.Encoder, tiled_encode.encode, (1, 3, rows, columns), tile, dtype, channels=16
    )  # fmt: skip
    computed = shape_trace(SMALL, "vae_encode", (rows, columns), tile, item_bytes)
    assert computed.floor_bytes == pytest.approx(traced[0], rel=0.01)
    assert computed.bare_floor_bytes == pytest.approx(traced[1], rel=0.01)


@pytest.mark.parametrize(("rows", "columns", "tile", "dtype", "item_bytes"), CASES)
def test_the_computed_decode_is_hardly_more_than_the_traced_one(rows, columns, tile, dtype, item_bytes):
    """Where a window begins decides whether a doubling makes one row more for it: the larger case is counted."""
    given = (1, 4, rows // 8, columns // 8)
    traced = traced_in_step.peaks(
        traced_in_step.ldm_decoder.Decoder, tiled_decode.decode, given, tile, dtype, channels=16, blocks=3
    )  # fmt: skip
    computed = shape_trace(SMALL, "vae_decode", (rows, columns), tile, item_bytes)
    assert traced[0] <= computed.floor_bytes <= 1.035 * traced[0]
    assert computed.bare_floor_bytes == pytest.approx(traced[1], rel=0.03)
