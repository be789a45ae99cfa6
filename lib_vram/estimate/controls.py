"""What control models weigh, by kind: ControlNets and their LoRA form, T2I-Adapters, IP-Adapters, ControlLLLite."""

from __future__ import annotations

from typing import Literal

from lib_vram.estimate.weights import controlnet_bytes
from lib_vram.physics.addons import Addon, addon_weights_bytes
from lib_vram.physics.controlnets import LORA, variant_of
from lib_vram.physics.families import SHAPES
from lib_vram.physics.weights import weights_bytes
from lib_vram.request import ControlKind, ControlUnit, Family, WeightsDtype

WHOLE_NETS: tuple[ControlKind, ...] = ("controlnet", "control_lora")
"""Kinds that are a network of their own beside the UNet; the others change what the UNet computes."""

ADAPTED: dict[ControlKind, dict[Family, Literal["sd15", "sdxl"]]] = {
    "t2i_adapter": {"sd15": "sd15", "sd21": "sd15", "sdxl": "sdxl"},
    "ip_adapter": {"sd15": "sd15", "sd21": "sd15", "sdxl": "sdxl"},
    "controllllite": {"sdxl": "sdxl"},
}
"""The families for which adapters of a kind are known, and whose shape they have."""

IP_ADAPTER_PARAMETERS = {"sd15": 22_319_616, "sdxl": 349_188_096}
"""The plain one of the ViT-H encoder: keys and values for each of the UNet's cross-attentions, and the projection of
the image to four tokens. Plus has 49,087,488 and 423,748,864. Counted in Forge's ``IPAdapterPlus.py``."""
LLLITE_PARAMETERS = 22_969_600
"""SDXL's ControlLLLite (kohya's ``controllllite_v01032064e_sdxl_*``): 136 modules with a condition of 32 channels and
64 inside. Counted in Forge's ``lib_controllllite.py``."""


def is_known(unit: ControlUnit) -> bool:
    """Return whether what ``unit`` needs can be computed, as far as its kind goes."""
    return unit.kind in WHOLE_NETS or unit.family in ADAPTED[unit.kind]


def net_variant(unit: ControlUnit) -> str:
    """Return which of the published ControlNets of its family ``unit`` is, from its kind and the size of its file."""
    return LORA if unit.kind == "control_lora" else variant_of(unit.family, unit.bytes)


def is_loaded_by_hosts(unit: ControlUnit) -> bool:
    """Return whether the WebUIs themselves load such a ControlNet: theirs are made for UNets."""
    return unit.kind not in WHOLE_NETS or not SHAPES[unit.family].transformer


def control_bytes(unit: ControlUnit, dtype: WeightsDtype) -> int:
    """Return what the weights of ``unit`` take on the device; 0 for a family whose control models are not known yet.

    ``unit.bytes`` counts where it is given: a whole ControlNet's at the most what its family's own has, because the
    hosts load files of fp32 in the type that they compute in.
    """
    if unit.kind == "controlnet":
        counted = controlnet_bytes(unit.family, dtype, net_variant(unit))
        return min(counted, unit.bytes) if unit.bytes and counted else unit.bytes or counted
    return unit.bytes or _typical_bytes(unit, dtype)


def _typical_bytes(unit: ControlUnit, dtype: WeightsDtype) -> int:
    if unit.kind == "control_lora":
        return controlnet_bytes(unit.family, dtype, LORA)
    shape = ADAPTED[unit.kind].get(unit.family)
    if shape is None:
        return 0
    if unit.kind == "controllllite":
        return weights_bytes(LLLITE_PARAMETERS, dtype)
    if unit.kind == "ip_adapter":
        return weights_bytes(IP_ADAPTER_PARAMETERS[shape], dtype)
    kind: Literal["t2i_adapter_sdxl", "t2i_adapter_sd15"] = f"t2i_adapter_{shape}"  # type: ignore[assignment]
    return addon_weights_bytes(Addon(kind, 512, 512, "fp32" if dtype == "fp32" else "fp16"))
