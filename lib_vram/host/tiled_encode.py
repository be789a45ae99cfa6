"""A VAE encode whose memory is bounded by a tile and whose latent is that of the untiled encode.

A1111 has no tiled encode: img2img of a large picture and a second pass that begins with a picture enlarged by an
image upscaler are bound by it. The windows go through the encoder in step, layer by layer, with the statistics of
the whole map: see ``tiled_layers``, which the decoder in ``tiled_decode`` walks through the other way round.

Only the encoder's ``forward`` is replaced. What follows it (``quant_conv``, mean and variance, the noise that is
drawn for the sample) is the host's own, on the whole latent and with as many random numbers, so seeds reproduce.

A halving of the ldm encoder pads one row and one column at the end, ``(0, 1, 0, 1)``, and takes every other pixel
from the first on: rows 2 r to 2 r + 2 for row r, whatever wraps around.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lib_vram.host import tiled_switch
from lib_vram.host.tiled_layers import (
    Box,
    Canvas,
    Tiles,
    are_residual,
    first_layer,
    last_layers,
    middle,
    one_by_one,
    residual,
)
from lib_vram.host.tiled_switch import step_aside as step_aside


def supports(encoder: Any) -> bool:
    """Whether ``encoder`` has the ``ldm`` shape that :func:`encode` walks through."""
    if not all(hasattr(encoder, name) for name in ("conv_in", "mid", "down", "norm_out", "conv_out")):
        return False
    blocks = [encoder.mid.block_1, encoder.mid.block_2, *(block for level in encoder.down for block in level.block)]
    plain = are_residual(blocks) and not any(len(getattr(level, "attn", ())) for level in encoder.down)
    return plain and all(_halves(level.downsample) for level in list(encoder.down)[:-1])


def _halves(downsample: Any) -> bool:
    """Whether ``downsample`` is the ldm shape's: a convolution that is padded by hand, or an average of four."""
    conv = getattr(downsample, "conv", None)
    if conv is None:
        return True
    return (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (2, 2), (0, 0))


def encode(encoder: Any, picture: Tensor, tile_size: int) -> Tensor:
    """Return what ``encoder`` makes of ``picture``, computed in windows of at most ``tile_size`` pixels a side.

    ``picture`` is batch x 3 x rows x columns; the result, batch x (mean and log variance) x latent rows x latent
    columns, has the same device and type. The pictures of a batch are encoded one after the other, as A1111 does.
    """
    return one_by_one(picture, lambda one: _encode_one(encoder, one, tile_size))


def _encode_one(encoder: Any, picture: Tensor, tile_size: int) -> Tensor:
    tiles = Tiles(tile_size, picture.shape[3])
    canvas = first_layer(encoder.conv_in, picture, tiles)
    last = len(encoder.down) - 1
    for number, level in enumerate(encoder.down):
        for block in level.block:
            canvas = residual(block, canvas, tiles)
        if number < last:
            canvas = _halved(level.downsample, canvas, tiles)
    return last_layers(encoder, middle(encoder.mid, canvas, tiles), tiles)


def _halved(downsample: Any, source: Canvas, tiles: Tiles) -> Canvas:
    """Run a halving; its result is held whole, a quarter of what it is made of."""
    conv = getattr(downsample, "conv", None)
    size = (source.size[0] // 2, source.size[1] // 2)
    result: Canvas | None = None
    for box in tiles.boxes(size):
        tile = F.avg_pool2d(source.read(_doubled(box)), 2) if conv is None else conv(_padded(source, box))
        result = result or Canvas.empty(tile.shape[1], *size, tile)
        result.write(box, tile)
        del tile
    assert result is not None  # a map has at least one box
    return result


def _doubled(box: Box) -> Box:
    return Box(box.top * 2, box.bottom * 2, box.left * 2, box.right * 2)


def _padded(source: Canvas, box: Box) -> Tensor:
    """Return what the halving convolution sees for ``box``: one row and column more, zeros beyond the map's end."""
    twice = _doubled(box)
    seen = Box(twice.top, twice.bottom + 1, twice.left, twice.right + 1)
    there = seen.clipped(*source.size)
    short = (0, seen.right - there.right, 0, seen.bottom - there.bottom)
    tile = source.read(there)
    return F.pad(tile, short) if any(short) else tile


WAY = tiled_switch.Way("the tiled encode", supports, lambda *given: encode(*given), 1)


def tiled(encoder: Any, tile_size: int) -> AbstractContextManager[bool]:
    """Within the block, ``encoder`` encodes pictures larger than ``tile_size`` in tiles; yields whether it does."""
    return tiled_switch.tiled(encoder, tile_size, WAY)
