"""How each part of a request's model lies on the device: what it takes beyond the sum of its weights.

The one place where that is asked, for every host and every way of keeping models: of a part that is there by half, as
Forge and ``--lowvram`` have it, half of it counts. Hosts themselves decide by sums, and go on doing so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lib_vram.estimate.encoders import on_card
from lib_vram.estimate.flags import compute_dtype, conf_of, of_forge_line, unet_dtype, vae_dtype
from lib_vram.model.inspect import ComponentWeights
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.controlnets import variant_of
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.loading import VAE, OnDevice, Stored, on_device
from lib_vram.physics.weights import BITS_PER_WEIGHT
from lib_vram.request import ControlUnit, Request, WeightsDtype

Loads = tuple[tuple[str, OnDevice], ...]
"""By the name of a part (``unet``, ``text_encoders``, ``vae``, ``controlnet``), and of a piece of one that is alone
(``text_encoders clip_g``)."""

PARTS = {
    "unet": "unet", "transformer": "unet", "vae": "vae",
    "text_encoder": "text_encoders", "text_encoder_2": "text_encoders", "text_encoder_3": "text_encoders",
}  # fmt: skip
"""Components of a file, and which part of a model they are."""
HALF_VAE = "vae half"
"""The VAE in half precision where it works in fp32: diffusers makes it that for its turn alone."""
_HALF_BITS = 16


def loads_of(request: Request, components: Iterable[ComponentWeights] = ()) -> Loads:
    """Return what each part of ``request``'s model takes; ``components`` are its file's, none where it has none.

    Raises:
        BadInput: PyTorch does not take the request's allocator setting.
    """
    conf = AllocatorConf.parse(conf_of(request))
    stored = {**_of_family(request), **_of_file(request, components)}
    found = ((name, on_device(tensors, conf)) for name, tensors in stored.items())
    return tuple((name, load) for name, load in found if load is not None)


def _of_family(request: Request) -> Mapping[str, Stored]:
    """Return the tensors of the published configurations; of a loaded model without a name there are none."""
    family = request.model.family
    nets = (unit for unit in request.controlnets if unit.kind == "controlnet")
    found: dict[str, Stored] = {"controlnet": tuple((_control_name(unit), compute_dtype(request)) for unit in nets)}
    if family != LOADED:
        plain = _plain(request)
        chosen: dict[str, WeightsDtype | None] = {item.name: item.dtype for item in request.text_encoders}
        encoders = tuple((name, chosen.get(name) or plain) for name in on_card(request))
        found["unet"] = ((f"{family}-denoise", unet_dtype(request)),)
        found["text_encoders"] = encoders
        found |= {f"text_encoders {name}": ((name, dtype),) for name, dtype in encoders}
        vae = SHAPES[family].vae + VAE
        found |= {"vae": ((vae, vae_dtype(request)),), HALF_VAE: ((vae, "fp16"),)}
    return found


def _of_file(request: Request, components: Iterable[ComponentWeights]) -> Mapping[str, Stored]:
    """Return the tensors that the model's own file has; encoders that the request names one by one are not in it."""
    found: dict[str, Stored] = {}
    for item in components:
        part = PARTS.get(item.name)
        if part is None or not item.numbers or (part == "text_encoders" and request.text_encoders):
            continue
        found[part] = (*found.get(part, ()), (item.numbers, _dtype(request, part, item)))
    return found


def _dtype(request: Request, part: str, item: ComponentWeights) -> str:
    """Return the type in which the host has a file's component on the device."""
    if part == "unet":
        return unet_dtype(request)
    if part == "vae":
        return vae_dtype(request)
    kept = of_forge_line(request) and BITS_PER_WEIGHT.get(item.dtype, _HALF_BITS) < _HALF_BITS
    return item.dtype if kept else _plain(request)


def _plain(request: Request) -> WeightsDtype:
    return "fp32" if unet_dtype(request) == "fp32" else "fp16"


def _control_name(unit: ControlUnit) -> str:
    """Return the name of a ControlNet's tensors; of Control-LoRAs they are not known, and their sum counts."""
    variant = variant_of(unit.family, unit.bytes)
    return f"{unit.family}-controlnet" + (f"_{variant}" if variant else "")
