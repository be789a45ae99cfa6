"""The shape of every family: how its latent lies to the picture, and which encoders and VAE it comes with.

Figures are those of the published model configurations (``config.json`` of each model's own repository).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lib_vram.request import Dtype, Family

Vae = Literal["sd15", "flux1", "flux2", "wan", "loaded"]
"""VAEs by the family that they are stored under: 4 channels, 16, 32 folded in 2×2, and 3-D with 16."""

LOADED: Family = "loaded"
"""The loaded model of an architecture that has no name here."""


@dataclass(frozen=True)
class Encoder:
    """One text encoder and how many tokens the family's prompts have: what the pipelines pad or cut to."""

    name: str
    tokens: int


@dataclass(frozen=True)
class FamilyShape:
    """One family. ``latent_pixels`` is how many pixels of the picture make a row or column of the denoiser's latent."""

    vae: Vae
    encoders: tuple[Encoder, ...]
    latent_pixels: int = 8
    latent_channels: int = 16
    dtype: Dtype = "bf16"
    """The type in which the hosts compute it."""
    halves: bool = True
    """Whether an unconditional half is the custom: not for models with distilled guidance."""
    frames_per_latent: int = 1
    """Frames of a video per frame of its latent, after the first."""
    transformer: bool = True

    def latent_frames(self, frames: int) -> int:
        """Return how many frames the latent of ``frames`` frames has."""
        return 1 + (frames - 1) // self.frames_per_latent


_CLIP_L, _CLIP_G = Encoder("clip_l", 77), Encoder("clip_g", 77)


def _unet(*encoders: Encoder) -> FamilyShape:
    return FamilyShape("sd15", encoders, latent_channels=4, dtype="fp16", transformer=False)


SHAPES: dict[Family, FamilyShape] = {
    "sd15": _unet(_CLIP_L),
    "sd21": _unet(Encoder("open_clip_h", 77)),
    "sdxl": _unet(_CLIP_L, _CLIP_G),
    "sdxl_refiner": _unet(_CLIP_G),
    "sd35_medium": FamilyShape("flux1", (_CLIP_L, _CLIP_G, Encoder("t5_xxl", 256)), dtype="fp16"),
    "sd35_large": FamilyShape("flux1", (_CLIP_L, _CLIP_G, Encoder("t5_xxl", 256)), dtype="fp16"),
    "flux1": FamilyShape("flux1", (_CLIP_L, Encoder("t5_xxl", 512)), halves=False),
    "chroma": FamilyShape("flux1", (Encoder("t5_xxl", 512),)),
    "flux2_klein_4b": FamilyShape("flux2", (Encoder("qwen3_4b", 512),), 16, 128, halves=False),
    "flux2_klein_9b": FamilyShape("flux2", (Encoder("qwen3_8b", 512),), 16, 128, halves=False),
    "qwen_image": FamilyShape("wan", (Encoder("qwen25_vl_7b", 512),)),
    "zimage": FamilyShape("flux1", (Encoder("qwen3_4b", 512),), halves=False),
    "lumina2": FamilyShape("flux1", (Encoder("gemma2_2b", 256),)),
    "wan21_1b": FamilyShape("wan", (Encoder("umt5_xxl", 512),), frames_per_latent=4),
    "wan21_14b": FamilyShape("wan", (Encoder("umt5_xxl", 512),), frames_per_latent=4),
    LOADED: FamilyShape("loaded", ()),
}
"""Of a loaded model without a name nothing is known but its trace, which is made in cells of 8 × 8 pixels."""
