"""The parts that the hosts of the ``ldm`` line have loaded, in the form in which the tracer takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lib_vram.host import model_inputs, text_inputs
from lib_vram.host.tracing import LoadedPart
from lib_vram.physics.program import Setting

VAE_DTYPES = ("fp16", "fp32")
"""The VAE's type may change between generations: A1111 falls back to fp32 by itself."""


def denoiser(model: nn.Module, **more: Any) -> LoadedPart:
    """Return the diffusion model as a part."""
    return LoadedPart("denoise", model, model_inputs.call, **(model_inputs.sizes(model) | more))


def vae_parts(vae: nn.Module, **more: Any) -> tuple[LoadedPart, LoadedPart]:
    """Return the decoder's and the encoder's work; ``vae`` has ``decode`` and ``encode``."""
    return (
        LoadedPart("vae_decode", vae, _decode, dtypes=VAE_DTYPES, **more),
        LoadedPart("vae_encode", vae, _encode, dtypes=VAE_DTYPES, **more),
    )


def text_parts(objects: Any) -> tuple[LoadedPart, ...]:
    """Return the work of the text encoders in ``forge_objects``, all one after the other; none where there are none."""
    joint = getattr(getattr(objects, "clip", None), "cond_stage_model", None)
    return () if joint is None else (LoadedPart("text_encode", joint, text_inputs.encode),)


def _decode(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    channels = int(vae.decoder.conv_in.weight.shape[1])
    latent = torch.empty(at.batch, channels, at.rows, at.columns, dtype=dtype, device="meta")
    return vae.decode(latent)  # the hosts hold the latent meanwhile, as this function does


def _encode(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    picture = torch.empty(at.batch, 3, at.rows * 8, at.columns * 8, dtype=dtype, device="meta")
    return vae.encode(picture)
