"""The caching allocator's rules, one by one, and what always holds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator, rounded, segment_bytes
from lib_vram.units import MIB

SIZES = st.integers(1, 64 * MIB)
SCRIPTS = st.lists(st.one_of(SIZES, st.integers(-40, -1)), max_size=60)
"""A positive number takes a block of that size; a negative one gives back one of those that are held."""


def play(allocator: CachingAllocator, script: list[int]) -> dict[int, int]:
    """Put ``script`` through ``allocator``; return the blocks that are still held, with the size asked for."""
    held: dict[int, int] = {}
    for step in script:
        if step > 0:
            held[allocator.malloc(step)] = step
        elif held:
            block = list(held)[step % len(held)]
            del held[block]
            allocator.free(block)
    return held


@pytest.mark.parametrize(
    ("asked", "taken"), [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_sizes_are_rounded_to_512_bytes(asked: int, taken: int) -> None:
    assert rounded(asked) == taken


@pytest.mark.parametrize(
    ("block", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
        (25 * MIB + 512, 26 * MIB),
    ],
)
def test_segments_are_as_large_as_pytorch_makes_them(block: int, segment: int) -> None:
    assert segment_bytes(block) == segment
    allocator = CachingAllocator()
    allocator.malloc(block)
    assert allocator.reserved_bytes == segment


def test_small_and_large_blocks_do_not_share_segments() -> None:
    allocator = CachingAllocator()
    allocator.malloc(5 * MIB)
    allocator.malloc(512)
    assert allocator.reserved_bytes == 22 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, kept, small = allocator.malloc(40 * MIB), allocator.malloc(12 * MIB), allocator.malloc(20 * MIB)
    allocator.free(large)
    allocator.free(small)
    allocator.malloc(18 * MIB)
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == 72 * MIB
    assert kept is not None


def test_a_large_block_is_not_split_for_a_mebibyte_or_less() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(19 * MIB)
    assert allocator.allocated_bytes == 20 * MIB


def test_a_large_block_is_split_for_more_than_a_mebibyte() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(19 * MIB - 512)
    assert allocator.allocated_bytes == 19 * MIB - 512
    allocator.malloc(MIB + 512)
    assert allocator.reserved_bytes == 20 * MIB


def test_a_small_block_is_split_for_512_bytes() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(512) for _ in range(4096)]
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc(512)
    assert allocator.reserved_bytes == 4 * MIB
    assert len(set(blocks)) == 4096


def test_freed_neighbours_merge_into_room_for_a_larger_block() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    assert allocator.reserved_bytes == 20 * MIB
    for block in (blocks[1], blocks[3], blocks[2]):
        allocator.free(block)
    allocator.malloc(15 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_a_full_device_gives_whole_free_segments_back_before_it_fails() -> None:
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(30 * MIB)
    assert allocator.reserved_bytes == 30 * MIB


def test_a_segment_in_use_anywhere_is_not_given_back() -> None:
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    first = allocator.malloc(10 * MIB)
    second = allocator.malloc(5 * MIB)
    allocator.free(first)
    with pytest.raises(DeviceOutOfMemory) as caught:
        allocator.malloc(30 * MIB)
    fault = caught.value
    assert (fault.requested_bytes, fault.limit_bytes) == (30 * MIB, 40 * MIB)
    assert (fault.allocated_bytes, fault.reserved_bytes) == (5 * MIB, 20 * MIB)
    assert second is not None


def test_a_failure_names_the_next_limit_that_would_change_it() -> None:
    allocator = CachingAllocator(limit_bytes=40 * MIB)
    allocator.malloc(20 * MIB)
    with pytest.raises(DeviceOutOfMemory):
        allocator.malloc(30 * MIB)
    assert allocator.next_limit_bytes == 50 * MIB


def test_with_a_split_limit_large_blocks_are_kept_whole() -> None:
    conf = AllocatorConf.parse("max_split_size_mb:32")
    allocator = CachingAllocator(conf=conf)
    allocator.free(allocator.malloc(64 * MIB))
    allocator.malloc(24 * MIB)
    assert allocator.reserved_bytes == 88 * MIB
    allocator.malloc(50 * MIB)
    assert allocator.reserved_bytes == 88 * MIB


def test_with_a_split_limit_one_large_block_is_given_back_first() -> None:
    allocator = CachingAllocator(120 * MIB, AllocatorConf.parse("max_split_size_mb:32"))
    for block in [allocator.malloc(size * MIB) for size in (40, 50, 8)]:
        allocator.free(block)
    allocator.malloc(24 * MIB)
    assert allocator.reserved_bytes == 20 * MIB + 50 * MIB + 24 * MIB


@given(SCRIPTS)
def test_blocks_never_overlap_and_reserved_covers_allocated(script: list[int]) -> None:
    allocator = CachingAllocator()
    held = play(allocator, script)
    spans = sorted((allocator._address[block], allocator._size[block]) for block in held)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert allocator.allocated_bytes == sum(size for _, size in spans) <= allocator.reserved_bytes
    assert all(allocator._size[block] >= asked for block, asked in held.items())


@given(SCRIPTS)
def test_when_everything_is_given_back_every_segment_is_whole_again(script: list[int]) -> None:
    allocator = CachingAllocator()
    for block in play(allocator, script):
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@given(SCRIPTS, SIZES)
def test_touching_is_taking_and_giving_back(script: list[int], size: int) -> None:
    allocator = CachingAllocator()
    play(allocator, script)
    twin = allocator.copy()
    allocator.touch(rounded(size))
    twin.free(twin.malloc(size))
    assert allocator.peak_allocated_bytes == twin.peak_allocated_bytes
    assert allocator.reserved_bytes == twin.reserved_bytes
    assert [key >> 16 for key in allocator._large] == [key >> 16 for key in twin._large]
    assert [key >> 16 for key in allocator._small] == [key >> 16 for key in twin._small]


@given(SCRIPTS, SIZES, SIZES)
def test_touching_two_is_taking_both_and_giving_both_back(script: list[int], first: int, second: int) -> None:
    allocator = CachingAllocator()
    play(allocator, script)
    twin = allocator.copy()
    allocator.touch_two(rounded(first), rounded(second))
    for block in [twin.malloc(first), twin.malloc(second)]:
        twin.free(block)
    assert allocator.reserved_bytes == twin.reserved_bytes
    assert [key >> 16 for key in allocator._large] == [key >> 16 for key in twin._large]
    assert [key >> 16 for key in allocator._small] == [key >> 16 for key in twin._small]


@given(SCRIPTS, SCRIPTS)
def test_a_copy_lives_its_own_life(first: list[int], second: list[int]) -> None:
    allocator = CachingAllocator()
    play(allocator, first)
    before = (allocator.allocated_bytes, allocator.reserved_bytes, list(allocator._large), list(allocator._size))
    play(allocator.copy(), [step for step in second if step > 0])
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator._large, allocator._size) == before
