"""What the allocator's environment variable says, and what PyTorch would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import BadInput
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.units import GIB, MIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "backend:native",
        " expandable_segments:False , backend:native",
        "release_lock_on_cudamalloc:True,pinned_use_cuda_host_register:True,pinned_num_register_threads:8",
        "graph_capture_record_stream_reuse:True",
        "throw_on_cudamalloc_oom:True,pinned_use_background_threads:False,pinned_reserve_segment_size_mb:64",
        "expandable_segments_reserve_by_class:[a:0.5,b:40G]",
        "roundup_power2_divisions:[256:0,>:0]",
    ],
)
def test_options_that_move_no_block_are_the_default(text: str) -> None:
    conf = AllocatorConf.parse(text)
    assert [conf.rounded(size) for size in (5, 3 * MIB + 1, GIB + 1)] == [512, 3 * MIB + 512, GIB + 512]
    assert (conf.expandable, conf.stream_ordered, conf.collects) == (False, False, False)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "nonsense:1",
        "expandable_segments:maybe",
        "expandable_segments:true",
        "expandable_segments",
        "max_split_size_mb:20",
        "max_split_size_mb:",
        "max_split_size_mb:²5",
        "backend:cudaMalloc",
        "garbage_collection_threshold:1",
        "garbage_collection_threshold:nan",
        "per_process_memory_fraction:1.5",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[256:1",
        "roundup_power2_divisions:[300:1]",
        "throw_on_cudamalloc_oom:1",
        "pinned_reserve_segment_size_mb:0",
    ],
)
def test_what_pytorch_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="alloc_conf"):
        AllocatorConf.parse(text)


def test_an_option_of_no_pytorch_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match="got 'split_size_mb:64'"):
        AllocatorConf.parse("expandable_segments:True,split_size_mb:64")


@pytest.mark.parametrize(
    ("asked_mb", "taken_mb"), [(1, 1), (1.1, 1.25), (1200, 1280), (1024, 1024), (1025, 1280), (1900, 2048)]
)
def test_requests_are_rounded_to_divisions_of_a_power_of_two(asked_mb: float, taken_mb: float) -> None:
    """PyTorch's documentation: 1200 lies between 1024 and 2048; in four parts the next one is 1280."""
    conf = AllocatorConf.parse("roundup_power2_divisions:4")
    assert conf.rounded(int(asked_mb * MIB)) == taken_mb * MIB


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (200 * MIB + 1, 200 * MIB + 512),
        (520 * MIB, 768 * MIB),
        (1100 * MIB, 1280 * MIB),
        (5 * GIB, 5 * GIB),
        (5 * GIB + 1, 5 * GIB + GIB // 2),
    ],
)
def test_a_list_gives_each_power_of_two_its_own_divisions(asked: int, taken: int) -> None:
    conf = AllocatorConf.parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    expected = taken if asked != 1100 * MIB else 1152 * MIB
    assert conf.rounded(asked) == expected


def test_very_small_requests_are_not_rounded_to_divisions() -> None:
    assert AllocatorConf.parse("roundup_power2_divisions:8").rounded(3000) == 3072


def test_above_the_bypass_nothing_is_rounded_to_divisions() -> None:
    conf = AllocatorConf.parse("roundup_power2_divisions:2,roundup_bypass_threshold_mb:100")
    assert conf.rounded(70 * MIB) == 96 * MIB
    assert conf.rounded(130 * MIB) == 130 * MIB


@given(st.integers(1, 2**40), st.sampled_from((1, 2, 4, 8, 16)))
def test_rounding_covers_the_request_and_rounds_once(size: int, divisions: int) -> None:
    conf = AllocatorConf.parse(f"roundup_power2_divisions:{divisions}")
    assert size <= conf.rounded(size) <= 2 * max(size, 512)
    assert conf.rounded(conf.rounded(size)) == conf.rounded(size)
    assert conf.rounded(-(-size // 512) * 512) == conf.rounded(size)


def test_the_drivers_pool_ignores_what_belongs_to_the_cache() -> None:
    conf = AllocatorConf.parse("backend:cudaMallocAsync,max_split_size_mb:64,roundup_power2_divisions:4")
    assert conf == AllocatorConf(stream_ordered=True)


def test_a_fraction_limits_what_may_be_reserved() -> None:
    assert AllocatorConf.parse("per_process_memory_fraction:0.5").allowed_bytes(8 * GIB) == 4 * GIB
    assert AllocatorConf().allowed_bytes(8 * GIB) == 8 * GIB


def test_nothing_is_collected_without_a_fraction() -> None:
    assert not AllocatorConf.parse("garbage_collection_threshold:0.6").collects
    assert AllocatorConf.parse("garbage_collection_threshold:0.6,per_process_memory_fraction:1").collects
