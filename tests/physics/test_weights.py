"""Sizes of weights."""

from __future__ import annotations

import typing

import pytest

from lib_vram.physics.weights import BITS_PER_WEIGHT, weights_bytes
from lib_vram.request import WeightsDtype


def test_every_type_of_weights_has_a_size() -> None:
    assert set(BITS_PER_WEIGHT) == set(typing.get_args(WeightsDtype))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", 4096), ("bf16", 2048), ("fp8", 1024), ("q8_0", 1088), ("q4_0", 576)]
)
def test_weights_take_their_bits(dtype: str, expected: int) -> None:
    assert weights_bytes(1024, dtype) == expected
