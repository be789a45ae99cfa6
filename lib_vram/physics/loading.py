"""What weights take on the device beyond their sum, once they are loaded one tensor after the other.

PyTorch's allocator gives a tensor whole multiples of 512 bytes, and leaves it what remains of a block where that is
not worth splitting off: up to 1 MiB of a segment, which then counts as allocated. What is split off stays reserved in
the middle of the weights, a *tail*: too small for most of what a model computes with. SDXL's UNet in half precision is
101 MiB more than its sum, and 156 MiB of tails. Segments that grow and the driver's own pool leave nothing of either
kind but the 512 bytes.

How many numbers each tensor has is in the file's header; for families without a file in a table, traced from the
modules of the published configurations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.allocator import OWN_SEGMENT_FROM
from lib_vram.physics.life import loaded
from lib_vram.physics.weights import BITS_PER_WEIGHT, vae_parameters

LOADED_WEIGHTS = Path(__file__).parent / "loaded_weights.json"
"""By part (``sdxl-denoise``, ``t5_xxl``): how many numbers each tensor has, below 0 for vectors, in the order in which
a module moves them to the device; ``[times, numbers]`` for what repeats. Written by ``tools/loaded_weights.py``."""

WHOLE = ("fp64", "fp32", "fp16", "bf16", "fp8")
"""Types that all of a part's tensors can have; of a quantised part vectors stay in half precision."""
APART = {"nf4": (4, 64, 4), "fp4": (4, 64, 4), "int4": (4, 64, 2)}
"""Types whose scales are a tensor of their own: bits of a weight, weights of a scale, bytes of a scale."""

Numbers = tuple[int, ...]
"""How many numbers each tensor has, in the order of loading; below 0 for vectors, which are not quantised."""
Stored = tuple[tuple[Numbers | str, str], ...]
"""Tensors, or the name of the part whose they are, that are loaded one after the other, each lot with its type."""
VAE = "-vae"
"""What the name of a VAE ends with: ``sd15-vae``."""


class OnDevice(NamedTuple):
    """What a part takes once it is loaded, in bytes: the sum, what counts as allocated, and the tails between."""

    sum_bytes: int
    allocated_bytes: int
    tails_bytes: int

    def allocated(self, size_bytes: int) -> int:
        """Return what ``size_bytes`` of the part's weights take as allocated; the rest of it may be elsewhere."""
        return size_bytes + size_bytes * (self.allocated_bytes - self.sum_bytes) // self.sum_bytes

    def tails(self, size_bytes: int) -> int:
        """Return what lies unused between ``size_bytes`` of the part's weights."""
        return size_bytes * self.tails_bytes // self.sum_bytes


@lru_cache(maxsize=64)
def known_numbers(name: str) -> Numbers:
    """Return the tensors of the part called ``name`` (``sdxl-denoise``, ``clip_l``), none where it is not known.

    Of a VAE (``sd15-vae``) vectors are not told apart: none is quantised.
    """
    if name.endswith(VAE):
        return tuple(vae_parameters(name.removesuffix(VAE)))
    return tuple(_unfolded(_table().get(name, ())))


@lru_cache(maxsize=256)
def on_device(stored: Stored, conf: AllocatorConf) -> OnDevice | None:
    """Return what ``stored`` takes under ``conf``; ``None`` where there is nothing of it."""
    lots = ((known_numbers(item) if isinstance(item, str) else item, dtype) for item, dtype in stored)
    blocks = [size for numbers, dtype in lots for size in _blocks(numbers, dtype)]
    total = sum(blocks)
    if not total:
        return None
    if conf.expandable or conf.stream_ordered:
        return OnDevice(total, sum(map(conf.rounded, blocks)), 0)
    allocator = loaded(blocks, replace(conf, collect_above=None)).allocator
    free = (size for segment in allocator.segments() for size, in_use in segment if not in_use)
    return OnDevice(total, allocator.allocated_bytes, sum(size for size in free if size < OWN_SEGMENT_FROM))


@lru_cache(maxsize=1)
def _table() -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = json.loads(LOADED_WEIGHTS.read_text(encoding="utf-8"))
    return table


def _unfolded(numbers: Sequence[Any]) -> Iterator[int]:
    for item in numbers:
        if isinstance(item, int):
            yield item
        else:
            times, repeated = item
            yield from tuple(_unfolded(repeated)) * times


def _blocks(numbers: Numbers, dtype: str) -> Iterator[int]:
    """Yield the bytes of each tensor in the type ``dtype``."""
    half = BITS_PER_WEIGHT["fp16"]
    bits = BITS_PER_WEIGHT.get(dtype, half)
    apart = APART.get(dtype)
    (above, below), vector_bits = (bits / 8).as_integer_ratio(), int(bits if dtype in WHOLE else half)
    for count in numbers:
        if count < 0:
            yield -count * vector_bits // 8
        elif apart is None:
            yield count * above // below
        else:
            yield count * apart[0] // 8
            yield -(-count // apart[1]) * apart[2]
