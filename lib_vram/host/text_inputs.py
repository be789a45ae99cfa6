"""How the hosts call the text encoders that they have loaded, with tokens on ``meta``.

An encoder is told by what it has: CLIP's text model, T5's stack behind ``transformer``, or a language model with its
table of tokens, which is given embeddings and a mask. A prompt is as long as known models' are padded to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lib_vram.physics.program import Setting

CLIP_TOKENS = 77
LONG_TOKENS = 512
"""To which T5's prompts are padded for Flux and Wan, and those of language models for Flux.2 Klein."""
ADDED = "gives_fp32"
"""Attribute of a skeleton's tables that give fp32."""
ONE_BUT_LAST = -2
KEPT_EVERY = 3
"""Krea's engine keeps the results of every third layer, from the third on (``KREA2_TAP_LAYERS``)."""


def encode(joint: nn.Module, at: Setting, dtype: torch.dtype) -> list[object]:
    """Run every encoder in ``joint``, a skeleton of the hosts' ``cond_stage_model``, and keep each one's result.

    Raises:
        LookupError: an encoder is of no form that is known here.
    """
    return [_encode(encoder, at.batch) for encoder in joint.children()]


def _encode(encoder: Any, batch: int) -> object:
    inner = getattr(encoder, "transformer", None)
    if inner is not None and hasattr(inner, "text_model"):
        _in_fp32(inner.text_model)
        return inner(_tokens(batch, CLIP_TOKENS), output_hidden_states=True)
    if inner is not None:
        return inner(input_ids=_tokens(batch, LONG_TOKENS))
    if hasattr(encoder, "get_input_embeddings"):
        return _of_language_model(encoder, batch)
    raise LookupError(f"it is not known how {type(encoder).__name__} is called")


def _in_fp32(text_model: Any) -> None:
    """Have CLIP's tables give fp32, as the hosts keep them: all that follows is then computed in it, layer by layer.

    ``encode_with_transformers`` in their classic_engine.py.
    """
    tables = getattr(text_model, "embeddings", None)
    if tables is None or ADDED in vars(tables):
        return
    plain = tables.forward
    tables.__dict__[ADDED] = True
    tables.__dict__["forward"] = lambda *values, **named: plain(*values, **named).float()


def _of_language_model(encoder: Any, batch: int) -> object:
    tokens = _tokens(batch, LONG_TOKENS)
    embedded = encoder.get_input_embeddings()(tokens)
    counts = [LONG_TOKENS] * batch
    mask = torch.empty_like(tokens)
    return encoder(None, attention_mask=mask, embeds=embedded, num_tokens=counts, intermediate_output=_kept(encoder))


def _kept(encoder: Any) -> int | list[int] | None:
    """Return the layers whose results the host's engine takes; none where an adapter takes the last one's.

    The adapter itself (Anima's), smaller than the encoder and run after it, is left out.
    """
    if hasattr(encoder, "llm_adapter"):
        return None
    if type(encoder).__name__ != "Qwen3VL":
        return ONE_BUT_LAST
    return list(range(KEPT_EVERY - 1, len(encoder.model.layers), KEPT_EVERY))


def _tokens(batch: int, count: int) -> Tensor:
    return torch.empty(batch, count, dtype=torch.long, device="meta")
