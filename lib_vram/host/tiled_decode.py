"""A VAE decode whose memory is bounded by a tile and whose picture is that of the untiled decode.

Decoding tile by tile shifts the tone from tile to tile, because every group-norm layer would
take its mean and variance from the tile alone, and the middle block's attention would see only
the tile. Here the tiles go through the decoder in step, layer by layer: each layer runs over all
windows of its feature map before the next one starts, the map lies in RAM meanwhile, and the
group-norm statistics are those of the whole map. A 3x3 convolution sees one pixel beyond its
window, so windows overlap by exactly what the layer reaches and nothing is left to blend.

Difference from the untiled decode, measured with the full-size SD decoder (the hosts' own class, torch 2.13
on a CPU, fp32, 384x384 in four tiles, random weights that keep the activations' scale, a latent that differs from
tile to tile): at most 0.0006 and on average 0.00006 of 255 levels, tone of a tile within 0.00001. Tiles
decoded each by itself differ there by up to 333 levels, and by 27 in tone.

The price is time and RAM: feature maps travel between RAM and the card, where the largest take about
640 bytes per pixel in half precision, and the convolution behind each upsampling is computed twice (once
for the statistics), which is cheaper than moving its output.

Works on decoders of the ``ldm`` shape (SD 1, SD 2, SDXL: ``conv_in``, ``mid``, ``up``,
``norm_out``, ``conv_out``); :func:`supports` says so, others are left to decode whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_vram.guard.fail_open import fail_open, tell_once

LATENT_FACTOR = 8
"""Pixels of the picture per latent pixel, in every VAE of the ``ldm`` shape."""

MARK = "vram_guard_tile_size"
"""Attribute of a decoder whose ``forward`` is ours at the moment."""

STATISTICS_CHANNELS = 32
"""Channels turned to fp32 at once for their statistics, so that the copy stays small beside the tile."""

SCORES_PER_TILE_PIXEL = 64
"""Attention scores held at once, per pixel of a tile: well under the 1024 bytes that the widest layer takes there."""


@dataclass(frozen=True)
class Box:
    """Half-open ranges of rows and columns of a feature map; may reach outside it where the picture wraps around."""

    top: int
    bottom: int
    left: int
    right: int

    def grown(self) -> Box:
        """Return the box with one more pixel on each side: the reach of a 3x3 convolution."""
        return Box(self.top - 1, self.bottom + 1, self.left - 1, self.right + 1)

    def clipped(self, height: int, width: int) -> Box:
        """Return the part inside a map of that size."""
        return Box(max(0, self.top), min(height, self.bottom), max(0, self.left), min(width, self.right))

    def within(self, outer: Box, tile: Tensor) -> Tensor:
        """Return this box's part of ``tile``, which covers ``outer``."""
        rows = slice(self.top - outer.top, self.bottom - outer.top)
        return tile[:, :, rows, self.left - outer.left : self.right - outer.left]


class Moments:
    """Mean and variance per channel of a map that is seen in pieces (Chan's parallel update, in fp64)."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.mean = torch.zeros(channels, dtype=torch.float64)
        self.squares = torch.zeros(channels, dtype=torch.float64)

    def add(self, tile: Tensor) -> None:
        """Take in ``tile``, of shape 1 x channels x rows x columns."""
        count = tile.shape[2] * tile.shape[3]
        parts = [
            torch.var_mean(part.float(), dim=(0, 2, 3), correction=0) for part in tile.split(STATISTICS_CHANNELS, 1)
        ]
        variance = torch.cat([part[0] for part in parts]).cpu().double()
        mean = torch.cat([part[1] for part in parts]).cpu().double()
        total, delta = self.count + count, mean - self.mean
        self.squares += variance * count + delta.square() * (self.count * count / total)
        self.mean += delta * (count / total)
        self.count = total

    def of_groups(self, groups: int) -> tuple[Tensor, Tensor]:
        """Return mean and variance per channel, those of the channel's group, as a group norm takes them."""
        channels = self.mean.numel()
        mean = self.mean.view(groups, -1)
        squares = self.squares.view(groups, -1)
        group_mean = mean.mean(1, keepdim=True)
        variance = squares.mean(1, keepdim=True) / self.count + (mean - group_mean).square().mean(1, keepdim=True)
        spread = (groups, channels // groups)
        return group_mean.expand(spread).reshape(-1).float(), variance.expand(spread).reshape(-1).float()


class Canvas:
    """A feature map in RAM: written window by window, read back by windows onto the card."""

    def __init__(self, data: Tensor, device: torch.device) -> None:
        self.data = data
        self.device = device
        self.moments = Moments(data.shape[0])

    @classmethod
    def empty(cls, channels: int, height: int, width: int, like: Tensor) -> Canvas:
        """Return a canvas of that size with the type of ``like``, read back onto the device of ``like``."""
        return cls(torch.empty((channels, height, width), dtype=like.dtype), like.device)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.data.shape[1], self.data.shape[2]

    def write(self, box: Box, tile: Tensor) -> None:
        """Store ``tile`` at ``box`` and count it in the statistics."""
        self.data[:, box.top : box.bottom, box.left : box.right].copy_(tile[0])
        self.moments.add(tile)

    def read(self, box: Box) -> Tensor:
        """Return the window ``box`` on the card; what lies outside the map comes from its other side."""
        height, width = self.size
        data = self.data
        if box.top < 0 or box.bottom > height:
            data = data.index_select(1, torch.arange(box.top, box.bottom) % height)
        else:
            data = data[:, box.top : box.bottom]
        if box.left < 0 or box.right > width:
            data = data.index_select(2, torch.arange(box.left, box.right) % width)
        else:
            data = data[:, :, box.left : box.right]
        return data.to(self.device)[None]

    def overwritten(self) -> Canvas:
        """Return a canvas over the same memory that starts its statistics anew."""
        return Canvas(self.data, self.device)


class Upsampled:
    """A map that is never held whole: the doubled and convolved ``source``, computed window by window when read."""

    def __init__(self, source: Canvas, conv: torch.nn.Module | None, tiles: Tiles) -> None:
        self.source = source
        self.conv = conv
        self.device = source.device
        self.size = (source.size[0] * 2, source.size[1] * 2)
        first = self.read(Box(0, 1, 0, 1))
        self.moments = Moments(first.shape[1])
        for box in tiles.boxes(self.size):
            self.moments.add(self.read(box))

    def read(self, box: Box) -> Tensor:
        """Return the window ``box`` on the card."""
        outer = box if self.conv is None else _reach(box, self.size, self.conv)
        low = Box(outer.top // 2, -(-outer.bottom // 2), outer.left // 2, -(-outer.right // 2))
        tile = F.interpolate(self.source.read(low), scale_factor=2.0, mode="nearest")
        tile = outer.within(Box(low.top * 2, low.bottom * 2, low.left * 2, low.right * 2), tile)
        return tile if self.conv is None else box.within(outer, self.conv(tile))


Source = Canvas | Upsampled


@dataclass(frozen=True)
class Tiles:
    """How maps are cut: windows of at most ``side`` pixels of the picture, whose width is ``picture_width``."""

    side: int
    picture_width: int

    def boxes(self, size: tuple[int, int]) -> Iterator[Box]:
        """Yield the windows of a map of height and width ``size``, near-equal so that none is a sliver."""
        height, width = size
        side = max(1, self.side * width // self.picture_width)
        for top, bottom in _cuts(height, side):
            for left, right in _cuts(width, side):
                yield Box(top, bottom, left, right)


def _cuts(length: int, side: int) -> list[tuple[int, int]]:
    count = -(-length // side)
    return [(length * index // count, length * (index + 1) // count) for index in range(count)]


def supports(decoder: Any) -> bool:
    """Whether ``decoder`` has the ``ldm`` shape that :func:`decode` walks through."""
    named = all(hasattr(decoder, name) for name in ("conv_in", "mid", "up", "norm_out", "conv_out"))
    if not named or getattr(decoder, "give_pre_end", False):
        return False
    blocks = [decoder.mid.block_1, decoder.mid.block_2, *(block for level in decoder.up for block in level.block)]
    return all(hasattr(block, "norm1") and hasattr(block, "conv2") for block in blocks) and not any(
        len(getattr(level, "attn", ())) for level in decoder.up
    )


def decode(decoder: Any, latent: Tensor, tile_size: int) -> Tensor:
    """Return the decoder's picture of ``latent``, computed in windows of at most ``tile_size`` pixels a side.

    ``latent`` is batch x channels x rows x columns; the result has the same device and type.
    The pictures of a batch are decoded one after the other, as A1111 does.
    """
    return torch.cat([_decode_one(decoder, latent[index : index + 1], tile_size) for index in range(latent.shape[0])])


def _decode_one(decoder: Any, latent: Tensor, tile_size: int) -> Tensor:
    tiles = Tiles(tile_size, latent.shape[3] * LATENT_FACTOR)
    hidden = decoder.conv_in(latent)
    canvas = Canvas.empty(hidden.shape[1], hidden.shape[2], hidden.shape[3], hidden)
    canvas.write(Box(0, hidden.shape[2], 0, hidden.shape[3]), hidden)
    del hidden
    source: Source = _residual(decoder.mid.block_1, canvas, tiles)
    source = _attention(decoder.mid.attn_1, source, tiles)
    source = _residual(decoder.mid.block_2, source, tiles)
    for number, level in reversed(list(enumerate(decoder.up))):
        for block in level.block:
            source = _residual(block, source, tiles)
        if number > 0:
            source = Upsampled(source, getattr(level.upsample, "conv", None), tiles)
    picture = _last_layers(decoder, source, tiles)
    return torch.tanh(picture) if getattr(decoder, "tanh_out", False) else picture


def _last_layers(decoder: Any, source: Source, tiles: Tiles) -> Tensor:
    out = torch.empty((1, decoder.conv_out.out_channels, *source.size))
    dtype = torch.float32
    for box in tiles.boxes(source.size):
        outer = _reach(box, source.size, decoder.conv_out)
        tile = decoder.conv_out(_activated(decoder.norm_out, source, outer))
        dtype = tile.dtype
        out[:, :, box.top : box.bottom, box.left : box.right].copy_(box.within(outer, tile))
    return out.to(source.device, dtype)


def _residual(block: Any, source: Source, tiles: Tiles) -> Canvas:
    """Run a residual block; its result takes the memory of its shortcut, which is read and written box by box."""
    height, width = source.size
    shortcut = _shortcut_of(block)
    first: Canvas | None = None
    kept = source if isinstance(source, Canvas) and shortcut is None else None
    aside = kept
    for box in tiles.boxes(source.size):
        outer = _reach(box, source.size, block.conv1)
        if kept is None:
            straight = source.read(outer)
            straight = box.within(outer, shortcut(straight) if shortcut else straight)
            aside = aside or Canvas.empty(straight.shape[1], height, width, straight)
            aside.write(box, straight)
            del straight
        tile = box.within(outer, block.conv1(_activated(block.norm1, source, outer)))
        first = first or Canvas.empty(tile.shape[1], height, width, tile)
        first.write(box, tile)
        del tile
    assert first is not None and aside is not None  # a map has at least one box
    return _second_half(block, first, aside, tiles)


def _second_half(block: Any, first: Canvas, aside: Canvas, tiles: Tiles) -> Canvas:
    result = aside.overwritten()
    for box in tiles.boxes(first.size):
        outer = _reach(box, first.size, block.conv2)
        tile = box.within(outer, block.conv2(_activated(block.norm2, first, outer)))
        result.write(box, aside.read(box).add_(tile))
        del tile
    return result


def _shortcut_of(block: Any) -> torch.nn.Module | None:
    return getattr(block, "nin_shortcut", None) or getattr(block, "conv_shortcut", None)


def _attention(attention: Any, source: Canvas, tiles: Tiles) -> Canvas:
    """Run the middle block's attention over the whole map, a bounded number of queries at a time."""
    height, width = source.size
    whole = Box(0, height, 0, width)
    if not all(hasattr(attention, name) for name in ("norm", "q", "k", "v", "proj_out")):
        hidden = attention(source.read(whole))
        result = source.overwritten()
        result.write(whole, hidden)
        return result
    rows = max(1, tiles.side**2 * SCORES_PER_TILE_PIXEL // (height * width * width))
    bands = [Box(top, min(height, top + rows), 0, width) for top in range(0, height, rows)]
    keys, values = _keys_and_values(attention, source, bands)
    result = source.overwritten()
    for box in bands:
        straight = source.read(box)
        queries = _as_tokens(attention.q(_normalised(attention.norm, source, straight)))
        mixed = F.scaled_dot_product_attention(queries, keys, values)[0]
        mixed = mixed.transpose(1, 2).reshape(1, -1, box.bottom - box.top, width)
        result.write(box, straight.add_(attention.proj_out(mixed)))
    return result


def _keys_and_values(attention: Any, source: Canvas, bands: list[Box]) -> tuple[Tensor, Tensor]:
    """Return both for the whole map: the only things of its size on the card, 2 x channels x latent pixels."""
    height, width = source.size
    kept: list[Tensor] = []
    for box in bands:
        hidden = _normalised(attention.norm, source, source.read(box))
        parts = [_as_tokens(layer(hidden)) for layer in (attention.k, attention.v)]
        kept = kept or [part.new_empty((1, 1, height * width, part.shape[3])) for part in parts]
        for whole, part in zip(kept, parts, strict=True):
            whole[:, :, box.top * width : box.bottom * width].copy_(part)
    return kept[0], kept[1]


def _as_tokens(hidden: Tensor) -> Tensor:
    """Return 1 x 1 x tokens x channels: one head, as the ldm attention block has."""
    return hidden.flatten(2).transpose(1, 2)[None]


def _reach(box: Box, size: tuple[int, int], conv: Any) -> Box:
    """Return what ``conv`` must see to get ``box`` right: past the map's edge only where the picture wraps around."""
    if getattr(conv, "kernel_size", (3, 3)) == (1, 1):
        return box
    circular = getattr(conv, "padding_mode", "zeros") == "circular"
    return box.grown() if circular else box.grown().clipped(*size)


def _activated(norm: Any, source: Source, box: Box) -> Tensor:
    return F.silu(_normalised(norm, source, source.read(box)), inplace=True)


def _normalised(norm: Any, source: Source, tile: Tensor) -> Tensor:
    """Return the group norm of ``tile`` with the whole map's statistics.

    ``batch_norm`` in evaluation mode is that very operation, computed in fp32 and rounded once, as ``group_norm`` is.
    """
    own = (*source.moments.of_groups(norm.num_groups), norm.weight, norm.bias)
    mean, variance, weight, bias = (part.float().to(tile.device) for part in own)  # weights may be swapped out to RAM
    return F.batch_norm(tile, mean, variance, weight, bias, eps=norm.eps)


def step_aside(decoder: Any) -> bool:
    """Whether another extension's tiling has ``decoder`` now (multidiffusion marks it with ``original_forward``)."""
    original = getattr(decoder, "original_forward", None)
    return original is not None and decoder.forward != original


@contextmanager
def tiled(decoder: Any, tile_size: int) -> Iterator[bool]:
    """Within the block, ``decoder`` decodes pictures larger than ``tile_size`` in tiles; yields whether it does.

    The replacement sits on this one object and is taken off when the block ends, however it ends.
    """
    if not _can_wrap(decoder):
        yield False
        return
    before = vars(decoder).get("forward")
    decoder.forward = _forward(decoder, decoder.forward, tile_size)
    setattr(decoder, MARK, tile_size)
    try:
        yield True
    finally:
        vars(decoder).pop(MARK, None)
        if before is None:
            vars(decoder).pop("forward", None)
        else:
            decoder.forward = before


def _forward(decoder: Any, original: Callable[..., Tensor], tile_size: int) -> Callable[..., Tensor]:
    def forward(latent: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fits = max(latent.shape[2:]) * LATENT_FACTOR <= tile_size
        picture = None if args or kwargs or fits else _decoded(decoder, latent, tile_size)
        return original(latent, *args, **kwargs) if picture is None else picture

    return forward


@fail_open(instead=lambda *_: False)
def _can_wrap(decoder: Any) -> bool:
    return MARK not in vars(decoder) and not step_aside(decoder) and supports(decoder)


def _decoded(decoder: Any, latent: Tensor, tile_size: int) -> Tensor | None:
    """Return the picture, ``None`` from a decoder that is otherwise inside than it looks: it decodes whole then."""
    try:
        return decode(decoder, latent, tile_size)
    except (AttributeError, TypeError, LookupError) as fault:
        tell_once("the tiled decode", fault)
        return None
