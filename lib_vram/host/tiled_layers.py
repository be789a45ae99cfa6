"""Layers of a VAE computed window by window, each over all windows of its map before the next layer starts.

Tile by tile the tone would shift from tile to tile, because every group-norm layer would take its mean and variance
from the tile alone, and the middle block's attention would see only the tile. Here a feature map lies in RAM and only
a window of it is on the card; the group-norm statistics are those of the whole map. A 3x3 convolution sees one pixel
beyond its window, so windows overlap by exactly what the layer reaches and nothing is left to blend.

The decoder and the encoder are walks over these layers: ``tiled_decode`` and ``tiled_encode``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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
            data = data.index_select(1, torch.arange(box.top, box.bottom, device=data.device) % height)
        else:
            data = data[:, box.top : box.bottom]
        if box.left < 0 or box.right > width:
            data = data.index_select(2, torch.arange(box.left, box.right, device=data.device) % width)
        else:
            data = data[:, :, box.left : box.right]
        return data.to(self.device)[None]

    def overwritten(self) -> Canvas:
        """Return a canvas over the same memory that starts its statistics anew."""
        return Canvas(self.data, self.device)


class Source(Protocol):
    """A feature map that is read window by window."""

    device: torch.device
    moments: Moments

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        ...

    def read(self, box: Box) -> Tensor:
        """Return the window ``box`` on the card."""
        ...


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


def one_by_one(batch: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what ``run`` makes of each entry of ``batch``, together."""
    made = [run(batch[index : index + 1]) for index in range(batch.shape[0])]
    return made[0] if len(made) == 1 else torch.cat(made)


def first_layer(conv: torch.nn.Module, whole: Tensor, tiles: Tiles) -> Canvas:
    """Run the first convolution over ``whole``, 1 x channels x rows x columns, which stays where it is."""
    source = Canvas(whole[0], whole.device)
    result: Canvas | None = None
    for box in tiles.boxes(source.size):
        outer = reach(box, source.size, conv)
        tile = box.within(outer, conv(source.read(outer)))
        result = result or Canvas.empty(tile.shape[1], *source.size, tile)
        result.write(box, tile)
        del tile
    assert result is not None  # a map has at least one box
    return result


def last_layers(part: Any, source: Source, tiles: Tiles) -> Tensor:
    """Return what ``norm_out`` and ``conv_out`` of ``part`` make of the map, on the card."""
    out = torch.empty((1, part.conv_out.out_channels, *source.size))
    dtype = torch.float32
    for box in tiles.boxes(source.size):
        outer = reach(box, source.size, part.conv_out)
        tile = part.conv_out(_activated(part.norm_out, source, outer))
        dtype = tile.dtype
        out[:, :, box.top : box.bottom, box.left : box.right].copy_(box.within(outer, tile))
    return out.to(source.device, dtype)


def middle(mid: Any, source: Source, tiles: Tiles) -> Canvas:
    """Run the middle block, which sees the map where it is smallest."""
    first = residual(mid.block_1, source, tiles)
    return residual(mid.block_2, attend(mid.attn_1, first, tiles), tiles)


def residual(block: Any, source: Source, tiles: Tiles) -> Canvas:
    """Run a residual block; its result takes the memory of its shortcut, which is read and written box by box."""
    height, width = source.size
    shortcut = _shortcut_of(block)
    first: Canvas | None = None
    kept = source if isinstance(source, Canvas) and shortcut is None else None
    aside = kept
    for box in tiles.boxes(source.size):
        outer = reach(box, source.size, block.conv1)
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
        outer = reach(box, first.size, block.conv2)
        tile = box.within(outer, block.conv2(_activated(block.norm2, first, outer)))
        result.write(box, aside.read(box).add_(tile))
        del tile
    return result


def are_residual(blocks: Iterable[Any]) -> bool:
    """Whether all ``blocks`` have the layers that :func:`residual` runs."""
    return all(hasattr(block, "norm1") and hasattr(block, "conv2") for block in blocks)


def _shortcut_of(block: Any) -> torch.nn.Module | None:
    return getattr(block, "nin_shortcut", None) or getattr(block, "conv_shortcut", None)


def attend(attention: Any, source: Canvas, tiles: Tiles) -> Canvas:
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


def reach(box: Box, size: tuple[int, int], conv: Any) -> Box:
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
