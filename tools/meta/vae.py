"""The SD and SDXL VAE in the ``ldm`` shape that AUTOMATIC1111 and Forge run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.meta.layers import FORGE, Conv, GroupNorm, Style

AttendPicture = Callable[[list[Tensor]], Tensor]
"""Single-head attention over a picture's positions; all four are [batch, channels, rows, columns]."""


@dataclass(frozen=True)
class VaeShape:
    """The numbers that make one VAE."""

    channels: int = 128
    multipliers: tuple[int, ...] = (1, 2, 4, 4)
    latents: int = 4
    blocks_per_level: int = 2
    quant: bool = True
    """Whether there is a convolution between the latents and the network; Flux's VAE has none."""


class Swish(nn.Module):
    """SiLU, in place or not: AUTOMATIC1111 puts torch's own in place of the product with the sigmoid."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x, inplace=self.in_place)


class LastSwish(nn.Module):
    """The one before the last convolution: Forge writes it as a product with the sigmoid."""

    def __init__(self, *, product: bool) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) if self.product else functional.silu(x)


class PictureBlock(nn.Module):
    """Two convolutions and the residual."""

    def __init__(self, inputs: int, outputs: int, style: Style) -> None:
        super().__init__()
        self.swish = Swish(in_place=style.in_place)
        self.norm1, self.norm2 = GroupNorm(inputs, style), GroupNorm(outputs, style)
        self.conv1, self.conv2 = Conv(inputs, outputs), Conv(outputs, outputs)
        self.shortcut = None if inputs == outputs else Conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        h = self.swish(h)
        h = self.conv1(h)
        h = self.norm2(h)
        h = self.swish(h)
        h = self.conv2(h)
        if self.shortcut is not None:
            x = self.shortcut(x)
        return x + h


class PictureAttention(nn.Module):
    """The one attention layer, in the middle."""

    def __init__(self, channels: int, attend: AttendPicture, style: Style) -> None:
        super().__init__()
        self.attend = attend
        self.norm = GroupNorm(channels, style)
        self.q, self.k, self.v, self.proj_out = (Conv(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        operands = [self.q(h), self.k(h), self.v(h)]
        h = self.attend(operands)
        h = self.proj_out(h)
        return x + h


class Middle(nn.Module):
    """Block, attention, block."""

    def __init__(self, channels: int, attend: AttendPicture, style: Style) -> None:
        super().__init__()
        self.block_1 = PictureBlock(channels, channels, style)
        self.attention = PictureAttention(channels, attend, style)
        self.block_2 = PictureBlock(channels, channels, style)

    def forward(self, x: Tensor) -> Tensor:
        h = self.block_1(x)
        h = self.attention(h)
        return self.block_2(h)


class Enlarge(nn.Module):
    """Nearest-neighbour doubling and a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.conv(x)


class Shrink(nn.Module):
    """Padding at the right and the bottom, and a convolution of stride 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv(channels, channels, stride=2, padding=0)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (0, 1, 0, 1))
        return self.conv(x)


class Decoder(nn.Module):
    """Latents to picture, with the convolution that comes before it. No host decodes under autocast."""

    def __init__(self, shape: VaeShape, attend: AttendPicture, style: Style = FORGE) -> None:
        super().__init__()
        style = replace(style, fp32_norms=False)
        widths = [shape.channels * item for item in shape.multipliers]
        width = widths[-1]
        self.post_quant = Conv(shape.latents, shape.latents, 1) if shape.quant else None
        self.conv_in = Conv(shape.latents, width)
        self.middle = Middle(width, attend, style)
        self.up = nn.ModuleList()
        for level, outputs in reversed(list(enumerate(widths))):
            for _ in range(shape.blocks_per_level + 1):
                self.up.append(PictureBlock(width, outputs, style))
                width = outputs
            if level:
                self.up.append(Enlarge(width))
        self.norm_out = GroupNorm(width, style)
        self.last_swish = LastSwish(product=style.in_place)
        self.conv_out = Conv(width, 3)

    def forward(self, latents: Tensor) -> Tensor:
        if self.post_quant is not None:
            latents = self.post_quant(latents)
        h = self.conv_in(latents)
        h = self.middle.block_1(h)
        h = self.middle.attention(h)
        h = self.middle.block_2(h)
        for layer in self.up:
            h = layer(h)
        h = self.norm_out(h)
        h = self.last_swish(h)
        return self.conv_out(h)


class Encoder(nn.Module):
    """Picture to latents, with the sampling that comes after it.

    ``a1111`` keeps every level's result to the end, and encodes under autocast.
    """

    def __init__(self, shape: VaeShape, attend: AttendPicture, style: Style = FORGE) -> None:
        super().__init__()
        self.keep_all = not style.in_place
        widths = [shape.channels * item for item in shape.multipliers]
        width = shape.channels
        self.conv_in = Conv(3, width)
        self.down = nn.ModuleList()
        for level, outputs in enumerate(widths):
            for _ in range(shape.blocks_per_level):
                self.down.append(PictureBlock(width, outputs, style))
                width = outputs
            if level + 1 < len(widths):
                self.down.append(Shrink(width))
        self.middle = Middle(width, attend, style)
        self.norm_out = GroupNorm(width, style)
        self.last_swish = LastSwish(product=style.in_place)
        self.conv_out = Conv(width, 2 * shape.latents)
        self.quant = Conv(2 * shape.latents, 2 * shape.latents, 1) if shape.quant else None

    def _moments(self, picture: Tensor) -> Tensor:
        h = self.conv_in(picture)
        kept = [h]
        for layer in self.down:
            h = layer(h)
            if self.keep_all:
                kept.append(h)
            else:
                kept.clear()
        h = self.middle.block_1(h)
        h = self.middle.attention(h)
        h = self.middle.block_2(h)
        h = self.norm_out(h)
        h = self.last_swish(h)
        return self.conv_out(h)

    def forward(self, picture: Tensor) -> Tensor:
        moments = self._moments(picture)
        if self.quant is not None:
            moments = self.quant(moments)
        mean, log_variance = torch.chunk(moments, 2, dim=1)
        log_variance = torch.clamp(log_variance, -30.0, 20.0)
        deviation = torch.exp(0.5 * log_variance)
        variance = torch.exp(log_variance)
        result = mean + deviation * torch.randn(mean.shape).to(mean.device)
        del variance
        return result
