"""Which attention kernel runs where, and what changes its token count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.physics.attention import FREED, RESULT, WAYS, Call, Step, sage_steps
from lib_vram.physics.kernels import (
    CUBLAS_WORKSPACE_BYTES,
    Shortened,
    capability_of,
    has_fused_attention,
    hypertiles,
    merged_tokens,
    platform_of,
    sdpa_kernel,
    sdpa_steps,
    with_hypertile,
    with_merged_tokens,
)
from lib_vram.units import MIB

CALL = Call(2, 8, 4096, 4096, 64, 2, 0)


def peak(steps: list[Step]) -> int:
    """Return the most that is taken at once, and check that all but the result is given back."""
    held: dict[int, int] = {}
    most = 0
    for name, size in steps:
        if size == FREED:
            del held[name]
        else:
            held[name] = size
        most = max(most, sum(held.values()))
    assert list(held) == [RESULT]
    return most


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA GeForce RTX 4060 Ti", (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA GeForce RTX 3060", (8, 6)),
        ("NVIDIA RTX A4000", (8, 6)),
        ("NVIDIA A100-SXM4-40GB", (8, 0)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5)),
        ("NVIDIA GeForce GTX 1660 SUPER", (7, 5)),
        ("Tesla T4", (7, 5)),
        ("Tesla V100-PCIE-16GB", (7, 0)),
        ("Tesla P100-PCIE-16GB", (6, 0)),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("NVIDIA GeForce GTX 970", (5, 2)),
        ("Tesla K80", (3, 7)),
        ("something else", None),
        ("", None),
    ],
)
def test_a_name_tells_the_generation(name: str, capability: tuple[int, int] | None) -> None:
    assert capability_of(name) == capability


@pytest.mark.parametrize(
    ("name", "platform", "fused"),
    [
        ("NVIDIA GeForce RTX 3060", "cuda", True),
        ("NVIDIA GeForce GTX 1080", "cuda", True),
        ("Tesla K80", "cuda", False),
        ("AMD Radeon RX 6700 XT", "rocm", False),
        ("AMD Radeon RX 7900 XTX", "rocm", True),
        ("AMD Instinct MI250X", "rocm", True),
        ("Apple M2 Max", "mps", False),
        ("Intel(R) Arc(TM) A770 Graphics", "other", False),
        ("unheard of", "cuda", True),
    ],
)
def test_a_name_tells_the_platform_and_whether_a_score_matrix_is_kept(name: str, platform: str, fused: bool) -> None:
    assert (platform_of(name), has_fused_attention(name)) == (platform, fused)


@pytest.mark.parametrize(
    ("dtype", "head", "dims", "mask", "gpu", "kernel"),
    [
        ("fp16", 64, 4, False, (8, 6), "flash"),
        ("bf16", 128, 4, False, None, "flash"),
        ("fp16", 256, 4, False, (8, 9), "flash"),
        ("fp16", 512, 4, False, (8, 9), "efficient"),
        ("fp16", 64, 4, True, (8, 6), "efficient"),
        ("fp32", 64, 4, False, (8, 6), "efficient"),
        ("fp32", 66, 4, False, (8, 6), "math"),
        ("fp16", 40, 4, False, (7, 5), "efficient"),
        ("fp16", 44, 4, False, (7, 5), "math"),
        ("fp16", 44, 4, False, (6, 1), "efficient"),
        ("bf16", 64, 4, False, (7, 5), "math"),
        ("fp16", 64, 4, False, (3, 7), "math"),
        ("fp16", 512, 3, False, (8, 6), "math"),
        ("bf16", 128, 4, False, (9, 0), "cudnn"),
        ("bf16", 256, 4, False, (9, 0), "flash"),
        ("fp16", 64, 4, False, (12, 0), "flash"),
    ],
)
def test_torch_chooses_the_kernel(dtype: str, head: int, dims: int, mask: bool, gpu: object, kernel: str) -> None:
    assert sdpa_kernel(dtype, head, dims, mask, gpu) == kernel  # type: ignore[arg-type]


def test_fused_kernels_keep_no_score_matrix() -> None:
    result = 2 * 8 * 4096 * 64 * 2
    assert peak(sdpa_steps(CALL, "efficient")) == result
    assert peak(sdpa_steps(CALL, "flash")) == result + 2 * 8 * 4096 * 4
    assert peak(sdpa_steps(CALL, "math")) > 2 * 2 * 8 * 4096 * 4096 * 2


def test_a_mask_whose_rows_are_not_whole_vectors_is_copied() -> None:
    call = CALL._replace(keys=77)
    bare, masked = peak(sdpa_steps(call, "efficient")), peak(sdpa_steps(call, "efficient", 77 * 1000))
    assert masked - bare == 80 * 1000
    assert peak(sdpa_steps(CALL, "efficient", 1000)) == peak(sdpa_steps(CALL, "efficient"))


def test_sage_attention_keeps_query_and_key_as_bytes() -> None:
    size = CALL.query_bytes()
    assert 0 < peak(sage_steps(CALL)) - 2 * size < 0.02 * size
    assert peak(sage_steps(CALL, eight_bit_values=True)) > peak(sage_steps(CALL))


@pytest.mark.parametrize(("ratio", "left"), [(0.0, 4096), (0.5, 2048), (0.75, 1024), (0.9, 1024)])
def test_merging_leaves_a_quarter_at_least(ratio: float, left: int) -> None:
    assert merged_tokens(4096, ratio) == left
    assert with_merged_tokens(CALL, ratio).score_bytes(left) == CALL.score_bytes(1) * left * left // 4096


@pytest.mark.parametrize(("side", "tile", "count"), [(64, 32, 2), (64, 16, 4), (96, 32, 3), (100, 32, 2), (13, 4, 1)])
def test_hypertile_takes_the_most_tiles_that_divide_the_side(side: int, tile: int, count: int) -> None:
    assert hypertiles(side, tile) == count


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_hypertile_keeps_what_goes_in_and_shrinks_the_scores(rows: int, columns: int, tile: int) -> None:
    call = CALL._replace(queries=rows * columns, keys=rows * columns)
    tiled = with_hypertile(call, rows, columns, tile)
    assert tiled.query_bytes() == call.query_bytes()
    assert tiled.score_bytes(tiled.queries) <= call.score_bytes(call.queries)


def test_of_several_divisions_the_one_that_needs_most_counts() -> None:
    assert [hypertiles(64, 16, choices) for choices in (1, 2, 3, 9)] == [4, 2, 1, 1]


def test_hypertile_reaches_the_levels_down_to_its_depth() -> None:
    tiles = Shortened(tile_size=128, depth=1)
    batches = []
    for level in range(3):
        tokens = (128 >> level) * (96 >> level)
        call = CALL._replace(queries=tokens, keys=tokens)
        batches.append(tiles.call(call, 128, 96).batch // CALL.batch)
    assert batches == [8 * 6, 2 * 1, 1]


def test_merging_is_for_self_attention_at_the_first_level_alone() -> None:
    merging = Shortened(merge_ratio=0.5)
    own, cross = CALL._replace(queries=64 * 64, keys=64 * 64), CALL._replace(queries=64 * 64, keys=77)
    deeper = CALL._replace(queries=32 * 32, keys=32 * 32)
    assert merging.call(own, 64, 64).keys == 2048
    assert merging.call(cross, 64, 64) == cross
    assert merging.call(deeper, 64, 64) == deeper


def test_sage_leaves_large_heads_to_torch() -> None:
    way = WAYS["neo"]["sage"]
    assert way.steps(CALL, 4096) == sage_steps(CALL, eight_bit_values=True)
    large = CALL._replace(head_size=160)
    assert way.steps(large, 4096) == WAYS["neo"]["sdpa"].steps(large, 4096)


def test_cublas_takes_8_mib_and_an_eighth() -> None:
    assert CUBLAS_WORKSPACE_BYTES == 8.125 * MIB
