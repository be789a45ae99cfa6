"""What Forge has loaded, for the tracer. reForge and Classic keep theirs in the same places."""

from __future__ import annotations

from typing import Any

from lib_vram.host import traced_ldm
from lib_vram.host.tracing import LoadedModel
from lib_vram.physics.families import LOADED


def loaded(sd_model: Any, family: str, host: str) -> LoadedModel | None:
    """Return the parts of ``sd_model``, ``None`` while it is not a loaded model. ``host`` is its name and version."""
    objects = getattr(sd_model, "forge_objects", None)
    if objects is None or objects.unet is None or objects.vae is None:
        return None
    parts = (traced_ldm.denoiser(objects.unet.model.diffusion_model),
             *traced_ldm.vae_parts(objects.vae.first_stage_model))  # fmt: skip
    if family == LOADED:
        parts = (*parts, *traced_ldm.text_parts(objects))
    return LoadedModel(family, "forge", host, parts)
