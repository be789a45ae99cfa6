"""What a layer with quantised or otherwise stored weights takes on top, while it is computed.

The hosts make a layer's weights whole in the compute type right before they multiply with them, one layer at a time,
and drop them after it. How many bytes that takes at its peak depends on the code that unpacks: it was run for every
type on ``meta`` tensors under :mod:`lib_vram.physics.trace` (Forge dfdcbab and Forge Neo 2.26, torch 2.13; layers of
3072 × 3072 and 12288 × 3072, the same bytes per weight at both; the two hosts agree). The code:
``dequantize_pytorch`` in ``gguf/quants.py``, ``weights_manual_cast`` in ``backend/operations.py``, and bitsandbytes'
``dequantize_4bit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from lib_vram.physics.allocator import rounded
from lib_vram.request import Dtype

LARGEST_LAYER: Mapping[tuple[str, str], int] = {
    **dict.fromkeys((("sd15", "denoise"), ("sd21", "denoise"), ("sdxl", "denoise")), 29_491_200),
    **dict.fromkeys((("sd15", "controlnet"), ("sd21", "controlnet"), ("sdxl", "controlnet")), 14_745_600),
    ("sdxl_refiner", "denoise"): 42_467_328,
    **dict.fromkeys((("flux1", "denoise"), ("flux1", "controlnet"), ("chroma", "denoise")), 66_060_288),
    **dict.fromkeys((("qwen_image", "denoise"), ("qwen_image", "controlnet")), 56_623_104),
    ("flux2_klein_4b", "denoise"): 84_934_656,
    ("flux2_klein_9b", "denoise"): 150_994_944,
    **dict.fromkeys((("sd35_medium", "denoise"), ("sd35_medium", "controlnet")), 21_233_664),
    **dict.fromkeys((("sd35_large", "denoise"), ("sd35_large", "controlnet")), 35_487_744),
    **dict.fromkeys((("zimage", "denoise"), ("zimage", "controlnet")), 39_321_600),
    ("lumina2", "denoise"): 21_233_664,
    **dict.fromkeys((("wan21_1b", "denoise"), ("wan21_1b", "controlnet")), 14_155_776),
    **dict.fromkeys((("wan21_14b", "denoise"), ("wan21_14b", "controlnet")), 157_286_400),
    **{(vae, part): 2_359_296 for vae in ("sd15", "flux1", "flux2") for part in ("vae_decode", "vae_encode")},
    **dict.fromkeys((("wan", "vae_decode"), ("wan", "vae_encode")), 3_981_312),
    ("sd15", "text_encode"): 2_359_296,
    ("sd21", "text_encode"): 4_194_304,
    **dict.fromkeys((("sdxl", "text_encode"), ("sdxl_refiner", "text_encode")), 6_553_600),
    **{
        (family, "text_encode"): 41_943_040
        for family in ("sd35_medium", "sd35_large", "flux1", "chroma", "wan21_1b", "wan21_14b")
    },
    **dict.fromkeys((("flux2_klein_4b", "text_encode"), ("zimage", "text_encode")), 24_903_680),
    ("flux2_klein_9b", "text_encode"): 50_331_648,
    ("qwen_image", "text_encode"): 67_895_296,
    ("lumina2", "text_encode"): 21_233_664,
}
"""Weights of the largest layer that each part multiplies with, VAEs by the name that they are stored under. Counted in
diffusers' and transformers' modules (0.36 and 4.57), and in Forge's for Flux.1 and Chroma, which have larger ones."""

ITEM_BYTES: Mapping[str, int] = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}

_UNPACKING: Mapping[str, tuple[Fraction, Fraction]] = {
    "q4_0": (Fraction(3), Fraction(3)),
    "q4_1": (Fraction(5), Fraction(5)),
    "q5_0": (Fraction(10), Fraction(161, 16)),
    "q5_1": (Fraction(10), Fraction(81, 8)),
    "q8_0": (Fraction(2), Fraction(2)),
    "q2_k": (Fraction(21, 4), Fraction(337, 64)),
    "q3_k": (Fraction(85, 16), Fraction(681, 128)),
    "q4_k": (Fraction(5), Fraction(5)),
    "q5_k": (Fraction(115, 16), Fraction(921, 128)),
    "q6_k": (Fraction(21, 4), Fraction(21, 4)),
}
"""Bytes per weight at the peak of unpacking a GGUF type to fp16 and to bf16, the whole weights (2 bytes) included."""
_HALF_BYTES = 2
"""GGUF weights are unpacked to half precision, also where the host computes in fp32."""
_NESTED_SCALE = Fraction(4, 64)
"""bitsandbytes' scales quantised again ("nested") are made fp32 first: one for 64 weights."""
_AS_STORED = frozenset(("int8", "int4", "nvfp4"))
"""Multiplied with as they are: Neo's int8 and NVFP4 kernels and SVDQuant's quantise the input instead."""


def scratch_bytes(
    weights_dtype: str, layer_parameters: int, compute_dtype: Dtype, *, nested: bool = False, scaled: bool = False
) -> int:
    """Return what a layer of ``layer_parameters`` weights takes on top at its peak, in bytes.

    ``weights_dtype`` is the storage type as the header names it (``q4_k``, ``nf4``, ``fp8``, …); ``nested`` says that
    bitsandbytes' scales are quantised too, ``scaled`` that fp8 weights have a scale to be multiplied with.

    Raises:
        ValueError: no host unpacks this type (``iq4_xs``, for instance).
    """
    whole = held_bytes(weights_dtype, layer_parameters, compute_dtype)
    if weights_dtype in _UNPACKING:
        unpacking = _UNPACKING[weights_dtype][compute_dtype == "bf16"]
        half = rounded(_HALF_BYTES * layer_parameters)
        cast_too = half + whole if compute_dtype == "fp32" else 0
        return max(rounded(_ceil(unpacking * layer_parameters)), cast_too)
    if nested and weights_dtype in ("nf4", "fp4"):
        return whole + rounded(_ceil(_NESTED_SCALE * layer_parameters))
    return 2 * whole if scaled and weights_dtype == "fp8" else whole


def held_bytes(weights_dtype: str, layer_parameters: int, compute_dtype: Dtype) -> int:
    """Return what of :func:`scratch_bytes` is still there while the layer multiplies: its whole weights, in bytes.

    0 where the weights are used as they are stored.

    Raises:
        ValueError: no host unpacks this type.
    """
    if weights_dtype == compute_dtype or weights_dtype in _AS_STORED:
        return 0
    if weights_dtype in ITEM_BYTES or weights_dtype in _UNPACKING or weights_dtype in ("nf4", "fp4"):
        return rounded(ITEM_BYTES[compute_dtype] * layer_parameters)
    raise ValueError(f"no host unpacks weights of the type {weights_dtype}")


def _ceil(number: Fraction) -> int:
    return -int(-number // 1)
