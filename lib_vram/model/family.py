"""Which family a file belongs to, told from its tensors' names and shapes.

Four layouts are met: checkpoints of the original code (``model.diffusion_model.``, ``first_stage_model.``, …),
the same parts alone in a file without that prefix, diffusers' folders' files, and adapters (LoRA, ControlNet).
The names are those of the original code of each model (CompVis and Stability-AI ``ldm``/``sgm``, Black Forest
Labs, Alibaba) and of diffusers; shapes tell relatives apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from lib_vram.model.header import Tensor
from lib_vram.request import Family

ComponentName = Literal[
    "unet", "transformer", "text_encoder", "text_encoder_2", "vae", "controlnet", "lora", "other",
]  # fmt: skip
Variant = Literal["", "inpaint", "pix2pix"]
Shapes = Mapping[str, tuple[int, ...]]

_PREFIXES: tuple[tuple[str, ComponentName], ...] = (
    ("model.diffusion_model.", "unet"),
    ("first_stage_model.", "vae"),
    ("vae.", "vae"),
    ("cond_stage_model.", "text_encoder"),
    ("conditioner.embedders.0.", "text_encoder"),
    ("conditioner.embedders.1.", "text_encoder_2"),
    ("text_encoders.clip_l.", "text_encoder"),
    ("text_encoders.", "text_encoder_2"),
    ("control_model.", "controlnet"),
)
_LORA_MARKS = (
    ".lora_up.",
    ".lora_down.",
    ".lora_A.",
    ".lora_B.",
    ".hada_w1_a",
    ".lokr_w1",
    ".lora_mid.",
    ".oft_blocks",
)
_CONTROL_MARKS = ("input_hint_block.", "controlnet_cond_embedding.", "lllite_unet", "zero_convs.", "controlnet_blocks.")
_LATENT_CHANNELS = {4: "", 9: "inpaint", 8: "pix2pix"}
_CONTEXT: Mapping[int, Family] = {768: "sd15", 1024: "sd21", 2048: "sdxl", 1280: "sdxl_refiner"}
"""Width of the text that the UNet attends to."""


def component_of(name: str, alone: ComponentName) -> ComponentName:
    """Return the part that the tensor ``name`` belongs to; ``alone`` when no prefix says so."""
    for prefix, component in _PREFIXES:
        if name.startswith(prefix):
            return component
    return "other" if name.startswith("model_ema.") else alone


def what_alone(names: Iterable[str]) -> ComponentName:
    """Return what a file is whose names carry no checkpoint prefix: one part by itself."""
    joined = list(names)
    for marks, component in ((_LORA_MARKS, "lora"), (_CONTROL_MARKS, "controlnet")):
        if any(mark in name for name in joined for mark in marks):
            return component  # type: ignore[return-value]
    known = frozenset(joined)
    for sign, component in _ALONE:
        if sign in known:
            return component
    return "other"


_ALONE: tuple[tuple[str, ComponentName], ...] = (
    ("input_blocks.0.0.weight", "unet"),
    ("down_blocks.0.resnets.0.conv1.weight", "unet"),
    ("double_blocks.0.img_attn.qkv.weight", "transformer"),
    ("joint_blocks.0.x_block.attn.qkv.weight", "transformer"),
    ("transformer_blocks.0.attn.to_q.weight", "transformer"),
    ("cap_embedder.1.weight", "transformer"),
    ("head.modulation", "transformer"),
    ("decoder.conv_in.weight", "vae"),
    ("decoder.conv1.weight", "vae"),
    ("text_model.embeddings.token_embedding.weight", "text_encoder"),
    ("text_model.encoder.layers.0.self_attn.k_proj.weight", "text_encoder"),
    ("transformer.resblocks.0.attn.in_proj_weight", "text_encoder"),
    ("encoder.block.0.layer.0.SelfAttention.k.weight", "text_encoder_2"),
    ("model.layers.0.self_attn.k_proj.weight", "text_encoder_2"),
)
"""One tensor that each part has when it is alone in a file. UNet first: diffusers' VAE has some names in common."""


def family_of(tensors: Iterable[Tensor]) -> tuple[Family | None, Variant]:
    """Return the family and variant of the denoiser, ControlNet or LoRA in ``tensors``; ``None`` when not known.

    A VAE or a text encoder alone has no family: several share it.
    """
    shapes = {_bare(tensor.name): tensor.shape for tensor in tensors if _counts(tensor.name)}
    for recognise in (_transformer, _original_unet, _diffusers_unet, _adapter):
        family = recognise(shapes)
        if family is not None:
            return family, _variant(shapes)
    return None, ""


def _counts(name: str) -> bool:
    return component_of(name, "unet") in ("unet", "controlnet")


def _bare(name: str) -> str:
    for prefix in ("model.diffusion_model.", "control_model."):
        name = name.removeprefix(prefix)
    return name


def _width(shapes: Shapes, name: str, axis: int = 1) -> int | None:
    """Return the size of ``name`` along ``axis``; ``None`` when it is not there or has no such axis."""
    shape = shapes.get(name, ())
    return shape[axis] if len(shape) > axis else None


def _variant(shapes: Shapes) -> Variant:
    for name in ("input_blocks.0.0.weight", "conv_in.weight"):
        channels = _width(shapes, name)
        if channels is not None:
            return _LATENT_CHANNELS.get(channels, "")  # type: ignore[return-value]
    return ""


def _original_unet(shapes: Shapes) -> Family | None:
    if "input_blocks.0.0.weight" not in shapes:
        return None
    pooled = _width(shapes, "label_emb.0.0.weight")
    if pooled is not None:
        return {2816: "sdxl", 2560: "sdxl_refiner"}.get(pooled)  # type: ignore[return-value]
    return _CONTEXT.get(_width(shapes, "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight") or 0)


def _diffusers_unet(shapes: Shapes) -> Family | None:
    if "down_blocks.0.resnets.0.conv1.weight" not in shapes:
        return None
    pooled = _width(shapes, "add_embedding.linear_1.weight")
    if pooled is not None:
        return {2816: "sdxl", 2560: "sdxl_refiner"}.get(pooled)  # type: ignore[return-value]
    return _CONTEXT.get(_width(shapes, "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight") or 0)


def _adapter(shapes: Shapes) -> Family | None:
    """LoRA and ControlLLLite: the text's width is the input of what changes the cross attention's keys."""
    if any(name.startswith("lora_te2_") for name in shapes):
        return "sdxl"
    for name, shape in shapes.items():
        is_key = "attn2_to_k" in name or "attn2.to_k" in name
        if (
            is_key
            and len(shape) >= 2
            and any(mark in name for mark in ("lora_down", "lora_A", "hada_w1_b", "lora.down"))
        ):
            return _CONTEXT.get(shape[1])
    names = " ".join(name for name in shapes if name.startswith(("lora_", "lllite_unet", "transformer.")))
    if "lora_unet_double_blocks_" in names or "transformer.single_transformer_blocks." in names:
        return "flux1"
    return "sdxl" if "lllite_unet_input_blocks_7_1_" in names or "lora_unet_input_blocks_7_1_t" in names else None


def _transformer(shapes: Shapes) -> Family | None:
    for sign, recognise in _TRANSFORMERS:
        if sign in shapes:
            return recognise(shapes)
    return None


def _by_width(name: str, axis: int, families: Mapping[int, Family]) -> Callable[[Shapes], Family | None]:
    return lambda shapes: families.get(_width(shapes, name, axis) or 0)


def _stable_diffusion_3(shapes: Shapes) -> Family | None:
    width = _width(shapes, "x_embedder.proj.weight", 0)
    if width == 1536 and "joint_blocks.0.x_block.attn2.qkv.weight" in shapes:
        return "sd35_medium"
    return "sd35_large" if width == 2432 else None


_TRANSFORMERS: tuple[tuple[str, Callable[[Shapes], Family | None]], ...] = (
    ("joint_blocks.0.x_block.attn.qkv.weight", _stable_diffusion_3),
    (
        "double_stream_modulation_img.lin.weight",
        _by_width("img_in.weight", 0, {3072: "flux2_klein_4b", 4096: "flux2_klein_9b"}),
    ),
    ("distilled_guidance_layer.in_proj.weight", lambda shapes: "chroma"),
    ("double_blocks.0.img_attn.qkv.weight", lambda shapes: "flux1"),
    ("single_transformer_blocks.0.attn.to_q.weight", lambda shapes: "flux1"),
    ("txt_norm.weight", lambda shapes: "qwen_image"),
    ("cap_embedder.1.weight", _by_width("cap_embedder.1.weight", 0, {3840: "zimage", 2304: "lumina2"})),
    ("head.modulation", _by_width("head.modulation", 2, {1536: "wan21_1b", 5120: "wan21_14b"})),
)
"""A tensor that only this model has, and how its sizes are told apart."""

TRANSFORMER_FAMILIES: frozenset[Family] = frozenset(
    (
        "sd35_medium", "sd35_large", "flux1", "chroma", "flux2_klein_4b", "flux2_klein_9b",
        "qwen_image", "zimage", "lumina2", "wan21_1b", "wan21_14b",
    )
)  # fmt: skip
"""Families whose denoiser is called "transformer" rather than "unet"."""
