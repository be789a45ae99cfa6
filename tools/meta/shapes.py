"""The numbers of the models that are shipped, from their public configuration files."""

from __future__ import annotations

from tools.meta.clip import ClipShape
from tools.meta.unet import UNetShape

UNETS = {
    "sd15": UNetShape(multipliers=(1, 2, 4, 4), depths=(1, 1, 1, 0), middle_depth=1, context=768, heads=8),
    "sdxl": UNetShape(
        multipliers=(1, 2, 4), depths=(0, 2, 10), middle_depth=10, context=2048,
        head_size=64, pooled=2816, linear_projections=True,
    ),
}  # fmt: skip

CLIP_L = ClipShape(width=768, layers=12, heads=12)
CLIP_BIG_G = ClipShape(width=1280, layers=32, heads=20, projected=True)
TEXT_ENCODERS = {"sd15": (CLIP_L,), "sdxl": (CLIP_L, CLIP_BIG_G)}
