"""Sizes of weights."""

from __future__ import annotations

import typing

import pytest

from lib_vram.physics.weights import BITS_PER_WEIGHT, cublas_workspace_bytes, weights_bytes
from lib_vram.request import WeightsDtype
from lib_vram.units import MIB


def test_every_type_of_weights_has_a_size() -> None:
    assert set(BITS_PER_WEIGHT) == set(typing.get_args(WeightsDtype))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", 4096), ("bf16", 2048), ("fp8", 1024), ("q8_0", 1088), ("q4_0", 576)]
)
def test_weights_take_their_bits(dtype: str, expected: int) -> None:
    assert weights_bytes(1024, dtype) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA GeForce RTX 3060", 8519680),
        ("NVIDIA H100 80GB HBM3", 32 * MIB),
        ("NVIDIA GH200-480GB", 32 * MIB),
        ("NVIDIA A100-SXM4-80GB", 8519680),
    ],
)
def test_cublas_keeps_more_on_hopper(name: str, expected: int) -> None:
    assert cublas_workspace_bytes(name) == expected
