"""Sizes of weights."""

from __future__ import annotations

import typing

import pytest

from lib_vram.physics.weights import BITS_PER_WEIGHT, loaded_bytes, storage_type, weights_bytes
from lib_vram.request import WeightsDtype
from lib_vram.units import MIB


def test_every_type_of_weights_has_a_size() -> None:
    assert set(BITS_PER_WEIGHT) >= set(typing.get_args(WeightsDtype))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("fp32", 4096), ("bf16", 2048), ("fp8", 1024), ("q8_0", 1088), ("q4_0", 576), ("q4_1", 640), ("q5_0", 704),
        ("q2_k", 336), ("q3_k", 440), ("q4_k", 576), ("q5_k", 704), ("q6_k", 840), ("iq4_xs", 544), ("nf4", 576),
    ],
)  # fmt: skip
def test_weights_take_their_bits(dtype: str, expected: int) -> None:
    assert weights_bytes(1024, dtype) == expected


@pytest.mark.parametrize(
    ("parameters", "dtype", "mib"),
    [
        (859_520_964, "fp16", 1639.4),
        (859_520_964, "fp32", 3278.8),
        (2_567_463_684, "fp16", 4897.05),
        (83_653_863, "fp16", 159.56),
        (83_653_863, "fp32", 319.11),
        (83_819_683, "bf16", 159.87),
        (126_892_531, "bf16", 242.03),
        (11_901_408_320, "fp8", 11350),
    ],
)
def test_known_models_weigh_what_the_hosts_say(parameters: int, dtype: str, mib: float) -> None:
    assert weights_bytes(parameters, dtype) / MIB == pytest.approx(mib, abs=0.1 if mib < 9000 else 5)


def test_a_files_type_stands_for_one_of_a_request() -> None:
    types = typing.get_args(WeightsDtype)
    assert [storage_type(dtype) for dtype in types] == list(types)
    assert [storage_type(dtype) for dtype in ("q6_k", "q3_k", "nvfp4", "uint8")] == ["q8_0", "q4_k", "nf4", None]


def test_only_q4_k_grows_when_it_is_loaded() -> None:
    assert [loaded_bytes(1440, dtype) for dtype in ("q4_k", "q4_0", "q8_0", "fp8")] == [1600, 1440, 1440, 1440]
