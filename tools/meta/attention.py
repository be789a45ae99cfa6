"""Attention as the hosts write it, in plain torch, for tracing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def fused(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Scaled dot product attention over tokens; nothing but the result is kept."""
    batch, tokens, width = q.shape
    q, k, v = (item.view(batch, -1, heads, width // heads).transpose(1, 2) for item in (q, k, v))
    result = functional.scaled_dot_product_attention(q, k, v)
    return result.transpose(1, 2).reshape(batch, tokens, width)


def fused_picture(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled dot product attention over a picture, as Forge does: three copies in, one out."""
    batch, channels, rows, columns = q.shape
    q, k, v = (item.view(batch, 1, channels, -1).transpose(2, 3).contiguous() for item in (q, k, v))
    result = functional.scaled_dot_product_attention(q, k, v)
    return result.transpose(2, 3).reshape(batch, channels, rows, columns)
