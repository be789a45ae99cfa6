"""What Forge Neo has loaded, for the tracer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lib_vram.host import traced_ldm
from lib_vram.host.tracing import LoadedModel, LoadedPart
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.program import Setting


def loaded(sd_model: Any, family: str, host: str) -> LoadedModel | None:
    """Return the parts of ``sd_model``, ``None`` while it is not a loaded model. ``host`` is its name and version."""
    objects = getattr(sd_model, "forge_objects", None)
    if objects is None or objects.unet is None or objects.vae is None:
        return None
    shape = SHAPES.get(family)
    style = "neo" if shape is None or shape.transformer else "forge"  # its UNet and its VAE are Forge's own code
    denoiser = traced_ldm.denoiser(objects.unet.model.diffusion_model)
    vae = objects.vae.first_stage_model
    halved = family == LOADED and type(vae).__name__ == FOLDED
    text = traced_ldm.text_parts(objects) if family == LOADED else ()
    vae_work = halved_vae_parts(vae) if halved else vae_parts(vae)
    return LoadedModel(family, style, host, (denoiser, *vae_work, *text))


FOLDED = "AutoencoderKLFlux2"
"""The VAE that folds four cells of its latent into one."""


def halved_vae_parts(vae: nn.Module) -> tuple[LoadedPart, ...]:
    """Return the work of Flux.2's VAE in cells of 8 × 8 pixels, as those of a model without a name are counted."""
    _, encode = traced_ldm.vae_parts(vae)
    return (LoadedPart("vae_decode", vae, _decode_folded, dtypes=traced_ldm.VAE_DTYPES), encode)


def _decode_folded(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    channels = 4 * int(vae.decoder.conv_in.weight.shape[1])
    return vae.decode(torch.empty(at.batch, channels, at.rows // 2, at.columns // 2, dtype=dtype, device="meta"))


def vae_parts(vae: nn.Module) -> tuple[LoadedPart, ...]:
    """Return the VAE's work; those of Wan and Qwen have latents with frames."""
    if hasattr(vae.decoder, "conv_in"):
        return traced_ldm.vae_parts(vae)
    return (
        LoadedPart("vae_decode", vae, _decode_frames, dtypes=traced_ldm.VAE_DTYPES),
        LoadedPart("vae_encode", vae, _encode_frames, dtypes=traced_ldm.VAE_DTYPES),
    )


def _decode_frames(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    latent = torch.empty(at.batch, int(vae.z_dim), at.frames, at.rows, at.columns, dtype=dtype, device="meta")
    return vae.decode(latent)


def _encode_frames(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    frames = 1 + 4 * (at.frames - 1)
    picture = torch.empty(at.batch, 3, frames, at.rows * 8, at.columns * 8, dtype=dtype, device="meta")
    return vae.encode(picture)
