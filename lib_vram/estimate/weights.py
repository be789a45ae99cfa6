"""What a model's parts weigh on the device, from the checkpoint's header or from the family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from lib_vram.errors import VramGuardError
from lib_vram.estimate.flags import unet_dtype, vae_dtype
from lib_vram.message import Message, say
from lib_vram.model.inspect import Checkpoint, inspect_file
from lib_vram.physics.weights import FORGE_SDXL_TEXT_ENCODERS_BYTES, weights_bytes
from lib_vram.request import Dtype, Family, HostName, Request, WeightsDtype

Inspect = Callable[[str], Checkpoint]


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
    controlnet: int


ARCHITECTURES: dict[Family, Architecture] = {
    "sd15": Architecture(
        unet=859_520_964,
        block=97_038_080 + 12_164,
        unet_layer=2560 * 1280 * 9,
        text_encoders=123_060_480,
        text_layer=49_408 * 768,
        vae=83_653_863,
        vae_layer=512 * 512 * 9,
        controlnet=361_279_120,
    ),
    "sdxl": Architecture(
        unet=2_567_463_684,
        block=413_117_440 + 5_257_604,
        unet_layer=2560 * 1280 * 9,
        text_encoders=123_060_480 + 694_659_841,
        text_layer=49_408 * 1280,
        vae=83_653_863,
        vae_layer=512 * 512 * 9,
        controlnet=1_251_014_160,
    ),
}


@dataclass(frozen=True)
class ModelWeights:
    """Weights of one request's model as they lie on the device. All sizes in bytes."""

    unet_bytes: int
    block_bytes: int
    unet_layer_bytes: int
    text_encoders_bytes: int
    text_layer_bytes: int
    vae_bytes: int
    vae_layer_bytes: int
    notes: tuple[Message, ...] = ()


def weights_of(request: Request, inspect: Inspect = inspect_file) -> ModelWeights | None:
    """Return what ``request``'s model weighs, ``None`` for a family that is not known yet.

    The header of ``request.model.checkpoint`` decides where it can be read; else the family's own counts do.
    """
    known = ARCHITECTURES.get(request.model.family)
    if known is None:
        return None
    counts, notes = _counts(request, known, inspect)
    measured = _measured(request.host, request.model.family)
    sizes = _weigh(known, tuple(counts.items()), unet_dtype(request), vae_dtype(request), measured)
    return replace(sizes, notes=notes)


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


def controlnet_bytes(family: Family, dtype: WeightsDtype) -> int:
    """Return what a full ControlNet of ``family`` weighs; 0 for a family whose ControlNets are not known yet."""
    known = ARCHITECTURES.get(family)
    return weights_bytes(known.controlnet, dtype) if known else 0


def _measured(host: HostName, family: Family) -> int | None:
    """Return what the host itself says its text encoders take, where that is not what their counts come to."""
    return FORGE_SDXL_TEXT_ENCODERS_BYTES if (host, family) == ("forge", "sdxl") else None


def _counts(request: Request, known: Architecture, inspect: Inspect) -> tuple[dict[str, int], tuple[Message, ...]]:
    counts = {"unet": known.unet, "text_encoders": known.text_encoders, "vae": known.vae}
    if request.model.checkpoint is None:
        return counts, (say("estimate.weights_of_family", family=request.model.family),)
    try:
        checkpoint = inspect(request.model.checkpoint)
    except (VramGuardError, OSError):
        return counts, (say("estimate.checkpoint_unusable", family=request.model.family),)
    found = _found(checkpoint)
    if "unet" not in found:
        return counts, (say("estimate.checkpoint_unusable", family=request.model.family),)
    notes: tuple[Message, ...] = ()
    if checkpoint.family not in (None, request.model.family):
        notes = (say("estimate.checkpoint_of_other_family", found=checkpoint.family, family=request.model.family),)
    return {**counts, **found}, notes


def _found(checkpoint: Checkpoint) -> dict[str, int]:
    names = {"unet": "unet", "text_encoder": "text_encoders", "text_encoder_2": "text_encoders", "vae": "vae"}
    counts: dict[str, int] = {}
    for component in checkpoint.components:
        name = names.get(component.name)
        if name and component.parameters:
            counts[name] = counts.get(name, 0) + component.parameters
    return counts
