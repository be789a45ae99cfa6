"""Attention as each host writes it, in plain torch, for fresh traces.

What is shipped replays attention from the steps in ``lib_vram/physics/attention.py``; this is
the same written as code that runs, so that one can be checked against the other. ``operands``
is a list of query, key and value, which code that drops them on the way empties, and which lives
until the layer around attention ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lib_vram.physics.attention import PLENTY, WAYS, Call
from lib_vram.physics.trace import live_bytes

SCALE = 0.125


@dataclass(frozen=True)
class Attend:
    """One host's way of computing attention on a device with ``free_bytes`` free before the part starts."""

    host: str
    kind: str
    free_bytes: int = PLENTY

    def tokens(self, operands: list[Tensor], heads: int) -> Tensor:
        """Return attention over tokens; the three are [batch, tokens, heads × size]."""
        query, key = operands[:2]
        batch, queries, width = query.shape
        call = Call(batch, heads, queries, key.shape[1], width // heads, query.element_size(), 0)
        del query, key
        return TOKENS[self.host, self.kind](operands, heads, self._part(call))

    def picture(self, operands: list[Tensor]) -> Tensor:
        """Return single-head attention over a picture; the three are [batch, channels, rows, columns]."""
        query = operands[0]
        area = query[0, 0].numel()
        call = Call(query.shape[0], 1, area, area, query.shape[1], query.element_size(), 1)
        del query
        return PICTURES[self.host, self.kind](operands, self._part(call))

    def _part(self, call: Call) -> int:
        part = WAYS[self.host][self.kind].part
        return part(call, self.free_bytes - live_bytes()) if part else call.queries


def fused(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """Torch's scaled dot product attention."""
    batch, tokens, width = operands[0].shape
    q, k, v = (item.view(batch, -1, heads, width // heads).transpose(1, 2) for item in operands)
    result = functional.scaled_dot_product_attention(q, k, v)
    return result.transpose(1, 2).reshape(batch, tokens, width)


def fused_without_log(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """xformers' memory-efficient attention."""
    return torch.empty_like(operands[0])


def _by_head(item: Tensor, heads: int) -> Tensor:
    batch, tokens, width = item.shape
    size = width // heads
    return item.view(batch, tokens, heads, size).transpose(1, 2).reshape(batch * heads, tokens, size)


def _by_token(item: Tensor, heads: int) -> Tensor:
    _, tokens, size = item.shape
    return item.view(-1, heads, tokens, size).transpose(1, 2).reshape(-1, tokens, heads * size)


def forge_plain(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """Forge's attention with the whole score matrix."""
    q, k, v = (_by_head(item, heads).contiguous() for item in operands)
    scores = torch.bmm(q, k.transpose(1, 2)) * SCALE
    del q, k
    scores = scores.softmax(dim=-1)
    result = torch.bmm(scores, v)
    return _by_token(result, heads)


def _fp32_softmax(scores: Tensor) -> Tensor:
    """Return probabilities in fp32, written by one kernel, as CUDA does under autocast."""
    return torch.empty(scores.shape, dtype=torch.float32, device=scores.device)


def a1111_plain(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """AUTOMATIC1111's attention with the whole score matrix, under autocast."""
    q, k, v = [_by_head(item, heads) for item in operands]
    operands.clear()
    scores = torch.bmm(q, k.transpose(1, 2)) * SCALE
    if scores.dtype == torch.float32:
        weights = scores.softmax(dim=-1)
        result = torch.bmm(weights, v)
    else:
        weights = _fp32_softmax(scores)
        result = torch.bmm(weights.to(v.dtype), v)
    operands += [q, k, v, scores, weights]
    return _by_token(result, heads)


def forge_split(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """Forge's split attention."""
    q, k, v = (_by_head(item, heads).contiguous() for item in operands)
    result = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for start in range(0, q.shape[1], part):
        scores = torch.bmm(q[:, start : start + part], k.transpose(1, 2)) * SCALE
        weights = scores.softmax(dim=-1)
        del scores
        result[:, start : start + part] = torch.bmm(weights, v)
        del weights
    del q, k, v
    return _by_token(result, heads)


def a1111_split(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """AUTOMATIC1111's split attention (Doggettx)."""
    operands[1] = operands[1] * SCALE
    q, k, v = [_by_head(item, heads) for item in operands]
    operands.clear()
    result = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for start in range(0, q.shape[1], part):
        scores = torch.bmm(q[:, start : start + part], k.transpose(1, 2))
        weights = scores.softmax(dim=-1)
        del scores
        result[:, start : start + part] = torch.bmm(weights, v)
        del weights
    del q, k, v
    return _by_token(result, heads)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return torch.baddbmm(torch.empty(1, 1, 1, dtype=query.dtype, device=query.device), query, key, beta=0, alpha=SCALE)


def forge_sub_quad(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """Forge's sub-quadratic attention, all keys at a time."""
    q, v, k = (_by_head(operands[index], heads) for index in (0, 2, 1))

    def chunk(query: Tensor) -> Tensor:
        scores = _scores(query, k.transpose(1, 2))
        weights = scores.softmax(dim=-1)
        del scores
        return torch.bmm(weights, v)

    pieces = [chunk(q[:, start : start + part]) for start in range(0, q.shape[1], part)]
    result = torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0]
    pieces.clear()
    return _by_token(result, heads)


def _a1111_chunks(q: Tensor, k: Tensor, v: Tensor, part: int, *, autocast: bool) -> Tensor:
    def chunk(query: Tensor) -> Tensor:
        scores = _scores(query, k.transpose(1, 2))
        if not autocast:
            weights = scores.softmax(dim=-1)
            del scores
            return torch.bmm(weights, v)
        weights = _fp32_softmax(scores)
        del scores
        values = v.to(weights.dtype)
        return torch.bmm(weights.to(q.dtype), values.to(q.dtype))

    if q.shape[1] <= part:
        return chunk(q)
    result = torch.zeros_like(q)
    for start in range(0, q.shape[1], part):
        piece = chunk(q[:, start : start + part])
        result[:, start : start + part] = piece
    return result


def a1111_sub_quad(operands: list[Tensor], heads: int, part: int) -> Tensor:
    """AUTOMATIC1111's sub-quadratic attention, all keys at a time, under autocast."""
    for index in range(3):
        operands[index] = _by_head(operands[index], heads)
    q, k, v = operands
    return _by_token(_a1111_chunks(q, k, v, part, autocast=q.dtype != torch.float32), heads)


def fused_picture(operands: list[Tensor], part: int) -> Tensor:
    """Torch's fused attention over a picture, as Forge calls it."""
    batch, channels, rows, columns = operands[0].shape
    q, k, v = (item.view(batch, 1, channels, -1).transpose(2, 3).contiguous() for item in operands)
    result = functional.scaled_dot_product_attention(q, k, v)
    return result.transpose(2, 3).reshape(batch, channels, rows, columns)


def _copied(operands: list[Tensor]) -> tuple[int, ...]:
    """Turn the operands into [batch, positions, channels] one after the other; return the picture's shape."""
    shape = tuple(operands[0].shape)
    for index in range(3):
        operands[index] = operands[index].flatten(2).transpose(1, 2).contiguous()
    return shape


def a1111_xformers_picture(operands: list[Tensor], part: int) -> Tensor:
    """xformers' attention over a picture, as AUTOMATIC1111 calls it."""
    shape = _copied(operands)
    return torch.empty_like(operands[0]).transpose(1, 2).view(shape)


def a1111_sdpa_picture(operands: list[Tensor], part: int) -> Tensor:
    """Torch's attention on three-dimensional tensors: the unfused path of torch 2.1, which AUTOMATIC1111 1.10 pins."""
    shape = _copied(operands)
    q, k, v = operands
    scaled = q * SCALE
    weights = torch.bmm(scaled, (k * SCALE).transpose(1, 2))
    weights = weights.softmax(dim=-1)
    return torch.bmm(weights, v).transpose(1, 2).view(shape)


def a1111_sub_quad_picture(operands: list[Tensor], part: int) -> Tensor:
    """AUTOMATIC1111's sub-quadratic attention over a picture."""
    shape = _copied(operands)
    result = _a1111_chunks(*operands, part, autocast=False)
    return result.transpose(1, 2).view(shape)


def sliced_picture(operands: list[Tensor], part: int) -> Tensor:
    """Slices of the score matrix, into a result that is there from the start."""
    q, k, v = (item.flatten(2) for item in operands)
    result = torch.zeros_like(k)
    for start in range(0, q.shape[2], part):
        scores = torch.bmm(q.transpose(1, 2)[:, start : start + part], k)
        scaled = scores * SCALE
        del scores
        weights = scaled.softmax(dim=2)
        del scaled
        result[:, :, start : start + part] = torch.bmm(v, weights.transpose(1, 2))
        del weights
    return result.view(operands[0].shape)


def a1111_plain_picture(operands: list[Tensor], part: int) -> Tensor:
    """The ``ldm`` code's own attention over a picture."""
    q, k, v = (item.flatten(2) for item in operands)
    weights = torch.bmm(q.transpose(1, 2), k)
    weights = weights * SCALE
    weights = weights.softmax(dim=2)
    result = torch.bmm(v, weights.transpose(1, 2)).view(operands[0].shape)
    operands.append(weights)
    return result


TOKENS: dict[tuple[str, str], Callable[[list[Tensor], int, int], Tensor]] = {
    ("forge", "sdpa"): fused,
    ("forge", "xformers"): fused_without_log,
    ("forge", "math"): forge_plain,
    ("forge", "split"): forge_split,
    ("forge", "sub_quad"): forge_sub_quad,
    ("a1111", "sdpa"): fused,
    ("a1111", "xformers"): fused_without_log,
    ("a1111", "math"): a1111_plain,
    ("a1111", "split"): a1111_split,
    ("a1111", "sub_quad"): a1111_sub_quad,
}
PICTURES: dict[tuple[str, str], Callable[[list[Tensor], int], Tensor]] = {
    ("forge", "sdpa"): fused_picture,
    ("forge", "xformers"): fused_picture,
    ("forge", "math"): sliced_picture,
    ("forge", "split"): sliced_picture,
    ("forge", "sub_quad"): sliced_picture,
    ("a1111", "sdpa"): a1111_sdpa_picture,
    ("a1111", "xformers"): a1111_xformers_picture,
    ("a1111", "math"): a1111_plain_picture,
    ("a1111", "split"): sliced_picture,
    ("a1111", "sub_quad"): a1111_sub_quad_picture,
}
