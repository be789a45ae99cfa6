"""The UNet of SD 1.5 and SDXL in the ``ldm`` shape that AUTOMATIC1111 and Forge run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.meta.layers import FORGE, Conv, Gated, GroupNorm, LayerNorm, Linear, Style, sinusoids

Attend = Callable[[list[Tensor], int], Tensor]
"""Attention over tokens: query, key and value of [batch, tokens, heads × size], and the number of heads."""


@dataclass(frozen=True)
class UNetShape:
    """The numbers that make one UNet. ``depths`` is the transformer blocks per level, going down."""

    multipliers: tuple[int, ...]
    depths: tuple[int, ...]
    middle_depth: int
    context: int
    heads: int | None = None
    head_size: int | None = None
    pooled: int = 0
    linear_projections: bool = False
    channels: int = 320
    latents: int = 4
    blocks_per_level: int = 2

    def heads_of(self, channels: int) -> int:
        """Return how many heads attention has at a level of ``channels``."""
        return self.heads or channels // (self.head_size or channels)


class Attention(nn.Module):
    """Self- or cross-attention with its four projections."""

    def __init__(self, width: int, context: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads = heads
        self.attend = attend
        self.to_q = nn_linear(width, width)
        self.to_k = nn_linear(context, width)
        self.to_v = nn_linear(context, width)
        self.to_out = Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        operands = [self.to_q(x), self.to_k(source), self.to_v(source)]
        return self.to_out(self.attend(operands, self.heads))


def nn_linear(inputs: int, outputs: int) -> Linear:
    """Return a projection without bias."""
    return Linear(inputs, outputs, bias=False)


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and a gated feed-forward part, each with its residual."""

    def __init__(self, width: int, context: int, heads: int, attend: Attend, style: Style) -> None:
        super().__init__()
        self.in_place = style.in_place
        self.attn1 = Attention(width, width, heads, attend)
        self.attn2 = Attention(width, context, heads, attend)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(width, style) for _ in range(3))
        self.ff = nn.Sequential(Gated(width, width * 4), Linear(width * 4, width))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self._in_place(x, context) if self.in_place else self._out_of_place(x, context)

    def _in_place(self, x: Tensor, context: Tensor) -> Tensor:
        n = self.norm1(x)
        n = self.attn1(n)
        x += n
        n = self.norm2(x)
        n = self.attn2(n, context)
        x += n
        skip = x
        x = self.ff(self.norm3(x))
        x += skip
        return x

    def _out_of_place(self, x: Tensor, context: Tensor) -> Tensor:
        x = self.attn1(self.norm1(x)) + x
        x = self.attn2(self.norm2(x), context) + x
        x = self.ff(self.norm3(x)) + x
        return x


class Transformer(nn.Module):
    """Transformer blocks over the picture's positions, between two projections.

    ``views`` is AUTOMATIC1111's form of it for SD 1.5 and 2: positions are looked at and put back without a copy, so
    that what follows has its channels last.
    """

    def __init__(
        self, width: int, depth: int, shape: UNetShape, attend: Attend, style: Style, *, views: bool = False
    ) -> None:
        super().__init__()
        self.linear, self.views = shape.linear_projections, views
        self.norm = GroupNorm(width, style)
        self.proj_in = Linear(width, width) if self.linear else Conv(width, width, 1)
        heads = shape.heads_of(width)
        self.blocks = nn.ModuleList(TransformerBlock(width, shape.context, heads, attend, style) for _ in range(depth))
        self.proj_out = Linear(width, width) if self.linear else Conv(width, width, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        batch, width, rows, columns = x.shape
        picture = x
        x = self.norm(x)
        if not self.linear:
            x = self.proj_in(x)
        x = x.permute(0, 2, 3, 1).reshape(batch, rows * columns, width)
        if not self.views:
            x = x.contiguous()
        if self.linear:
            x = self.proj_in(x)
        for block in self.blocks:
            x = block(x, context)
        if self.linear:
            x = self.proj_out(x)
        x = x.view(batch, rows, columns, width).permute(0, 3, 1, 2)
        if not self.views:
            x = x.contiguous()
        if not self.linear:
            x = self.proj_out(x)
        return x + picture


class ResBlock(nn.Module):
    """Two convolutions with the timestep added between them."""

    def __init__(self, inputs: int, outputs: int, embedding: int, style: Style) -> None:
        super().__init__()
        self.before = nn.Sequential(GroupNorm(inputs, style, restore=True), nn.SiLU(), Conv(inputs, outputs))
        self.embed = nn.Sequential(nn.SiLU(), Linear(embedding, outputs))
        self.after = nn.Sequential(GroupNorm(outputs, style, restore=True), nn.SiLU(), Conv(outputs, outputs))
        self.skip = nn.Identity() if inputs == outputs else Conv(inputs, outputs, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.before(x)
        step = self.embed(embedding)[:, :, None, None]
        h = h + step
        h = self.after(h)
        return self.skip(x) + h


class Upsample(nn.Module):
    """Nearest-neighbour enlargement to the size of the skip that comes next, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv(channels, channels)

    def forward(self, x: Tensor, size: tuple[int, int] | None) -> Tensor:
        x = functional.interpolate(x, size=size or (x.shape[2] * 2, x.shape[3] * 2), mode="nearest")
        return self.conv(x)


class Stage(nn.Sequential):
    """Layers that run one after the other, each given what it takes."""

    def forward(self, x: Tensor, embedding: Tensor, context: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        for layer in self:
            if isinstance(layer, ResBlock):
                x = layer(x, embedding)
            elif isinstance(layer, Transformer):
                x = layer(x, context)
            elif isinstance(layer, Upsample):
                x = layer(x, size)
            else:
                x = layer(x)
        return x


class Encoder(nn.Module):
    """The way down and the middle, which a UNet and its ControlNet share."""

    def __init__(self, shape: UNetShape, attend: Attend, style: Style) -> None:
        super().__init__()
        self.shape, self.attend, self.style = shape, attend, style
        self.embedding = shape.channels * 4
        self.time_embed = self._embedding_layers(shape.channels)
        self.label_embed = self._embedding_layers(shape.pooled) if shape.pooled else None
        self.skips = [shape.channels]
        self.down = nn.ModuleList([Stage(Conv(shape.latents, shape.channels)), *self._levels()])
        width = self.skips[-1]
        transformer = self._transformer(width, shape.middle_depth)
        self.middle = Stage(self._res(width, width), transformer, self._res(width, width))

    def _embedding_layers(self, width: int) -> nn.Sequential:
        return nn.Sequential(Linear(width, self.embedding), nn.SiLU(), Linear(self.embedding, self.embedding))

    def _res(self, inputs: int, outputs: int) -> ResBlock:
        return ResBlock(inputs, outputs, self.embedding, self.style)

    views_positions = False
    """Whether positions are views of the picture."""

    def _transformer(self, width: int, depth: int) -> nn.Module:
        return Transformer(width, depth, self.shape, self.attend, self.style, views=self.views_positions)

    def _layers(self, inputs: int, outputs: int, depth: int) -> list[nn.Module]:
        layers: list[nn.Module] = [self._res(inputs, outputs)]
        if depth:
            layers.append(self._transformer(outputs, depth))
        return layers

    def _levels(self) -> Iterator[Stage]:
        width = self.shape.channels
        for level, multiplier in enumerate(self.shape.multipliers):
            for _ in range(self.shape.blocks_per_level):
                inputs, width = width, multiplier * self.shape.channels
                self.skips.append(width)
                yield Stage(*self._layers(inputs, width, self.shape.depths[level]))
            if level + 1 < len(self.shape.multipliers):
                self.skips.append(width)
                yield Stage(Conv(width, width, 3, stride=2, padding=1))

    def waves(self, steps: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the sinusoids of the timesteps, which the caller keeps to its end as the hosts do."""
        return sinusoids(steps, self.shape.channels).to(dtype)

    def with_label(self, embedding: Tensor, pooled: Tensor | None) -> Tensor:
        """Return the timesteps' embedding with that of the pooled prompt added, if the model has one."""
        return embedding if self.label_embed is None else embedding + self.label_embed(pooled)


class UNet(Encoder):
    """The whole UNet: down, middle, and up again with the skips concatenated."""

    def __init__(self, shape: UNetShape, attend: Attend, style: Style = FORGE) -> None:
        self.views_positions = style.views_positions and not shape.pooled
        super().__init__(shape, attend, style)
        self.up = nn.ModuleList(self._up_levels())
        self.out = nn.Sequential(
            GroupNorm(shape.channels, style, restore=True), nn.SiLU(), Conv(shape.channels, shape.latents)
        )

    def _up_levels(self) -> Iterator[Stage]:
        skips = list(self.skips)
        width = skips[-1]
        for level in reversed(range(len(self.shape.multipliers))):
            for index in range(self.shape.blocks_per_level + 1):
                inputs = width + skips.pop()
                width = self.shape.multipliers[level] * self.shape.channels
                layers = self._layers(inputs, width, self.shape.depths[level])
                if level and index == self.shape.blocks_per_level:
                    layers.append(Upsample(width))
                yield Stage(*layers)

    def forward(self, x: Tensor, steps: Tensor, context: Tensor, pooled: Tensor | None = None) -> Tensor:
        waves = self.waves(steps, x.dtype)
        embedding = self.time_embed(waves)
        embedding = self.with_label(embedding, pooled)
        h = x
        skips = []
        for stage in self.down:
            h = stage(h, embedding, context)
            skips.append(h)
        h = self.middle(h, embedding, context)
        for stage in self.up:
            skip = skips.pop()
            h = torch.cat([h, skip], dim=1)
            del skip
            size = (skips[-1].shape[2], skips[-1].shape[3]) if skips else None
            h = stage(h, embedding, context, size)
        return self.out(h)
