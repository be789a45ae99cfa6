"""How the hosts call each class of model, with inputs on ``meta``; sizes are read off the model's own layers.

A class that is not here is called with what its ``forward`` names and its layers tell, if they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lib_vram.physics.program import Setting

PROMPT_TOKENS = 77
"""CLIP's window."""

T5_TOKENS = 256
"""To which Forge and Neo pad T5's tokens at the least."""

LLM_TOKENS = 128
"""Of a prompt of a few sentences in Qwen's, Gemma's or Mistral's tokens, which the hosts do not pad."""

WAN_TOKENS = 512
"""To which Wan's umT5 tokens are padded."""


def call(model: nn.Module, at: Setting, dtype: torch.dtype) -> object:
    """Run ``model``, a diffusion model's skeleton, once at ``at``.

    Raises:
        LookupError: its class is not known.
    """
    name = type(model).__name__
    if name not in _CALLS:
        raise LookupError(f"it is not known how {name} is called")
    return _CALLS[name](model, at, dtype)


def sizes(model: nn.Module) -> dict[str, Any]:
    """Return the sizes to trace ``model`` at, where the tracer's own would not do, as a part's arguments.

    Lumina's code pads the picture's tokens to a multiple: at these sizes it has none to add.
    """
    if type(model).__name__ != "NextDiT":
        return {}
    settings = (Setting(2, 96, 80), Setting(4, 64, 112), Setting(6, 48, 32), Setting(3, 80, 144))
    return {"settings": settings, "checked": Setting(1, 112, 48)}


def _latent(at: Setting, channels: int, dtype: torch.dtype, pixels: int = 1) -> Tensor:
    """Return the latent; ``pixels``: how many of the usual latent's rows one of this model's is."""
    return torch.empty(at.batch, channels, at.rows // pixels, at.columns // pixels, dtype=dtype, device="meta")


def _video(at: Setting, channels: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(at.batch, channels, at.frames, at.rows, at.columns, dtype=dtype, device="meta")


def _steps(at: Setting) -> Tensor:
    return torch.empty(at.batch, device="meta")


def _text(at: Setting, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(at.batch, tokens, width, dtype=dtype, device="meta")


def _vector(at: Setting, width: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(at.batch, width, dtype=dtype, device="meta")


def _inputs_of(layer: Any) -> int:
    return int(layer.weight.shape[1])


def context_width(model: nn.Module) -> int:
    """Return the width of the text that a UNet's cross-attention takes."""
    for name, module in model.named_modules():
        if name.endswith("attn2.to_k"):
            return _inputs_of(module)
    raise LookupError("a UNet without cross-attention")


def _unet(model: Any, at: Setting, dtype: torch.dtype) -> object:
    x = _latent(at, _inputs_of(model.input_blocks[0][0]), dtype)
    context = _text(at, PROMPT_TOKENS, context_width(model), dtype)
    label = getattr(model, "label_emb", None)
    steps = _steps(at)
    y = None if label is None else _vector(at, _inputs_of(label[0][0]), dtype)
    more = {} if type(model).__name__ == "UNetModel" else {"transformer_options": {}}
    return model(x, steps, context=context, y=y, **more)


def _flux(model: Any, at: Setting, dtype: torch.dtype) -> object:
    patch = int(getattr(model, "patch_size", 2))
    x = _latent(at, _inputs_of(model.img_in) // patch**2, dtype, 2 // patch)
    context = _text(at, LLM_TOKENS * 4 if patch == 1 else T5_TOKENS, _inputs_of(model.txt_in), dtype)
    steps = _steps(at)
    vector_in = getattr(model, "vector_in", None)
    y = None if vector_in is None else _vector(at, _inputs_of(vector_in.in_layer), dtype)
    guidance = _steps(at).to(dtype) if getattr(model, "guidance_embed", False) else None
    return model(x, steps, context, y=y, guidance=guidance)


def _chroma(model: Any, at: Setting, dtype: torch.dtype) -> object:
    """Without guidance: the code then makes its own, where it would ask one that is given for its value."""
    x = _latent(at, _inputs_of(model.img_in) // 4, dtype)
    return model(x, _steps(at), _text(at, T5_TOKENS, _inputs_of(model.txt_in), dtype))


def _sd3(model: Any, at: Setting, dtype: torch.dtype) -> object:
    x = _latent(at, _inputs_of(model.x_embedder.proj), dtype)
    context = _text(at, PROMPT_TOKENS + T5_TOKENS, _inputs_of(model.context_embedder), dtype)
    return model(x, _steps(at), y=_vector(at, _inputs_of(model.y_embedder.mlp[0]), dtype), context=context)


def _qwen(model: Any, at: Setting, dtype: torch.dtype) -> object:
    x = _video(at, _inputs_of(model.img_in) // 4, dtype)
    return model(x, _steps(at), _text(at, LLM_TOKENS, _inputs_of(model.txt_in), dtype))


def _lumina(model: Any, at: Setting, dtype: torch.dtype) -> object:
    patch = int(model.patch_size)
    x = _latent(at, _inputs_of(model.x_embedder) // patch**2, dtype)
    context = _text(at, LLM_TOKENS, _inputs_of(model.cap_embedder[-1]), dtype)
    return model(x, _steps(at), context, num_tokens=LLM_TOKENS)


def _wan(model: Any, at: Setting, dtype: torch.dtype) -> object:
    x = _video(at, int(model.in_dim), dtype)
    return model(x, _steps(at), _text(at, WAN_TOKENS, _inputs_of(model.text_embedding[0]), dtype))


def _anima(model: Any, at: Setting, dtype: torch.dtype) -> object:
    width = next(_inputs_of(module) for name, module in model.named_modules() if name.endswith("cross_attn.k_proj"))
    return model(_video(at, int(model.in_channels), dtype), _steps(at), _text(at, WAN_TOKENS, width, dtype))


def _ernie(model: Any, at: Setting, dtype: torch.dtype) -> object:
    width = int(model.hidden_size) if model.text_proj is None else _inputs_of(model.text_proj)
    x = _latent(at, _inputs_of(model.x_embedder.proj), dtype, 2)
    return model(x, _steps(at), _text(at, LLM_TOKENS, width, dtype))


def _krea(model: Any, at: Setting, dtype: torch.dtype) -> object:
    x = _latent(at, int(model.channels), dtype)
    return model(x, _steps(at), _text(at, LLM_TOKENS, int(model.txtlayers) * int(model.txtdim), dtype))


_CALLS: dict[str, Callable[[Any, Setting, torch.dtype], object]] = {
    "IntegratedUNet2DConditionModel": _unet,
    "UNetModel": _unet,
    "UNetModelWrapper": _unet,
    "IntegratedFluxTransformer2DModel": _flux,
    "IntegratedChromaTransformer2DModel": _chroma,
    "MMDiTX": _sd3,
    "QwenImageTransformer2DModel": _qwen,
    "NextDiT": _lumina,
    "WanModel": _wan,
    "Anima": _anima,
    "ErnieImageModel": _ernie,
    "SingleStreamDiT": _krea,
}
