"""The numbers of the models that are shipped, from their public configuration files."""

from __future__ import annotations

from tools.meta.clip import ClipShape
from tools.meta.unet import UNetShape
from tools.meta.vae import VaeShape

UNETS = {
    "sd15": UNetShape(multipliers=(1, 2, 4, 4), depths=(1, 1, 1, 0), middle_depth=1, context=768, heads=8),
    "sdxl": UNetShape(
        multipliers=(1, 2, 4), depths=(0, 2, 10), middle_depth=10, context=2048,
        head_size=64, pooled=2816, linear_projections=True,
    ),
    "sd21": UNetShape(
        multipliers=(1, 2, 4, 4), depths=(1, 1, 1, 0), middle_depth=1, context=1024,
        head_size=64, linear_projections=True,
    ),
    "sdxl_refiner": UNetShape(
        channels=384, multipliers=(1, 2, 4, 4), depths=(0, 4, 4, 0), middle_depth=4, context=1280,
        head_size=64, pooled=2560, linear_projections=True,
    ),
}  # fmt: skip

CLIP_L = ClipShape(width=768, layers=12, heads=12)
CLIP_BIG_G = ClipShape(width=1280, layers=32, heads=20, projected=True)
OPEN_CLIP_H = ClipShape(width=1024, layers=24, heads=16)
TEXT_ENCODERS = {
    "sd15": (CLIP_L,),
    "sdxl": (CLIP_L, CLIP_BIG_G),
    "sd21": (OPEN_CLIP_H,),
    "sdxl_refiner": (CLIP_BIG_G,),
}

VAES = {"sd15": VaeShape(), "flux1": VaeShape(latents=16, quant=False)}
"""By the family that the profile is stored under."""
