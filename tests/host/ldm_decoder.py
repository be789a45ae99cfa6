"""A decoder and an encoder of the ldm shape, small enough for tests: the layers and names of the hosts' own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4, channels, eps=1e-6)


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.norm2, self.conv2 = _norm(outer), nn.Conv2d(outer, outer, 3, padding=1)
        if inner != outer:
            self.nin_shortcut = nn.Conv2d(inner, outer, 1)

    def forward(self, x, temb=None):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + h


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (layer(h).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1)
        return x + self.proj_out((weights @ v).transpose(1, 2).reshape(x.shape))


class Upsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    """Latents of 4 channels to pictures of 3, eight times as large."""

    give_pre_end = False
    tanh_out = False

    def __init__(self, channels: int = 8, factors: tuple[int, ...] = (1, 2, 4, 4), blocks: int = 2) -> None:
        super().__init__()
        inner = channels * factors[-1]
        self.conv_in = nn.Conv2d(4, inner, 3, padding=1)
        self.mid = nn.Module()
        self.mid.block_1, self.mid.attn_1, self.mid.block_2 = (
            Residual(inner, inner),
            Attention(inner),
            Residual(inner, inner),
        )
        levels = []
        for number, factor in reversed(list(enumerate(factors))):
            level = nn.Module()
            outer = channels * factor
            level.block = nn.ModuleList([Residual(inner if index == 0 else outer, outer) for index in range(blocks)])
            level.attn = nn.ModuleList()
            if number > 0:
                level.upsample = Upsample(outer)
            levels.insert(0, level)
            inner = outer
        self.up = nn.ModuleList(levels)
        self.norm_out, self.conv_out = _norm(inner), nn.Conv2d(inner, 3, 3, padding=1)

    def forward(self, z):
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(self.conv_in(z))))
        for number, level in reversed(list(enumerate(self.up))):
            for block in level.block:
                h = block(h)
            if number > 0:
                h = level.upsample(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Downsample(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=0)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Encoder(nn.Module):
    """Pictures of 3 channels to mean and log variance of latents of 4, an eighth as large."""

    def __init__(self, channels: int = 8, factors: tuple[int, ...] = (1, 2, 4, 4), blocks: int = 2) -> None:
        super().__init__()
        inner = channels * factors[0]
        self.conv_in = nn.Conv2d(3, inner, 3, padding=1)
        self.down = nn.ModuleList()
        for number, factor in enumerate(factors):
            level = nn.Module()
            outer = channels * factor
            level.block = nn.ModuleList([Residual(inner if index == 0 else outer, outer) for index in range(blocks)])
            level.attn = nn.ModuleList()
            if number < len(factors) - 1:
                level.downsample = Downsample(outer)
            self.down.append(level)
            inner = outer
        self.mid = nn.Module()
        self.mid.block_1, self.mid.attn_1 = Residual(inner, inner), Attention(inner)
        self.mid.block_2 = Residual(inner, inner)
        self.norm_out, self.conv_out = _norm(inner), nn.Conv2d(inner, 8, 3, padding=1)

    def forward(self, x):
        h = self.conv_in(x)
        for number, level in enumerate(self.down):
            for block in level.block:
                h = block(h)
            if number < len(self.down) - 1:
                h = level.downsample(h)
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(h)))
        return self.conv_out(F.silu(self.norm_out(h)))


def make_encoder(seed: int = 0, **shape) -> Encoder:
    """Return an encoder whose activations differ across the picture, as a trained one's do."""
    torch.manual_seed(seed)
    return Encoder(**shape).eval().requires_grad_(False)


def make_decoder(seed: int = 0, **shape) -> Decoder:
    """Return a decoder whose activations differ across the picture, as a trained one's do."""
    torch.manual_seed(seed)
    return Decoder(**shape).eval().requires_grad_(False)
