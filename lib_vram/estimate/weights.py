"""What a model's parts weigh on the device, from the checkpoint's header or from the family."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from lib_vram.errors import VramGuardError
from lib_vram.estimate.encoders import Inspect, encoders_of
from lib_vram.estimate.flags import has_flag, unet_dtype, vae_dtype
from lib_vram.estimate.loading import PARTS, Loads, loads_of
from lib_vram.message import Message, say
from lib_vram.model.inspect import Checkpoint, ComponentWeights, inspect_file
from lib_vram.physics.controlnets import shape_of
from lib_vram.physics.families import LOADED
from lib_vram.physics.weights import (
    BITS_PER_WEIGHT,
    FORGE_SDXL_TEXT_ENCODERS_BYTES,
    storage_type,
    weights_bytes,
)
from lib_vram.request import Dtype, Family, HostName, Request, WeightsDtype
from lib_vram.units import MIB

TEXT_ENCODERS_BYTES: dict[tuple[HostName, Family], int] = {
    ("forge", "sdxl"): FORGE_SDXL_TEXT_ENCODERS_BYTES,
    ("neo", "sdxl"): FORGE_SDXL_TEXT_ENCODERS_BYTES,
    ("neo", "sd15"): int(380.59 * MIB),
}
"""What hosts say in their log when they load the text encoders, where that is more than their parameters come to:
they keep the table of tokens in fp32 beside the rest. Neo's figure for SD 1.5 is from Neo 2.26 with torch 2.13 on a
CPU ("JointTextEncoder", fp16); that for SDXL is taken over from Forge, whose classes are the same."""


@dataclass(frozen=True)
class Architecture:
    """Parameter counts of one family, counted over the layers of its published configuration.

    ``block`` is the largest of the UNet's input, middle and output blocks (its middle block) together
    with what ``--lowvram`` leaves on the device beside it: the output layer and the label embedding.
    The ``*_layer`` figures are the largest single layer: what a swapped model brings in at a time.
    """

    unet: int
    block: int
    unet_layer: int
    text_encoders: int
    text_layer: int
    vae: int
    vae_layer: int


_KL_4, _KL_16, _FLUX2_VAE, _WAN_VAE = 83_653_863, 83_819_683, 84_046_115, 126_892_531
"""Weights of the VAEs, encoder and decoder."""
_KL_LAYER, _WAN_LAYER = 512 * 512 * 9, 384 * 384 * 27

ARCHITECTURES: dict[Family, Architecture] = {
    "sd15": Architecture(
        859_520_964, 97_038_080 + 12_164, 29_491_200, 123_060_480, 37_945_344, _KL_4, _KL_LAYER),
    "sd21": Architecture(
        865_910_724, 97_693_440 + 12_164, 29_491_200, 354_032_640, 50_593_792, _KL_4, _KL_LAYER),
    "sdxl": Architecture(
        2_567_463_684,
        413_117_440 + 5_257_604,
        29_491_200,
        123_060_480 + 694_659_841,
        49_408 * 1280,
        _KL_4,
        _KL_LAYER),
    "sdxl_refiner": Architecture(
        2_259_526_660, 280_101_888 + 6_309_124, 42_467_328, 694_659_841, 63_242_240, _KL_4, _KL_LAYER),
    "sd35_medium": Architecture(
        2_469_663_936, 0, 21_233_664, 5_580_030_976, 131_596_288,
        _KL_16, _KL_LAYER),
    "sd35_large": Architecture(
        8_146_280_768, 0, 35_487_744, 5_580_030_976, 131_596_288,
        _KL_16, _KL_LAYER),
    "flux1": Architecture(
        11_901_408_320, 0, 66_060_288, 4_885_371_136, 131_596_288,
        _KL_16, _KL_LAYER),
    "chroma": Architecture(
        8_899_983_424, 0, 66_060_288, 4_762_310_656, 131_596_288,
        _KL_16, _KL_LAYER),
    "flux2_klein_4b": Architecture(
        3_875_544_576, 0, 84_934_656, 4_022_468_096, 388_956_160,
        _FLUX2_VAE, _KL_LAYER),
    "flux2_klein_9b": Architecture(
        9_078_581_248, 0, 150_994_944, 7_568_405_504, 622_329_856,
        _FLUX2_VAE, _KL_LAYER),
    "qwen_image": Architecture(
        20_430_401_088, 0, 56_623_104, 7_747_169_280, 544_997_376,
        _WAN_VAE, _WAN_LAYER),
    "zimage": Architecture(
        6_154_908_736, 0, 39_321_600, 4_022_468_096, 388_956_160,
        _KL_16, _KL_LAYER),
    "lumina2": Architecture(
        2_609_769_152, 0, 21_233_664, 2_614_341_888, 589_824_000,
        _KL_16, _KL_LAYER),
    "wan21_1b": Architecture(
        1_418_996_800, 0, 14_155_776, 5_680_910_336, 1_050_148_864,
        _WAN_VAE, _WAN_LAYER),
    "wan21_14b": Architecture(
        14_288_491_584, 0, 157_286_400, 5_680_910_336, 1_050_148_864,
        _WAN_VAE, _WAN_LAYER),
    LOADED: Architecture(0, 0, 0, 0, 0, 0, 0),
}  # fmt: skip
"""Counted over the published modules' parameters. Of a loaded model without a name
its file alone tells them. Families without a block are not run under ``--lowvram``."""


KEPT_IN_FP32: dict[Family, int] = {"sd15": 99_223_040, "sd21": 99_223_040}
"""Weights of the gates (``GEGLU``) that A1111's ``--upcast-sampling`` makes fp32 at the first step, for good: it calls
``self.float()`` on each (modules/sd_hijack_unet.py). SDXL's, of another module, are left as they are."""
LINEAR: dict[Family, tuple[int, int]] = {
    "sd15": (270_049_280, 13_107_200), "sd21": (301_219_840, 13_107_200), "sdxl": (2_232_647_680, 13_107_200),
    "sdxl_refiner": (1_445_855_232, 18_874_368),
}  # fmt: skip
"""Weights of UNets that lie in linear layers, and the largest of these: bitsandbytes quantises no convolutions."""


_KEPT = frozenset(BITS_PER_WEIGHT) - {"fp64", "fp32", "fp16", "bf16", "f64", "f32", "f16"}
"""Types that the hosts keep as they are stored."""
_CLIP = ("clip_", "open_clip_")


@dataclass(frozen=True)
class ModelWeights:
    """Weights of one request's model, as sums, and in ``loads`` what they take beyond that. All sizes in bytes."""

    unet_bytes: int
    block_bytes: int
    unet_layer_bytes: int
    text_encoders_bytes: int
    text_layer_bytes: int
    vae_bytes: int
    vae_layer_bytes: int
    notes: tuple[Message, ...] = ()
    loads: Loads = ()

    def allocated(self, name: str, size_bytes: int) -> int:
        """Return what ``size_bytes`` of the part called ``name`` take as PyTorch's allocator holds them."""
        load = dict(self.loads).get(name)
        return size_bytes if load is None else load.allocated(size_bytes)


def weights_of(request: Request, inspect: Inspect = inspect_file) -> ModelWeights | None:
    """Return what ``request``'s model weighs, ``None`` for a family that is not known yet.

    The header of ``request.model.checkpoint`` decides where it can be read; else the family's own counts do.
    """
    known = ARCHITECTURES.get(request.model.family)
    if known is None:
        return None
    counts, stored, notes, components = _counts(request, known, inspect)
    if request.model.family == LOADED:
        if not counts["unet"]:
            return None
        notes = (_note_on_loaded(request), *notes)
    vae_parameters, vae_notes = _separate_vae(request, inspect)
    if vae_parameters:
        counts["vae"] = vae_parameters
    measured = _measured(request.host, request.model.family)
    sizes = _weigh(known, tuple(counts.items()), unet_dtype(request), vae_dtype(request), measured)
    upcast_bytes = _upcast_bytes(request)
    if upcast_bytes:
        sizes = replace(sizes, unet_bytes=sizes.unet_bytes + upcast_bytes)
    if request.model.family in LINEAR and unet_dtype(request) == "nf4":
        stored.setdefault("unet_bytes", _partly_quantised_bytes(counts["unet"], *LINEAR[request.model.family]))
    encoders = encoders_of(request, inspect) if request.model.family != LOADED else None
    if request.model.family == LOADED:
        stored |= _held_text(request)
    if encoders is not None:
        stored |= {"text_encoders_bytes": encoders.weights_bytes, "text_layer_bytes": encoders.layer_bytes}
        notes = (*notes, *encoders.notes)
    return replace(sizes, notes=(*notes, *vae_notes), loads=loads_of(request, components), **stored)


def _upcast_bytes(request: Request) -> int:
    """Return what ``--upcast-sampling`` adds to the denoiser; without half precision it does nothing."""
    dtype = unet_dtype(request)
    if request.host != "a1111" or dtype == "fp32" or not has_flag(request, "--upcast-sampling"):
        return 0
    if has_flag(request, "--no-half"):
        return 0
    count = KEPT_IN_FP32.get(request.model.family, 0)
    return weights_bytes(count, "fp32") - weights_bytes(count, dtype)


def _held_text(request: Request) -> dict[str, int]:
    """Return what a WebUI holds of a loaded model's text encoders; nothing where it does not say."""
    held = request.model.text_encoders_bytes
    if not held:
        return {}
    return {"text_encoders_bytes": held, "text_layer_bytes": request.model.text_layer_bytes or held}


def _note_on_loaded(request: Request) -> Message:
    return say("trace.of_loaded_model" if _held_text(request) else "trace.of_loaded_model_without_text")


def _partly_quantised_bytes(parameters: int, linear: int, _largest: int) -> int:
    return weights_bytes(min(linear, parameters), "nf4") + weights_bytes(max(0, parameters - linear), "fp16")


def quantised_layer(family: Family, dtype: WeightsDtype) -> int:
    """Return how many weights the largest layer quantised as ``dtype`` has; 0 for a family that is not known."""
    if dtype == "nf4" and family in LINEAR:
        return LINEAR[family][1]
    known = ARCHITECTURES.get(family)
    return known.unet_layer if known else 0


def _separate_vae(request: Request, inspect: Inspect) -> tuple[int, tuple[Message, ...]]:
    """Return how many weights a VAE's own file has, 0 where there is none that can be read, and notes."""
    if request.vae.checkpoint is None:
        return 0, ()
    try:
        found = sum(item.parameters for item in inspect(request.vae.checkpoint).components if item.name == "vae")
    except (VramGuardError, OSError):
        found = 0
    return found, () if found else (say("estimate.vae_unusable", family=request.model.family),)


@lru_cache(maxsize=256)
def _weigh(
    known: Architecture, counts: tuple[tuple[str, int], ...], unet: WeightsDtype, vae: Dtype, measured_bytes: int | None
) -> ModelWeights:
    parameters = dict(counts)
    plain: WeightsDtype = "fp32" if unet == "fp32" else "fp16"
    text_encoders_bytes = weights_bytes(parameters["text_encoders"], plain)
    return ModelWeights(
        unet_bytes=weights_bytes(parameters["unet"], unet),
        block_bytes=weights_bytes(known.block, unet),
        unet_layer_bytes=weights_bytes(known.unet_layer, plain),
        text_encoders_bytes=text_encoders_bytes if measured_bytes is None else measured_bytes,
        text_layer_bytes=weights_bytes(known.text_layer, plain),
        vae_bytes=weights_bytes(parameters["vae"], vae),
        vae_layer_bytes=weights_bytes(known.vae_layer, vae),
    )


def controlnet_bytes(family: Family, dtype: WeightsDtype, variant: str = "") -> int:
    """Return what a full ControlNet of ``family`` weighs; 0 for a family that none is known of."""
    shape = shape_of(family, variant)
    return weights_bytes(shape.parameters, dtype) if shape else 0


def _measured(host: HostName, family: Family) -> int | None:
    """Return what the host itself says its text encoders take, where that is not what their counts come to."""
    return TEXT_ENCODERS_BYTES.get((host, family))


def _counts(
    request: Request, known: Architecture, inspect: Inspect
) -> tuple[dict[str, int], dict[str, int], tuple[Message, ...], tuple[ComponentWeights, ...]]:
    """Return parameters by part, bytes of parts that stay as the file stores them, notes, and what is in the file."""
    counts = {"unet": known.unet, "text_encoders": known.text_encoders, "vae": known.vae}
    if request.model.checkpoint is None:
        return counts, {}, (say("estimate.weights_of_family", family=request.model.family),), ()
    try:
        checkpoint = inspect(request.model.checkpoint)
    except (VramGuardError, OSError):
        return counts, {}, (say("estimate.checkpoint_unusable", family=request.model.family),), ()
    found = _found(checkpoint)
    if "unet" not in found:
        return counts, {}, (say("estimate.checkpoint_unusable", family=request.model.family),), ()
    notes: tuple[Message, ...] = ()
    if checkpoint.family not in (None, request.model.family):
        notes = (say("estimate.checkpoint_of_other_family", found=checkpoint.family, family=request.model.family),)
    return {**counts, **found}, _stored(checkpoint, request), notes, checkpoint.components


def _found(checkpoint: Checkpoint) -> dict[str, int]:
    counts: dict[str, int] = {}
    for component in checkpoint.components:
        name = PARTS.get(component.name)
        if name and component.parameters:
            counts[name] = counts.get(name, 0) + component.parameters
    return counts


def _stored(checkpoint: Checkpoint, request: Request) -> dict[str, int]:
    """Return the bytes of what Forge and Neo keep as the file stores it, scales and all, instead of in one type.

    A quantised denoiser stays so unless another type is asked for; of the text encoders, the language model's does.
    """
    if request.host not in ("forge", "neo"):
        return {}
    found: dict[str, int] = {}
    encoders = [item for item in checkpoint.components if item.name.startswith("text_encoder")]
    if any(item.dtype in _KEPT and not item.kind.startswith(_CLIP) for item in encoders):
        kept = (item.loaded_bytes if item.dtype in _KEPT else 2 * item.parameters for item in encoders)
        found["text_encoders_bytes"] = sum(kept)
    for item in checkpoint.components:
        is_denoiser = PARTS.get(item.name) == "unet" and item.dtype in _KEPT - {"fp8"}
        if is_denoiser and item.loaded_bytes and storage_type(item.dtype) == unet_dtype(request):
            found["unet_bytes"] = item.loaded_bytes
    return found
