"""How large weights are: bits per weight of each storage type, and what the hosts keep of known models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from lib_vram.model.gguf import TYPES
from lib_vram.request import WeightsDtype
from lib_vram.units import MIB

BITS_PER_WEIGHT: Mapping[str, Fraction] = {
    **{name.lower(): Fraction(8 * block_bytes, weights) for name, weights, block_bytes in TYPES.values()},
    "fp64": Fraction(64),
    "fp32": Fraction(32),
    "fp16": Fraction(16),
    "bf16": Fraction(16),
    "fp8": Fraction(8),
    "fp6": Fraction(6),
    "int8": Fraction(8),
    "nf4": Fraction(9, 2),
    "fp4": Fraction(9, 2),
    "nvfp4": Fraction(9, 2),
    "int4": Fraction(17, 4),
}
"""GGUF types: the bytes of a block over its weights (q8_0: 34 bytes for 32, q4_k: 144 for 256).
nf4, fp4: 4 bits and an fp32 scale for 64 weights (bitsandbytes, block size 64, statistics not quantised again).
nvfp4: 4 bits and an fp8 scale for 16. int4: 4 bits and a half-precision scale for 64 (SVDQuant), without its low rank.
Where a file is there, its own bytes count instead."""

FORGE_SDXL_TEXT_ENCODERS_BYTES = int(2144.35 * MIB)
"""SDXL's two text encoders as Forge loads them ("JointTextEncoder … 2144.35 MB", Forge's own load messages)."""

LOADED_PER_STORED: Mapping[str, Fraction] = {"q4_k": Fraction(160, 144)}
"""What Forge and Neo keep on the device of a byte in the file, where that is not one. Both unpack the 6-bit scales of
q4_k into half precision when they load it ("bake"): 16 + 16 + 128 bytes for 256 weights instead of 144. Read from
``bake_inner`` of their ``gguf/quants.py``; their other types keep their size."""


_STORAGE_TYPES: Mapping[str, WeightsDtype] = {
    "fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "int8": "int8",
    "q8_0": "q8_0", "q6_k": "q8_0", "q5_0": "q8_0", "q5_1": "q8_0", "q5_k": "q8_0",
    "q4_0": "q4_0", "q4_1": "q4_k", "q4_k": "q4_k", "q3_k": "q4_k", "q2_k": "q4_k",
    "nf4": "nf4", "fp4": "nf4", "nvfp4": "nf4", "int4": "nf4",
}  # fmt: skip


def storage_type(dtype: str) -> WeightsDtype | None:
    """Return the type of a request that stands for a file's ``dtype``; ``None`` for one that no host keeps.

    A request has fewer types than files have: q6_k goes as q8_0, NVFP4 as nf4. The bytes are the file's own.
    """
    return _STORAGE_TYPES.get(dtype)


VAE_PARAMETERS = Path(__file__).parent / "vae_parameters.json"
"""How many numbers each parameter has, in the order of the state dict, as [numbers, how often in a row]; of diffusers'
classes, by the names under which VAEs' profiles are stored. Written by ``tools/trace_profiles.py --vae-parameters``."""


@lru_cache(maxsize=1)
def _vae_parameters() -> dict[str, list[list[int]]]:
    table: dict[str, list[list[int]]] = json.loads(VAE_PARAMETERS.read_text(encoding="utf-8"))
    return table


def vae_parameters(vae: str) -> list[int]:
    """Return how many numbers each parameter of the VAE stored as ``vae`` has, in the order of loading."""
    return [count for count, times in _vae_parameters()[vae] for _ in range(times)]


def weights_bytes(parameters: int, dtype: str) -> int:
    """Return what ``parameters`` weights take in the storage type ``dtype``."""
    return int(parameters * BITS_PER_WEIGHT[dtype] / 8)


def loaded_bytes(stored_bytes: int, dtype: str) -> int:
    """Return what Forge and Neo keep on the device of ``stored_bytes`` of a file's weights of the type ``dtype``."""
    return int(stored_bytes * LOADED_PER_STORED.get(dtype, 1))
