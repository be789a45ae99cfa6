"""Layers shared by the UNet, the ControlNet and the VAE, in the two styles of the hosts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Style:
    """Where the hosts' code for the same model differs in the memory it takes.

    ``forge`` writes residuals and the VAE's SiLU in place and normalises in the model's own
    dtype. ``a1111`` runs the UNet under autocast, which normalises in fp32, adds residuals out
    of place, and writes SiLU as ``x * sigmoid(x)``; it also looks at positions of the UNet of SD 1.5 and 2 as
    views, where it has its own ``spatial_transformer_forward`` in place of the model's.
    """

    name: str
    in_place: bool
    fp32_norms: bool
    views_positions: bool


FORGE = Style("forge", in_place=True, fp32_norms=False, views_positions=False)
A1111 = Style("a1111", in_place=False, fp32_norms=True, views_positions=True)


class Linear(nn.Linear):
    """A linear layer whose input is cast to the weights' dtype first, as autocast does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.dtype == self.weight.dtype else x.to(self.weight.dtype))


class Conv(nn.Conv2d):
    """A convolution whose input is cast to the weights' dtype first, as autocast does."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, padding: int | None = None) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2 if padding is None else padding)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.dtype == self.weight.dtype else x.to(self.weight.dtype))


class GroupNorm(nn.GroupNorm):
    """Group normalisation; in fp32 under autocast, back in the model's dtype when ``restore`` is set."""

    def __init__(self, channels: int, style: Style, *, restore: bool = False) -> None:
        super().__init__(32, channels)
        self.fp32 = style.fp32_norms
        self.restore = restore

    def forward(self, x: Tensor) -> Tensor:
        if not self.fp32:
            return super().forward(x)
        result = functional.group_norm(x.float(), 32, self.weight.float(), self.bias.float())
        return result.to(x.dtype) if self.restore else result


class LayerNorm(nn.LayerNorm):
    """Layer normalisation; in fp32 under autocast."""

    def __init__(self, channels: int, style: Style) -> None:
        super().__init__(channels)
        self.fp32 = style.fp32_norms

    def forward(self, x: Tensor) -> Tensor:
        if not self.fp32:
            return super().forward(x)
        return functional.layer_norm(x.float(), self.normalized_shape, self.weight.float(), self.bias.float())


class Gated(nn.Module):
    """The first half of a transformer's feed-forward part: one projection, half of which gates the other."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = Linear(width, inner * 2)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * functional.gelu(gate)


def sinusoids(steps: Tensor, width: int) -> Tensor:
    """Return the fp32 timestep embedding of ``steps``, [batch, width]; the frequencies are made on the CPU."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float32) * (-1.0 / half)).to(steps.device)
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
