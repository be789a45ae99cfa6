"""Quantised layouts: real numbers from packed ones, exact bytes with all scales."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.model.inspect import inspect_file
from lib_vram.model.packing import weights_in
from lib_vram.model.tensor import Tensor

Stored = dict[str, tuple[str, tuple[int, ...]]]
LAYER = "double_blocks.0.img_attn.proj"
N = 3072 * 3072
WHOLE = ("F8_E4M3", (3072, 3072))


def weigh(stored: Stored) -> tuple[dict[str, int], int]:
    """Return the numbers by dtype and all bytes."""
    sizes = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "BOOL": 1}
    tensors = []
    for name, (dtype, shape) in stored.items():
        count = 1
        for side in shape:
            count *= side
        tensors.append(Tensor(name, dtype, shape, count * sizes[dtype]))
    numbers: dict[str, int] = {}
    for weight in weights_in(tensors):
        if weight.parameters:
            numbers[weight.dtype] = numbers.get(weight.dtype, 0) + weight.parameters
    return numbers, sum(weight.size_bytes for weight in weights_in(tensors))


NF4: Stored = {
    f"{LAYER}.weight": ("U8", (N // 2, 1)),
    f"{LAYER}.weight.absmax": ("F32", (N // 64,)),
    f"{LAYER}.weight.quant_map": ("F32", (16,)),
    f"{LAYER}.weight.quant_state.bitsandbytes__nf4": ("U8", (82,)),
    f"{LAYER}.bias": ("F16", (3072,)),
}
NESTED: Stored = {
    f"{LAYER}.weight": ("U8", (N // 2, 1)),
    f"{LAYER}.weight.absmax": ("U8", (N // 64,)),
    f"{LAYER}.weight.nested_absmax": ("F32", (N // 64 // 256,)),
    f"{LAYER}.weight.nested_quant_map": ("F32", (256,)),
    f"{LAYER}.weight.quant_map": ("F32", (16,)),
    f"{LAYER}.weight.quant_state.bitsandbytes__fp4": ("U8", (99,)),
}


@pytest.mark.parametrize(
    ("stored", "numbers", "size_bytes"),
    [
        (NF4, {"nf4": N, "fp16": 3072}, N // 2 + N // 16 + 64 + 82 + 6144),
        (NESTED, {"fp4": N}, N // 2 + N // 64 + N // 4096 + 1024 + 64 + 99),
        ({"a.weight": ("I8", (8, 8)), "a.SCB": ("F32", (8,)), "a.weight_format": ("U8", ())}, {"int8": 64}, 97),
        ({"a.weight": WHOLE, "a.scale_weight": ("F32", ()), "scaled_fp8": ("F8_E4M3", (2,))}, {"fp8": N}, N + 6),
        ({"a.weight": WHOLE, "a.weight_scale": ("F32", ()), "a.comfy_quant": ("U8", (28,))}, {"fp8": N}, N + 32),
        (
            {"a.weight._data": WHOLE, "a.weight._scale": ("F32", (3072, 1)), "a.output_scale": ("F32", ())},
            {"fp8": N},
            N + 4 * 3072 + 4,
        ),
        ({"a.weight": ("I8", (8, 8)), "a.weight_scale": ("F32", (8, 1))}, {"int8": 64}, 96),
        (
            {
                "a.weight": ("U8", (64, 32)), "a.weight_scale": ("F8_E4M3", (64, 4)),
                "a.weight_scale_2": ("F32", ()), "a.input_scale": ("F32", ()),
            },
            {"nvfp4": 4096},
            2048 + 256 + 8,
        ),
        (
            {
                "a.qweight": ("I8", (64, 32)), "a.wscales": ("BF16", (1, 64)), "a.smooth_factor": ("BF16", (64,)),
                "a.proj_down": ("BF16", (64, 32)), "a.proj_up": ("BF16", (64, 32)), "a.bias": ("BF16", (64,)),
            },
            {"int4": 4096, "bf16": 64},
            2048 + 128 + 128 + 4096 + 4096 + 128,
        ),
        ({"a.qweight": ("I8", (64, 32)), "a.wscales": ("F8_E4M3", (4, 64))}, {"fp4": 4096}, 2048 + 256),
        ({"a.qweight": ("I32", (16, 32)), "a.wscales": ("BF16", (1, 64))}, {"int4": 4096}, 2176),
        ({"a.weight": ("F16", (4,)), "position_ids": ("I64", (1, 77)), "spiece_model": ("U8", (9,))}, {"fp16": 4}, 633),
    ],
)  # fmt: skip
def test_numbers_and_bytes_of_a_layout(stored: Stored, numbers: dict[str, int], size_bytes: int) -> None:
    assert weigh(stored) == (numbers, size_bytes)


def test_a_norm_called_scale_is_a_weight() -> None:
    assert weigh({"img_attn.norm.key_norm.scale": ("BF16", (128,)), "a.scales": ("F16", (4,))})[0] == {
        "bf16": 128, "fp16": 4,
    }  # fmt: skip


def test_a_4_bit_flux_file_is_weighed_and_recognised(model_file: Callable[..., Path]) -> None:
    prefixed = {f"model.diffusion_model.{name}": entry for name, entry in NF4.items()}
    more = {f"model.diffusion_model.{name}.bias": ("F16", (3072,)) for name in ("vector_in.in_layer", "img_in")}
    text = "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.k"
    stored = {**prefixed, **more, f"{text}.weight": ("F8_E4M3", (4096, 4096))}
    checkpoint = inspect_file(model_file(stored))
    transformer, encoder = checkpoint.components
    assert (checkpoint.family, checkpoint.variant) == ("flux1", "schnell")
    assert (transformer.name, transformer.dtype, transformer.parameters) == ("transformer", "nf4", N + 3 * 3072)
    assert transformer.bytes == N // 2 + N // 16 + 64 + 82 + 3 * 6144
    assert transformer.largest_layer == N
    assert (encoder.kind, encoder.dtype) == ("t5_xxl", "fp8")


@given(
    st.dictionaries(
        st.sampled_from(
            [*NF4, *NESTED, "a.qweight", "a.wscales", "a.weight_scale_2", "a.weight", "._scale", ".qweight"]
        ),
        st.tuples(st.sampled_from(["U8", "I8", "F16", "I32", "F8_E4M3"]), st.lists(st.integers(0, 4), max_size=3)),
    )
)
def test_no_byte_is_lost_whatever_the_names(stored: dict[str, tuple[str, list[int]]]) -> None:
    tensors = [Tensor(name, dtype, tuple(shape), 7) for name, (dtype, shape) in stored.items()]
    assert sum(weight.size_bytes for weight in weights_in(tensors)) == 7 * len(tensors)
