"""Scratch of layers whose weights are stored in another type than they are computed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.physics.quantised import held_bytes, scratch_bytes
from lib_vram.physics.weights import BITS_PER_WEIGHT
from lib_vram.request import Dtype

LAYER = 12288 * 3072


@pytest.mark.parametrize(
    ("dtype", "fp16_bytes", "bf16_bytes"),
    [
        ("q4_0", 113_246_208, 113_246_208),
        ("q4_1", 188_743_680, 188_743_680),
        ("q5_0", 377_487_360, 379_846_656),
        ("q5_1", 377_487_360, 382_205_952),
        ("q8_0", 75_497_472, 75_497_472),
        ("q2_k", 198_181_376, 198_771_200),
        ("q3_k", 200_540_160, 200_835_072),
        ("q4_k", 188_743_680, 188_743_680),
        ("q5_k", 271_319_040, 271_613_952),
        ("q6_k", 198_180_864, 198_180_864),
    ],
)
def test_unpacking_takes_what_the_hosts_code_took_in_a_trace(dtype: str, fp16_bytes: int, bf16_bytes: int) -> None:
    assert scratch_bytes(dtype, LAYER, "fp16") == pytest.approx(fp16_bytes, abs=1024)
    assert scratch_bytes(dtype, LAYER, "bf16") == pytest.approx(bf16_bytes, abs=1024)
    assert held_bytes(dtype, LAYER, "bf16") == 2 * LAYER


@pytest.mark.parametrize(
    ("dtype", "compute", "expected"),
    [
        ("fp16", "fp16", 0),
        ("bf16", "fp16", 2 * LAYER),
        ("fp8", "bf16", 2 * LAYER),
        ("fp8", "fp8", 0),
        ("fp16", "fp32", 4 * LAYER),
        ("nf4", "bf16", 2 * LAYER),
        ("int8", "bf16", 0),
        ("q8_0", "fp32", 2 * LAYER + 4 * LAYER),
    ],
)
def test_a_cast_takes_the_weights_in_the_compute_type(dtype: str, compute: Dtype, expected: int) -> None:
    assert scratch_bytes(dtype, LAYER, compute) == expected


def test_scales_that_are_quantised_too_and_scaled_fp8_take_more() -> None:
    assert scratch_bytes("nf4", LAYER, "bf16", nested=True) == 2 * LAYER + LAYER // 16
    assert scratch_bytes("fp8", LAYER, "bf16", scaled=True) == 4 * LAYER


def test_a_type_that_no_host_unpacks_is_refused() -> None:
    with pytest.raises(ValueError, match="iq4_xs"):
        scratch_bytes("iq4_xs", LAYER, "fp16")


@given(
    dtype=st.sampled_from(sorted(BITS_PER_WEIGHT)),
    layer=st.integers(0, 2**32),
    more=st.integers(0, 2**20),
    compute=st.sampled_from(["fp32", "fp16", "bf16"]),
)
def test_a_larger_layer_never_needs_less_and_the_peak_holds_the_weights(
    dtype: str, layer: int, more: int, compute: Dtype
) -> None:
    try:
        smaller = scratch_bytes(dtype, layer, compute)
    except ValueError:
        return
    assert held_bytes(dtype, layer, compute) <= smaller <= scratch_bytes(dtype, layer + more, compute)
