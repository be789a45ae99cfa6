"""What AUTOMATIC1111 has loaded, for the tracer.

It puts its way of attention into the classes of ``ldm`` and ``sgm`` as their ``forward``; the
tracer leaves the way open instead. The UNet and the VAE's encoder run under autocast.
"""

from __future__ import annotations

from typing import Any

import torch

from lib_vram.host import attending, traced_ldm
from lib_vram.host.tracing import LoadedModel, LoadedPart
from lib_vram.physics.program import Setting

METHODS = {
    "CrossAttention": attending.cross_attention,
    "MemoryEfficientCrossAttention": attending.cross_attention,
    "AttnBlock": attending.picture_attention,
    "MemoryEfficientAttnBlock": attending.picture_attention,
}


SETTINGS = (Setting(2, 104, 72), Setting(4, 56, 88), Setting(6, 40, 48), Setting(3, 48, 104))
CHECKED = Setting(1, 96, 32)
"""Sizes of whole multiples of 64 pixels: at others the UNet's skips are resized by more events than at these."""


def loaded(sd_model: Any, family: str, host: str) -> LoadedModel | None:
    """Return the parts of ``sd_model``, ``None`` while it is not a loaded model. ``host`` is its name and version."""
    wrapper, vae = getattr(sd_model, "model", None), getattr(sd_model, "first_stage_model", None)
    unet = getattr(wrapper, "diffusion_model", None)
    if unet is None or vae is None:
        return None
    return LoadedModel(family, "a1111", host, (
        traced_ldm.denoiser(unet, autocast=True, methods=METHODS, settings=SETTINGS, checked=CHECKED),
        LoadedPart("vae_decode", vae, _decode, dtypes=traced_ldm.VAE_DTYPES, methods=METHODS),
        LoadedPart("vae_encode", vae, _encode, dtypes=traced_ldm.VAE_DTYPES, methods=METHODS, autocast=True),
    ))  # fmt: skip


def _decode(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    channels = int(vae.decoder.conv_in.weight.shape[1])
    z = torch.empty(at.batch, channels, at.rows, at.columns, dtype=dtype, device="meta")
    return vae.decoder(vae.post_quant_conv(z))


def _encode(vae: Any, at: Setting, dtype: torch.dtype) -> object:
    """Return the latent of a picture, with the noise that A1111 makes on the CPU."""
    picture = torch.empty(at.batch, 3, at.rows * 8, at.columns * 8, dtype=dtype, device="meta")
    mean, log_variance = torch.chunk(vae.quant_conv(vae.encoder(picture)), 2, dim=1)
    log_variance = torch.clamp(log_variance, -30.0, 20.0)
    deviation = torch.exp(0.5 * log_variance)
    variance = torch.exp(log_variance)
    result = mean + deviation * torch.empty(mean.shape, device="meta")
    del variance
    return result
