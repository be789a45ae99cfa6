"""The caching allocator with expandable segments."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.physics.expandable import ExpandableAllocator
from lib_vram.units import MIB

EXPANDABLE = AllocatorConf.parse("expandable_segments:True")
SCRIPTS = st.lists(st.one_of(st.integers(1, 64 * MIB), st.integers(-40, -1)), max_size=60)


def play(allocator: CachingAllocator, script: list[int]) -> list[int]:
    """Put ``script`` through ``allocator``; return the blocks that are still held."""
    held: list[int] = []
    for step in script:
        if step > 0:
            held.append(allocator.malloc(step))
        elif held:
            allocator.free(held.pop(step % len(held)))
    return held


def test_the_option_makes_the_other_allocator() -> None:
    assert isinstance(CachingAllocator(None, EXPANDABLE), ExpandableAllocator)
    assert not isinstance(CachingAllocator(None), ExpandableAllocator)


def test_pages_are_2_mib_for_small_and_20_mib_for_large_blocks() -> None:
    allocator = CachingAllocator(None, EXPANDABLE)
    allocator.malloc(512)
    allocator.malloc(21 * MIB)
    assert allocator.reserved_bytes == 42 * MIB


def test_a_block_grows_over_what_was_free_at_the_end() -> None:
    allocator = CachingAllocator(None, EXPANDABLE)
    allocator.malloc(30 * MIB)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(70 * MIB)
    assert allocator.reserved_bytes == 100 * MIB


def test_a_full_device_unmaps_the_pages_that_lie_in_free_blocks() -> None:
    allocator = CachingAllocator(100 * MIB, EXPANDABLE)
    first = allocator.malloc(50 * MIB)
    allocator.malloc(10 * MIB)
    allocator.free(first)
    allocator.malloc(60 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_a_device_that_is_too_small_fails() -> None:
    with pytest.raises(DeviceOutOfMemory):
        CachingAllocator(50 * MIB, EXPANDABLE).malloc(50 * MIB)


@given(SCRIPTS)
def test_blocks_never_overlap_and_reserved_covers_allocated(script: list[int]) -> None:
    allocator = CachingAllocator(None, EXPANDABLE)
    assert isinstance(allocator, ExpandableAllocator)
    spans = sorted((block & 1, block & ~1, allocator._sizes[block]) for block in play(allocator, script))
    assert all(one[0] != other[0] or one[1] + one[2] <= other[1] for one, other in pairwise(spans))
    assert allocator.allocated_bytes == sum(size for _, _, size in spans) <= allocator.reserved_bytes


@given(SCRIPTS)
def test_when_everything_is_given_back_every_page_can_be(script: list[int]) -> None:
    allocator = CachingAllocator(None, EXPANDABLE)
    for block in play(allocator, script):
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@given(SCRIPTS, SCRIPTS)
def test_a_copy_lives_its_own_life(first: list[int], second: list[int]) -> None:
    allocator = CachingAllocator(None, EXPANDABLE)
    play(allocator, first)
    before = (allocator.allocated_bytes, allocator.reserved_bytes)
    twin = allocator.copy()
    play(twin, [step for step in second if step > 0])
    again = CachingAllocator(None, EXPANDABLE)
    play(again, first)
    play(again, [step for step in second if step > 0])
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == before
    assert (twin.allocated_bytes, twin.reserved_bytes) == (again.allocated_bytes, again.reserved_bytes)
