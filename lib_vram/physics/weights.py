"""How large weights are: bytes per weight of each storage type, and what the hosts keep of known models."""

from __future__ import annotations

from fractions import Fraction

from lib_vram.units import MIB

BITS_PER_WEIGHT: dict[str, Fraction] = {
    "fp32": Fraction(32),
    "fp16": Fraction(16),
    "bf16": Fraction(16),
    "fp8": Fraction(8),
    "int8": Fraction(8),
    "q8_0": Fraction(17, 2),
    "q4_k": Fraction(9, 2),
    "q4_0": Fraction(9, 2),
    "nf4": Fraction(9, 2),
}
"""GGUF blocks: q8_0 34 bytes for 32 weights, q4_0 18 for 32, q4_k 144 for 256 (ggml's block definitions).
nf4: 4 bits and an fp32 scale for 64 weights (bitsandbytes, block size 64)."""

FORGE_SDXL_TEXT_ENCODERS_BYTES = int(2144.35 * MIB)
"""SDXL's two text encoders as Forge loads them ("JointTextEncoder … 2144.35 MB", Forge's own load messages)."""


def weights_bytes(parameters: int, dtype: str) -> int:
    """Return what ``parameters`` weights take in the storage type ``dtype``."""
    return int(parameters * BITS_PER_WEIGHT[dtype] / 8)
