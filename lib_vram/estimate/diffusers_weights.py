"""What a diffusers pipeline's modules have that the published files have not, and what its fp8 storage leaves out.

Counted with the modules of diffusers 0.36 and transformers 4.57 on ``meta``, in the sizes of the published
configurations; what fp8 leaves out by calling ``enable_layerwise_casting`` on them.
"""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.encoders import ENCODERS as COUNTS
from lib_vram.estimate.encoders import encoder_sizes
from lib_vram.estimate.flags import unet_dtype
from lib_vram.estimate.weights import ModelWeights
from lib_vram.physics.weights import weights_bytes
from lib_vram.request import Family, Request

MORE_PARAMETERS: dict[Family, int] = {"flux2_klein_4b": 10_223_616, "flux2_klein_9b": 17_825_792}
"""Klein is distilled without guidance, and its class makes an embedding of it all the same."""
FEWER_PARAMETERS = {"open_clip_h": 13_644_800}
"""SD 2.1's text encoder has 23 layers in diffusers, and 24 in its own file."""

LEFT_OUT_OF_FP8: dict[Family, int] = {
    "sd15": 200_320,
    "sd21": 200_320,
    "sdxl": 588_160,
    "sdxl_refiner": 460_032,
    "sd35_medium": 993_968_832,
    "sd35_large": 2_776_320_192,
    "flux1": 3_247_664_192,
    "chroma": 241_728,
    "flux2_klein_4b": 29_498_880,
    "flux2_klein_9b": 51_914_752,
    "qwen_image": 19_111_488,
    "zimage": 10_900_992,
    "lumina2": 267_442_624,
    "wan21_1b": 26_328_640,
    "wan21_14b": 235_177_024,
}
"""Weights that ``enable_layerwise_casting`` leaves in half precision: a byte more for each. Layers whose name has
``norm`` are left out, and Flux.1's and SD 3.5's modulations, a quarter of all weights, are called so."""
KEPT_IN_FP32: dict[str, int] = dict.fromkeys(("t5_xxl", "umt5_xxl"), 24 * 10_240 * 4_096)
"""Weights of T5's output projections, which transformers keeps in fp32 where the rest is loaded in fp16 or quantised
by bitsandbytes (``_keep_in_fp32_modules``): 1.9 GiB on top of fp16."""
BITSANDBYTES = ("nf4", "int8")
"""What quantises linear layers alone: tables of tokens stay in half precision."""


def as_counted(request: Request, weights: ModelWeights) -> ModelWeights:
    """Return ``weights`` as a pipeline has them on the card."""
    dtype, family = unet_dtype(request), request.model.family
    more = weights_bytes(MORE_PARAMETERS.get(family, 0), dtype) + (LEFT_OUT_OF_FP8[family] if dtype == "fp8" else 0)
    encoders = encoders_as_counted(request, weights.text_encoders_bytes)
    return replace(weights, unet_bytes=weights.unet_bytes + more, text_encoders_bytes=sum(encoders.values()))


def encoders_as_counted(request: Request, counted_bytes: int) -> dict[str, int]:
    """Return what each text encoder weighs on the card, in the order of calls, where their counts come to so much."""
    sizes = encoder_sizes(request, counted_bytes)
    return {name: max(0, size + _beyond_count(request, name)) for name, size in sizes.items()}


def _beyond_count(request: Request, name: str) -> int:
    named = next((item.dtype for item in request.text_encoders if item.name == name), None)
    dtype = named or ("fp32" if request.model.weights_dtype == "fp32" else request.model.weights_dtype)
    projections, tokens = KEPT_IN_FP32.get(name, 0), COUNTS[name].tokens
    if named in BITSANDBYTES:
        stored = weights_bytes(projections, named) + weights_bytes(tokens, named)
        return weights_bytes(projections, "fp32") + weights_bytes(tokens, "fp16") - stored
    fewer = weights_bytes(FEWER_PARAMETERS.get(name, 0), named or ("fp32" if dtype == "fp32" else "fp16"))
    return (weights_bytes(projections, "fp16") if dtype == "fp16" else 0) - fewer
