"""The text encoders: CLIP-L, and OpenCLIP bigG beside it for SDXL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PROMPT_TOKENS = 77
VOCABULARY = 49408


@dataclass(frozen=True)
class ClipShape:
    """The numbers that make one text encoder."""

    width: int
    layers: int
    heads: int
    projected: bool = False


class CastLinear(nn.Linear):
    """A linear layer that casts its weights to the input's dtype for the call, as Forge's text encoders do."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        return functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype) if self.bias is not None else None)


class CastNorm(nn.LayerNorm):
    """Layer normalisation with the same cast."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype))


class ClipLayer(nn.Module):
    """Self-attention and a feed-forward part, each with its residual."""

    def __init__(self, shape: ClipShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = CastNorm(width), CastNorm(width)
        self.q, self.k, self.v, self.out = (CastLinear(width, width) for _ in range(4))
        self.enlarge, self.reduce = CastLinear(width, width * 4), CastLinear(width * 4, width)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        x = residual + self._attend(self.norm1(x))
        residual = x
        h = self.norm2(x)
        h = self.enlarge(h)
        h = h * torch.sigmoid(1.702 * h)
        return residual + self.reduce(h)

    def _attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (layer(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        result = functional.scaled_dot_product_attention(q, k, v)
        return self.out(result.transpose(1, 2).reshape(batch, tokens, width))


class Clip(nn.Module):
    """One text encoder. Its embeddings are fp32 and every layer's result is kept, as clip skip asks."""

    def __init__(self, shape: ClipShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(PROMPT_TOKENS, shape.width)
        self.layers = nn.ModuleList(ClipLayer(shape) for _ in range(shape.layers))
        self.norm = CastNorm(shape.width)
        self.projection = nn.Parameter(torch.empty(shape.width, shape.width)) if shape.projected else None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens).float() + self.positions.weight.float()
        states = [x]
        for layer in self.layers:
            x = layer(x)
            states.append(x)
        last = self.norm(x)
        pooled = last[:, 0]
        if self.projection is not None:
            pooled = pooled @ self.projection.to(pooled.dtype)
        return self.norm(states[-2]), pooled


class TextEncoders(nn.Module):
    """The text encoders of one family, one after the other; the results are joined."""

    def __init__(self, shapes: tuple[ClipShape, ...]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(Clip(shape) for shape in shapes)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        results = [encoder(tokens) for encoder in self.encoders]
        return torch.cat([item[0] for item in results], dim=-1), results[-1][1]
