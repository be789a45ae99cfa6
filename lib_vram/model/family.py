"""What a file is, told from its tensors' names and shapes: its parts, its family and variant.

Layouts met: checkpoints of the original code (``model.diffusion_model.``, ``first_stage_model.``, …), ComfyUI's and
Forge's with ``text_encoders.``, parts alone in a file with no prefix or another, the files of diffusers' folders, and
what goes with a model: LoRA, ControlNet, adapters, upscalers. Which tensors tell what is the table of
:mod:`lib_vram.model.signatures`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lib_vram.model.match import Names, Shapes
from lib_vram.model.packing import Weight
from lib_vram.model.signatures import (
    CONTROLNETS,
    DENOISERS,
    LORA_LAYERS,
    OTHERS,
    TEXT_ENCODERS,
    VAES,
    VARIANTS,
)
from lib_vram.request import Family

ComponentName = Literal[
    "unet", "transformer", "transformer_2", "text_encoder", "text_encoder_2", "text_encoder_3", "vae", "image_encoder",
    "controlnet", "lora", "ip_adapter", "t2i_adapter", "embedding", "upscaler", "other",
]  # fmt: skip
Variant = str
"""``""``, or what :data:`~lib_vram.model.signatures.VARIANTS` names; ``inpaint`` and ``pix2pix`` for UNets."""

UNET_FAMILIES: frozenset[Family] = frozenset(("sd15", "sd21", "sdxl", "sdxl_refiner"))
"""Families whose denoiser is called "unet" rather than "transformer"."""

_DENOISER, _VAE, _TEXT, _CONTROL = "denoiser", "vae", "text", "controlnet"
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("model.diffusion_model.", _DENOISER),
    ("model.diffusion_model_2.", "transformer_2"),
    ("first_stage_model.", _VAE),
    ("vae.", _VAE),
    ("cond_stage_model.", _TEXT),
    ("conditioner.embedders.", _TEXT),
    ("text_encoders.", _TEXT),
    ("control_model.", _CONTROL),
    ("clip_vision.", "image_encoder"),
    ("model_ema.", "other"),
)
_NUMBERED = ("conditioner.embedders.", "text_encoders.")
"""Prefixes after which comes the encoder's own name or number."""
_INNER = (
    "", "transformer.", "model.", "transformer.model.", "model.language_model.", "language_model.model.",
    "language_model.", "transformer.model.language_model.", "model.model.",
)  # fmt: skip
"""What wrappers put before a text encoder's names."""
_OUTER = ("", "diffusion_model.", "transformer.", "unet.", "net.", "model.", "module.")
"""What programs put before the names of a denoiser that is alone in a file."""
_LORA = re.compile(
    r"\.lora_(?:up|down|mid|A|B)\.|[._]lora\.(?:up|down)\.|\.hada_w|\.lokr_w|\.oft_(?:blocks|diag)|\.diff(?:_b)?$",
    re.MULTILINE,
)
_IN, _OUT = ("in", 1), ("out", 0)
_LORA_SIDES: Mapping[str, tuple[tuple[str, int], ...]] = {
    "lora_down": (_IN,), "lora_A": (_IN,), "down_0": (_IN,), "lora_up": (_OUT,), "lora_B": (_OUT,),
    "hada_w1_b": (_IN,), "hada_w1_a": (_OUT,), "diff": (_IN, _OUT),
    "lokr_w1": (_IN, _OUT), "lokr_w1_a": (_OUT,), "lokr_w1_b": (_IN,),
    "lokr_w2": (_IN, _OUT), "lokr_w2_a": (_OUT,), "lokr_w2_b": (_IN,),
}  # fmt: skip
"""Sides of the changed layer that a matrix has, and on which axis. LoKr's two factors multiply to the whole."""
_FACTOR = re.compile(r"(.*?)_(lora_(?:down|up|A|B)|lokr_w[12](?:_[ab])?|hada_w1_[ab]|down_0|diff)(?:_default)?$")
_HUNYUAN = re.compile(r"double_blocks\.\d+\.img_attn_qkv|double_blocks[._]19[._]|single_blocks[._]3[89][._]")
"""HunyuanVideo's LoRAs change layers as wide as Flux's; it has a block more of one sort and two of the other."""
_NUMBERED_BLOCK = re.compile(r"(blocks|layers)_\d+_")
_CONTROL_MARKS = (
    "input_hint_block.", "controlnet_cond_embedding.", "zero_convs.", "controlnet_blocks.", "controlnet_x_embedder.",
    "controlnet_down_blocks.", "control_layers.",
)  # fmt: skip
_LATENT_CHANNELS: Mapping[int, str] = {9: "inpaint", 8: "pix2pix"}


@dataclass(frozen=True)
class Part:
    """One component: its weights by name without prefix, and which kind of that it is, or ``""``.

    ``t5_xxl`` of text encoders, the family of VAEs, ``controllllite`` or ``control_lora`` of control models.
    """

    name: ComponentName
    weights: tuple[Weight, ...]
    kind: str = ""


@dataclass(frozen=True)
class Recognised:
    """What a file is. ``not_yet`` names a model that is known by name but not computed."""

    parts: tuple[Part, ...]
    family: Family | None = None
    variant: Variant = ""
    not_yet: str = ""


def recognise(weights: Sequence[Weight]) -> Recognised:
    """Return the parts in ``weights`` and the family of the denoiser, ControlNet or adapter among them.

    A VAE or a text encoder alone has no family: several share it.
    """
    if not _adapts_pictures(weights) and 3 * len(_LORA.findall("\n".join(weight.name for weight in weights))) > len(
        weights
    ):
        return Recognised((Part("lora", tuple(weights)),), _lora_family(weights))
    sorted_out = _sorted_out(weights)
    alone = sorted_out.pop("", ())
    if alone and not set(sorted_out) - {"other"}:
        return _alone(alone, sorted_out.get("other", ()))
    sorted_out["other"] = [*sorted_out.get("other", ()), *alone]
    return _checkpoint(sorted_out)


def _adapts_pictures(weights: Iterable[Weight]) -> bool:
    """Whether it is an IP-Adapter: some hold a LoRA beside it."""
    return any(weight.name.startswith(("ip_adapter.", "image_proj.")) for weight in weights)


def _sorted_out(weights: Iterable[Weight]) -> dict[str, list[Weight]]:
    """Return ``weights`` by the part that their prefix says; ``""`` for none, ``text_encoders.t5xxl`` and the like."""
    parts: dict[str, list[Weight]] = {}
    for weight in weights:
        key, bare = _place(weight.name)
        parts.setdefault(key, []).append(Weight(bare, *weight[1:]))
    return parts


def _place(name: str) -> tuple[str, str]:
    for prefix, key in _PREFIXES:
        if name.startswith(prefix):
            bare = name[len(prefix) :]
            if prefix in _NUMBERED:
                inner, _, bare = bare.partition(".")
                return f"{prefix}{inner}", bare
            return (prefix if key == _TEXT else key), bare
    return "", name


def _checkpoint(sorted_out: Mapping[str, Sequence[Weight]]) -> Recognised:
    denoiser, control = sorted_out.get(_DENOISER, ()), sorted_out.get(_CONTROL, ())
    family, variant, not_yet = _family(denoiser, is_control=False) if denoiser else (None, "", "")
    if control and not denoiser:
        family, variant, not_yet = _family(control, is_control=True)
    parts = [Part(_denoiser_name(denoiser, family), tuple(denoiser))] if denoiser else []
    encoders = {key: held for key, held in sorted_out.items() if key.startswith((*_NUMBERED, "cond_stage_model."))}
    parts += _text_parts(encoders)
    for key, name in ((_VAE, "vae"), ("transformer_2", "transformer_2"), (_CONTROL, "controlnet")):
        if sorted_out.get(key):
            parts.append(Part(name, tuple(sorted_out[key]), _vae_kind(sorted_out[key]) if key == _VAE else ""))  # type: ignore[arg-type]
    for name in ("image_encoder", "other"):
        if sorted_out.get(name):
            parts.append(Part(name, tuple(sorted_out[name])))  # type: ignore[arg-type]
    return Recognised(tuple(parts), family, variant, not_yet)


def _text_parts(encoders: Mapping[str, Sequence[Weight]]) -> list[Part]:
    """Return text encoders in the order in which the models count them: CLIP-L, CLIP-G, the language model."""
    found = [(text_encoder_kind(held) or "", key, held) for key, held in encoders.items()]
    order = {"clip_l": 0, "open_clip_h": 0, "clip_g": 1}
    found.sort(key=lambda item: (order.get(item[0], 2), item[1]))
    names: tuple[ComponentName, ...] = ("text_encoder", "text_encoder_2", "text_encoder_3")
    return [Part(names[min(place, 2)], tuple(held), kind) for place, (kind, _, held) in enumerate(found)]


def _alone(weights: Sequence[Weight], other: Sequence[Weight]) -> Recognised:
    """Return what a file is whose names carry no checkpoint prefix: one part by itself."""
    rest = (Part("other", tuple(other)),) if other else ()
    names = Names(_shapes(weights))
    for component, family, conditions in OTHERS:
        if names.all_hold(conditions):
            known = family if family in get_args(Family) else None
            return Recognised((Part(component, tuple(weights)), *rest), known)  # type: ignore[arg-type]
    if any(weight.name.startswith("lllite_unet") for weight in weights):
        part = Part("controlnet", tuple(weights), "controllllite")
        return Recognised((part, *rest), _lora_family(weights) or _lllite(weights))
    for outer in _OUTER:
        bare = _without(weights, outer)
        inner = Names(_shapes(bare))
        if bare and any(inner.any_begins(mark) for mark in _CONTROL_MARKS):
            part = Part("controlnet", tuple(bare), "control_lora" if _adds_to_unet(bare) else "")
            return Recognised((part, *rest), *_family(bare, is_control=True))
        denoiser, variant, not_yet = _family(bare, is_control=False) if bare else (None, "", "")
        if denoiser or not_yet:
            return Recognised((Part(_denoiser_name(bare, denoiser), tuple(bare)), *rest), denoiser, variant, not_yet)
    return Recognised((_one_part(weights), *rest))


def _one_part(weights: Sequence[Weight]) -> Part:
    vae = Names(_shapes(weights)).first(VAES)
    if vae is not None:
        return Part("vae", tuple(weights), vae)
    encoder = text_encoder_kind(weights)
    if encoder is not None:
        return Part("text_encoder", tuple(weights), encoder)
    looks_like_a_denoiser = any(
        weight.name.startswith(("input_blocks.0.0.", "down_blocks.0.resnets.0.conv1.")) for weight in weights
    )
    return Part("unet" if looks_like_a_denoiser else "other", tuple(weights))


def _without(weights: Sequence[Weight], outer: str) -> Sequence[Weight]:
    """Return those of ``weights`` whose names begin with ``outer``, without it."""
    if not outer:
        return weights
    return [Weight(weight.name[len(outer) :], *weight[1:]) for weight in weights if weight.name.startswith(outer)]


def _shapes(weights: Iterable[Weight]) -> Shapes:
    return {weight.name: weight.shape for weight in weights}


def _family(weights: Sequence[Weight], *, is_control: bool) -> tuple[Family | None, Variant, str]:
    """Return family, variant, and the name of a model that is not known yet."""
    names = Names(_shapes(weights))
    families = get_args(Family)
    found = names.first(CONTROLNETS) if is_control else None
    if found is None:
        lines = [line for line in DENOISERS if line[0] in families] if is_control else DENOISERS
        found = names.first(lines)
    if found is None or found not in families:
        return None, "", found or ""
    if is_control:
        return found, _unet_variant(weights), ""  # type: ignore[return-value]
    variant = next((name for of, name, asked in VARIANTS if of == found and names.all_hold(asked)), "")
    return found, variant or _unet_variant(weights), ""  # type: ignore[return-value]


def _unet_variant(weights: Iterable[Weight]) -> Variant:
    for weight in weights:
        if weight.name in ("input_blocks.0.0.weight", "conv_in.weight") and len(weight.shape) == 4:
            return _LATENT_CHANNELS.get(weight.shape[1], "")
    return ""


def _denoiser_name(weights: Sequence[Weight], family: Family | None) -> ComponentName:
    if family is not None:
        return "unet" if family in UNET_FAMILIES else "transformer"
    names = Names(_shapes(weights))
    is_unet = names.any_begins("input_blocks.") or names.any_begins("down_blocks.") or len(weights) < 2
    return "unet" if is_unet else "transformer"


def text_encoder_kind(weights: Sequence[Weight]) -> str | None:
    """Return which text encoder ``weights`` are, ``""`` for one of unknown size, ``None`` for none."""
    for inner in _INNER:
        bare = _without(weights, inner)
        kind = Names(_shapes(bare)).first(TEXT_ENCODERS) if bare else None
        if kind is not None:
            return kind
    return None


def _vae_kind(weights: Sequence[Weight]) -> str:
    return Names(_shapes(weights)).first(VAES) or ""


def _lora_family(weights: Sequence[Weight]) -> Family | None:
    """Return the family of a LoRA by the width of the layers that it changes."""
    widths = _lora_widths(weights)
    for part, side, families in LORA_LAYERS:
        known = {width for name, of, width in widths if of == side and width in families and re.search(part, name)}
        if known:
            family = families[min(known)]
            twin = family == "flux1" and any(_HUNYUAN.search(weight.name) for weight in weights)
            return None if twin else family  # type: ignore[return-value]
    return "sdxl" if any(weight.name.startswith("lora_te2_text_model_") for weight in weights) else None


def _lora_widths(weights: Iterable[Weight]) -> set[tuple[str, str, int]]:
    """Return which sides of the changed layers are how wide; blocks of a sort are all called its first."""
    sides: dict[str, dict[str, int]] = {}
    for weight in weights:
        layer, kind = _lora_layer(weight.name)
        held = sides.setdefault(layer, {})
        for side, axis in _LORA_SIDES.get(kind, ()) if len(weight.shape) >= 2 else ():
            held[side] = held.get(side, 1) * weight.shape[axis]
    return {
        (_NUMBERED_BLOCK.sub(r"\1_0_", layer), side, width)
        for layer, held in sides.items()
        for side, width in held.items()
    }


def _lora_layer(name: str) -> tuple[str, str]:
    """Return which layer the matrix ``name`` is for, and which of its matrices it is."""
    layer, _, kind = _FACTOR.sub(r"\1|\2", name.removesuffix(".weight").replace(".", "_")).rpartition("|")
    return layer, kind


def _adds_to_unet(weights: Iterable[Weight]) -> bool:
    """Whether a ControlNet holds only what is added to the UNet's own weights, as products of two small ones."""
    return any(weight.name == "lora_controlnet" or weight.name.endswith((".up", ".down")) for weight in weights)


def _lllite(weights: Iterable[Weight]) -> Family | None:
    """ControlLLLite's layers are named after the UNet's; only SDXL's seventh block has a transformer of depth."""
    return "sdxl" if any("input_blocks_7_1_" in weight.name for weight in weights) else None
