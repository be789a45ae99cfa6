"""The caching allocator with a collection threshold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.physics.collecting import CollectingAllocator
from lib_vram.units import MIB

CONF = AllocatorConf.parse("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0")
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


def test_below_the_threshold_free_segments_are_kept() -> None:
    allocator = CachingAllocator(200 * MIB, CONF)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(50 * MIB)
    assert isinstance(allocator, CollectingAllocator)
    assert allocator.reserved_bytes == 90 * MIB


def test_above_the_threshold_the_oldest_go_until_it_is_met() -> None:
    allocator = CachingAllocator(200 * MIB, CONF)
    old, young = allocator.malloc(60 * MIB), allocator.malloc(70 * MIB)
    allocator.free(old)
    kept = allocator.malloc(20 * MIB)
    allocator.free(kept)
    allocator.free(young)
    assert allocator.reserved_bytes == 130 * MIB
    allocator.malloc(80 * MIB)
    assert allocator.reserved_bytes == 150 * MIB


def test_without_a_limit_nothing_is_collected() -> None:
    allocator = CachingAllocator(None, CONF)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(50 * MIB)
    assert allocator.reserved_bytes == 90 * MIB


@given(SCRIPTS)
def test_without_a_limit_it_is_the_caching_allocator(script: list[int]) -> None:
    collecting, caching = CachingAllocator(None, CONF), CachingAllocator(None)
    play(collecting, script)
    play(caching, script)
    assert collecting.peak_reserved_bytes == caching.peak_reserved_bytes
    assert collecting.allocated_bytes == caching.allocated_bytes


@given(SCRIPTS)
def test_every_free_block_has_an_age(script: list[int]) -> None:
    allocator = CachingAllocator(None, CONF)
    assert isinstance(allocator, CollectingAllocator)
    held = play(allocator, script)
    twin = allocator.copy()
    for block in held:
        twin.free(block)
    assert allocator.allocated_bytes >= twin.allocated_bytes == 0
    twin.limit_bytes = 1
    twin._collect(2**60)
    assert twin._large == []
