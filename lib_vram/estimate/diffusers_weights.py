"""What a diffusers pipeline's weights take beyond their count: unsplit ends of blocks, and layers that fp8 leaves out.

PyTorch's allocator leaves a parameter a block that is up to 1 MiB larger than it asks for. Under ``to("cuda")`` every
parameter is a block of its own, and of SDXL's half a thousand large ones that comes to 101 MiB: they count as
allocated. With expandable segments, or in the driver's own pool, there are no such ends.

Both tables were counted with the modules of diffusers 0.36 and transformers 4.57 on ``meta``, in the sizes of the
published configurations: the first by loading them into the replayed allocator, the second by calling
``enable_layerwise_casting`` on them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lib_vram.estimate.encoders import ENCODERS as COUNTS
from lib_vram.estimate.encoders import encoder_sizes
from lib_vram.estimate.flags import set_conf, unet_dtype
from lib_vram.estimate.weights import ModelWeights
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.families import SHAPES
from lib_vram.physics.weights import weights_bytes
from lib_vram.request import Family, Request


class Ends(NamedTuple):
    """Bytes beyond the count in half precision and in fp32."""

    half: int
    full: int


UNETS: dict[Family, Ends] = {
    "sd15": Ends(13_838_968, 18_574_576),
    "sd21": Ends(12_610_168, 19_377_392),
    "sdxl": Ends(106_067_448, 82_471_920),
    "sdxl_refiner": Ends(57_322_488, 32_702_960),
    "sd35_medium": Ends(36_223_104, 14_187_264),
    "sd35_large": Ends(393_569_664, 52_074_752),
    "flux1": Ends(1_087_872, 256),
    "chroma": Ends(61_312, 44_288),
    "flux2_klein_4b": Ends(22_559_744, 40_894_464),
    "flux2_klein_9b": Ends(35_672_064, 71_303_168),
    "qwen_image": Ends(1_634_688, 256),
    "zimage": Ends(106_972_544, 33_030_400),
    "lumina2": Ends(19_584, 94_379_776),
    "wan21_1b": Ends(1_573_248, 1_573_120),
    "wan21_14b": Ends(84_410_752, 1_048_832),
}
"""Denoisers. diffusers' Klein has some weights that the counted file has not."""
ENCODERS: dict[str, Ends] = {
    "clip_l": Ends(6_946_816, 0),
    "clip_g": Ends(0, 67_895_296),
    "open_clip_h": Ends(-27_289_600, -53_530_624),
    "t5_xxl": Ends(1_048_576, 0),
    "umt5_xxl": Ends(1_048_576, 0),
    "gemma2_2b": Ends(1_048_576, 81_788_928),
    "qwen25_vl_7b": Ends(44_564_480, 147_849_216),
    "qwen3_4b": Ends(56_772_608, 113_508_352),
    "qwen3_8b": Ends(1_067_008, 0),
}
"""Text encoders. SD 2.1's has 23 layers in diffusers, and 24 in its own file."""
VAES = {"wan": Ends(1_054_746, 22_744_628)}
KL = Ends(5_517_362, 1_837_668)
"""The VAEs of one picture, whose sizes hardly differ."""

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
HALVES = ("fp16", "bf16")
KEPT_IN_FP32: dict[str, int] = dict.fromkeys(("t5_xxl", "umt5_xxl"), 24 * 10_240 * 4_096)
"""Weights of T5's output projections, which transformers keeps in fp32 where the rest is loaded in fp16 or quantised
by bitsandbytes (``_keep_in_fp32_modules``): 1.9 GiB on top of fp16."""
BITSANDBYTES = ("nf4", "int8")
"""What quantises linear layers alone: tables of tokens stay in half precision."""


def as_loaded(request: Request, weights: ModelWeights) -> ModelWeights:
    """Return ``weights`` as a pipeline has them on the card, the VAE left as it is: see :func:`vae_ends_bytes`."""
    dtype, family = unet_dtype(request), request.model.family
    more = LEFT_OUT_OF_FP8[family] if dtype == "fp8" else 0
    more += _of(UNETS[family], dtype) if _has_ends(request) else 0
    encoders = encoders_as_loaded(request, weights.text_encoders_bytes)
    return replace(weights, unet_bytes=weights.unet_bytes + more, text_encoders_bytes=sum(encoders.values()))


def encoders_as_loaded(request: Request, counted_bytes: int) -> dict[str, int]:
    """Return what each text encoder takes on the card, in the order of calls, where their counts come to so much."""
    sizes = encoder_sizes(request, counted_bytes)
    return {name: max(0, size + _beyond_count(request, name)) for name, size in sizes.items()}


def _beyond_count(request: Request, name: str) -> int:
    named = next((item.dtype for item in request.text_encoders if item.name == name), None)
    dtype = named or ("fp32" if request.model.weights_dtype == "fp32" else request.model.weights_dtype)
    projections, tokens = KEPT_IN_FP32.get(name, 0), COUNTS[name].tokens
    if named in BITSANDBYTES:
        stored = weights_bytes(projections, named) + weights_bytes(tokens, named)
        return weights_bytes(projections, "fp32") + weights_bytes(tokens, "fp16") - stored
    ends = _of(ENCODERS[name], dtype if named or dtype == "fp32" else "fp16") if _has_ends(request) else 0
    return ends + (weights_bytes(projections, "fp16") if dtype == "fp16" else 0)


def vae_ends_bytes(request: Request, dtype: str) -> int:
    """Return the ends of the VAE's blocks in ``dtype``."""
    return _of(VAES.get(SHAPES[request.model.family].vae, KL), dtype) if _has_ends(request) else 0


def _of(ends: Ends, dtype: str) -> int:
    """Return the ends in ``dtype``; of quantised weights they are not known, and left out."""
    return ends.full if dtype == "fp32" else ends.half if dtype in HALVES else 0


def _has_ends(request: Request) -> bool:
    conf = AllocatorConf.parse(set_conf(request))
    return not conf.expandable and not conf.stream_ordered
