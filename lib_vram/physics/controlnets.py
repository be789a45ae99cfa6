"""The ControlNets that have been published: which there are of a family, how large, and what they hand to the model.

Several of different depth are published for Flux.1 and Z-Image. The first of a family stands for it; a file's size
tells the others. Weights are counted in the modules that were traced, and agree with the published files' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lib_vram.request import Family

LATENT_FACTOR = 8
"""Pixels of the picture per row of the latent of a UNet."""
TOKEN_PIXELS = 16
"""Pixels of a side that make one token of a transformer that has ControlNets."""


LORA = "lora"
"""The variant that is a Control-LoRA: the UNet's own weights with products of rank 256 added, and a file of 774 MB for
SDXL. Its peak does not depend on the rank."""


@dataclass(frozen=True)
class ControlNetShape:
    """One published ControlNet. ``results`` of ``width`` numbers a token go to the transformer; of a UNet's none here.

    ``text_tokens`` are those that lie beside the picture's in a result.
    """

    variant: str
    parameters: int
    results: int = 0
    width: int = 0
    text_tokens: int = 0


CONTROLNETS: Mapping[Family, tuple[ControlNetShape, ...]] = {
    "sd15": (ControlNetShape("", 361_279_120), ControlNetShape(LORA, 122_921_888)),
    "sd21": (ControlNetShape("", 364_228_240), ControlNetShape(LORA, 123_839_392)),
    "sdxl": (ControlNetShape("", 1_251_014_160), ControlNetShape(LORA, 387_148_576)),
    "flux1": (
        ControlNetShape("", 3_301_956_608, 15, 3072),
        ControlNetShape("union2", 2_140_876_800, 6, 3072),
        ControlNetShape("single", 1_791_605_248, 5, 3072),
        ControlNetShape("xlabs", 743_790_592, 2, 3072),
    ),
    "sd35_medium": (ControlNetShape("", 2_238_455_680, 23, 1536),),
    "sd35_large": (ControlNetShape("", 2_153_518_976, 19, 2432),),
    "qwen_image": (ControlNetShape("", 1_768_003_584, 5, 3072),),
    "zimage": (
        ControlNetShape("", 3_356_225_792, 15, 3840, 512),
        ControlNetShape("fun1", 1_550_778_368, 6, 3840, 512),
        ControlNetShape("lite", 1_008_308_480, 3, 3840, 512),
    ),
    "wan21_1b": (ControlNetShape("", 734_975_232, 15, 1536),),
    "wan21_14b": (ControlNetShape("", 3_049_101_312, 8, 5120),),
}
"""Flux.1: InstantX' and Shakker's unions (6.6 and 4.3 GB), InstantX' single ones (3.6 GB), XLabs' (1.5 GB). SD 3.5:
TensorArt's of medium (4.9 GB with its table of positions), Stability's of large. Qwen-Image: InstantX' union. Z-Image:
Fun's unions 2.1 (6.7 GB), 1.0 (3.1 GB), 2.1 lite (2.0 GB). Wan: VACE's blocks. SDXL's unions (ProMax) peak where its
others do, traced in Forge Neo's code, and weigh 0.5 % more."""

UNET_LEVELS: Mapping[Family, tuple[tuple[int, int], ...]] = {
    **dict.fromkeys(("sd15", "sd21"), (
        (320, 1), (320, 1), (320, 1), (320, 2), (640, 2), (640, 2), (640, 4),
        (1280, 4), (1280, 4), (1280, 8), (1280, 8), (1280, 8), (1280, 8),
    )),
    "sdxl": (
        (320, 1), (320, 1), (320, 1), (320, 2), (640, 2), (640, 2), (640, 4), (1280, 4), (1280, 4), (1280, 4),
    ),
}  # fmt: skip
"""What a ControlNet hands to a UNet: channels and halving of the latent, per input block and the middle one."""


def shape_of(family: Family, variant: str = "") -> ControlNetShape | None:
    """Return the ControlNet of ``family`` called ``variant``, ``None`` where none is known."""
    return next((shape for shape in CONTROLNETS.get(family, ()) if shape.variant == variant), None)


def variant_of(family: Family, file_bytes: int | None) -> str:
    """Return which of the published ControlNets of ``family`` has a file of about ``file_bytes``, in half precision.

    "" where the size is not known, or there is only one.
    """
    shapes = [shape for shape in CONTROLNETS.get(family, ()) if shape.variant != LORA]
    if not file_bytes or not shapes:
        return ""
    return min(shapes, key=lambda shape: abs(2 * shape.parameters - file_bytes)).variant


def variants(family: Family) -> tuple[str, ...]:
    """Return the names of the published ControlNets of ``family``, without the one that stands for them."""
    return tuple(shape.variant for shape in CONTROLNETS.get(family, ()) if shape.variant)


def result_numbers(family: Family, variant: str, width: int, height: int, latent_frames: int) -> int:
    """Return how many numbers a ControlNet hands to the model for one picture, or video, of that size in pixels."""
    if family in UNET_LEVELS:
        rows, columns = height // LATENT_FACTOR, width // LATENT_FACTOR
        return sum(channels * -(-rows // by) * -(-columns // by) for channels, by in UNET_LEVELS[family])
    shape = shape_of(family, variant)
    if shape is None:
        return 0
    tokens = latent_frames * -(-width // TOKEN_PIXELS) * -(-height // TOKEN_PIXELS) + shape.text_tokens
    return shape.results * shape.width * tokens
