"""What stands for the hosts' attention while a skeleton is traced.

Over tokens and over pictures it is marked: the profile leaves the way of computing it open. Where
a model's attention cannot be marked (with a mask, or with heads that come apart before it), it has
the footprint of torch's fused attention, whatever kernel the GPU would run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from lib_vram.physics.trace import mark_attention

_NAMES = ("attention_function", "optimized_attention", "optimized_attention_masked")
_PICTURE_NAMES = ("attention_function_single_head_spatial", "attention_function_vae", "vae_attention")


def marked() -> dict[str, Callable[..., Any]]:
    """Return what the names of attention stand for when its way of working is left open."""
    return dict.fromkeys(_NAMES, tokens) | dict.fromkeys(_PICTURE_NAMES, picture)


def fixed() -> dict[str, Callable[..., Any]]:
    """Return what the names of attention stand for when it is fused."""
    return dict.fromkeys(_NAMES, fused) | dict.fromkeys(_PICTURE_NAMES, picture)


def tokens(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None, *rest: Any, **named: Any) -> Tensor:
    """Return attention over [batch, tokens, heads × size], its way left open where it can be."""
    if mask is not None or named.get("skip_reshape") or named.get("skip_output_reshape") or q.dim() != 3:
        return fused(q, k, v, heads, mask, *rest, **named)
    return mark_attention(q, k, v, heads)


def picture(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return single-head attention over [batch, channels, rows, columns], its way left open."""
    return mark_attention(q, k, v, 1, picture=True)


def fused(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None, *rest: Any, **named: Any) -> Tensor:
    """Return torch's fused attention in the hosts' form.

    ``skip_reshape``: the three come as [batch, heads, tokens, size]; ``skip_output_reshape``: so does the result.
    """
    if not named.get("skip_reshape"):
        batch, _, width = q.shape
        q, k, v = (item.view(batch, -1, heads, width // heads).transpose(1, 2) for item in (q, k, v))
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())] if mask.dim() == 2 else mask.unsqueeze(1) if mask.dim() == 3 else mask
    result = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if named.get("skip_output_reshape"):
        return result
    return result.transpose(1, 2).reshape(q.shape[0], -1, heads * v.shape[-1])


# the same for modules whose own forward computes attention (A1111 puts its ways into the classes)


def cross_attention(layer: Any, x: Tensor, context: Tensor | None = None, *rest: Any, **named: Any) -> Tensor:
    """Return a ``CrossAttention`` layer's result."""
    source = x if context is None else context
    operands = [layer.to_q(x), layer.to_k(source), layer.to_v(source)]
    return layer.to_out(mark_attention(*operands, layer.heads))


def picture_attention(layer: Any, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    """Return the result of a VAE's attention layer."""
    h = layer.norm(x)
    operands = [layer.q(h), layer.k(h), layer.v(h)]
    h = mark_attention(*operands, 1, picture=True)
    h = layer.proj_out(h)
    return x + h
