"""The driver's own pool behind ``backend:cudaMallocAsync``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.physics.cuda_malloc_async import CHUNK, StreamOrderedPool
from lib_vram.units import MIB

ASYNC = AllocatorConf.parse("backend:cudaMallocAsync")
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


def test_the_backend_makes_the_pool() -> None:
    assert isinstance(CachingAllocator(None, ASYNC), StreamOrderedPool)


def test_the_pool_grows_by_chunks_and_small_blocks_have_their_own() -> None:
    pool = CachingAllocator(None, ASYNC)
    pool.malloc(512)
    pool.malloc(33 * MIB)
    assert pool.reserved_bytes == 96 * MIB


def test_what_is_left_of_a_chunk_serves_later_requests() -> None:
    pool = CachingAllocator(None, ASYNC)
    pool.malloc(40 * MIB)
    pool.malloc(24 * MIB)
    assert pool.reserved_bytes == 64 * MIB


def test_free_neighbours_merge_across_chunks() -> None:
    pool = CachingAllocator(None, ASYNC)
    for block in [pool.malloc(32 * MIB) for _ in range(3)]:
        pool.free(block)
    pool.malloc(96 * MIB)
    assert pool.reserved_bytes == 96 * MIB


def test_a_full_device_takes_unused_chunks_back() -> None:
    pool = CachingAllocator(128 * MIB, ASYNC)
    first = pool.malloc(64 * MIB)
    pool.malloc(32 * MIB)
    pool.free(first)
    pool.malloc(90 * MIB)
    assert pool.reserved_bytes == 128 * MIB


def test_a_device_that_is_too_small_fails() -> None:
    with pytest.raises(DeviceOutOfMemory):
        CachingAllocator(63 * MIB, ASYNC).malloc(33 * MIB)


@given(SCRIPTS)
def test_reserved_is_whole_chunks_and_covers_allocated(script: list[int]) -> None:
    pool = CachingAllocator(None, ASYNC)
    held = play(pool, script)
    assert pool.reserved_bytes % CHUNK == 0
    assert pool.allocated_bytes <= pool.reserved_bytes
    for block in held:
        pool.free(block)
    pool.empty_cache()
    assert (pool.allocated_bytes, pool.reserved_bytes) == (0, 0)
