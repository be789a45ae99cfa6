"""What other programs' formulas give for one model part, in bytes without weights. Read from their sources.

Each takes a component and returns its working memory, ``None`` where the program has no formula for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lib_vram.physics.component import Component  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402

ITEMSIZE = {"fp32": 4, "fp16": 2, "bf16": 2}
LATENT_PIXELS = 8

FORGE_DECODE, FORGE_ENCODE = 2178, 1767
"""Bytes a pixel and byte of the dtype (Forge ``backend/patcher/vae.py``; ComfyUI ``comfy/sd.py`` has the same)."""
FORGE_SAMPLE, FORGE_SDPA = 16384, 1.28
"""Forge ``backend/modules/k_model.py``: the same for every family."""

COMFY_FACTORS = {"sd15": 1.0, "sd21": 1.0, "sdxl": 0.8, "sdxl_refiner": 1.0, "sd35_medium": 1.2, "sd35_large": 1.2,
                 "flux1": 2.8, "lumina2": 1.2, "chroma": 3.2}  # fmt: skip
"""ComfyUI ``comfy/supported_models.py``, ``memory_usage_factor``."""

INVOKE_DECODE, INVOKE_ENCODE = 2200, 1100
INVOKE_QWEN_DECODE, INVOKE_QWEN_ENCODE = 2900, 1600
INVOKE_FP32_BYTES = 250 * MIB
"""InvokeAI ``backend/util/vae_working_memory.py``."""
INVOKE_SAMPLE_BYTES = 3 * GIB
"""InvokeAI ``device_working_mem_gb``."""

VIDEO_VAES = frozenset(("qwen_image", "wan21_1b", "wan21_14b"))
FORGE_FAMILIES = frozenset(("sd15", "sd21", "sdxl", "sdxl_refiner", "sd35_medium", "sd35_large", "flux1", "chroma"))


def _pixels(component: Component) -> int:
    return component.width * component.height


def _latents(component: Component) -> int:
    return component.batch * (component.width // LATENT_PIXELS) * (component.height // LATENT_PIXELS)


def forge(component: Component) -> int | None:
    """Return Forge's working memory; Qwen and Wan are not among its models."""
    itemsize = ITEMSIZE[component.dtype]
    if component.family not in FORGE_FAMILIES:
        return None
    if component.part == "denoise":
        return int(FORGE_SDPA * 2 * _latents(component) * itemsize * FORGE_SAMPLE)
    each = {"vae_decode": FORGE_DECODE, "vae_encode": FORGE_ENCODE}.get(component.part)
    return each and each * _pixels(component) * itemsize


def comfyui(component: Component) -> int | None:
    """Return ComfyUI's working memory. Its constants for the VAE of videos are not among the facts at hand."""
    itemsize = ITEMSIZE[component.dtype]
    if component.part == "denoise":
        factor = COMFY_FACTORS.get(component.family)
        halves = 2 if component.cfg else 1
        return int(halves * _latents(component) * itemsize * 0.01 * factor * MIB) if factor else None
    if component.family in VIDEO_VAES:
        return None
    each = {"vae_decode": FORGE_DECODE, "vae_encode": FORGE_ENCODE}.get(component.part)
    return each and each * _pixels(component) * itemsize


def invokeai(component: Component) -> int | None:
    """Return InvokeAI's working memory."""
    itemsize = ITEMSIZE[component.dtype]
    if component.part == "denoise":
        return INVOKE_SAMPLE_BYTES
    if component.family.startswith("wan"):
        return None
    qwen = component.family == "qwen_image"
    each = {
        "vae_decode": INVOKE_QWEN_DECODE if qwen else INVOKE_DECODE,
        "vae_encode": INVOKE_QWEN_ENCODE if qwen else INVOKE_ENCODE,
    }.get(component.part)
    more = INVOKE_FP32_BYTES if component.dtype == "fp32" else 0
    return each and each * _pixels(component) * itemsize + more


PEERS: dict[str, Callable[[Component], int | None]] = {"ComfyUI": comfyui, "Forge": forge, "InvokeAI": invokeai}
