"""What weights and earlier generations leave to the next one."""

from __future__ import annotations

import pytest

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.component import Component
from lib_vram.physics.life import after, loaded
from lib_vram.physics.memory import component_trace
from lib_vram.physics.program import EventTrace
from lib_vram.units import MIB


def decode(width: int, height: int) -> EventTrace:
    """Return a VAE decode of SDXL."""
    return component_trace(Component("sdxl", "vae_decode", width, height))


def test_weights_take_the_segments_that_pytorch_makes_for_them() -> None:
    state = loaded([3 * MIB] * 7 + [64 * MIB, 512])
    assert state.reserved_bytes == (40 + 64 + 2) * MIB
    assert state.cached_bytes == (40 - 21 + 2) * MIB - 512


def test_the_tails_of_the_weights_serve_what_would_take_a_segment_of_its_own() -> None:
    small = component_trace(Component("sd15", "text_encode", 512, 512, cfg=False))
    alone, beside = after([]).peak_of(small), loaded([7 * MIB] * 3).peak_of(small)
    assert beside - 40 * MIB < alone


def test_the_same_generation_again_needs_nothing_new() -> None:
    state = after([decode(1024, 1024)])
    assert state.peak_of(decode(1024, 1024)) == state.reserved_bytes


def test_another_size_finds_the_cache_cut_for_the_first_one() -> None:
    fresh = after([]).peak_of(decode(1024, 1024))
    assert after([decode(832, 1216)]).peak_of(decode(1024, 1024)) > fresh


def test_expandable_segments_keep_the_two_closer() -> None:
    def added(text: str) -> int:
        conf = AllocatorConf.parse(text)
        state = after([decode(832, 1216)], conf)
        return state.peak_of(decode(1024, 1024)) - after([], conf).peak_of(decode(1024, 1024))

    assert added("expandable_segments:True") < added("")


def test_a_full_device_gives_the_cache_back_first() -> None:
    traces = [decode(832, 1216)]
    limit = after(traces).peak_of(decode(1024, 1024)) - 2 * MIB
    assert after(traces, limit_bytes=limit).runs(decode(1024, 1024))


def test_a_device_that_is_too_small_for_the_next_one_says_so() -> None:
    state = after([decode(512, 512)], limit_bytes=1000 * MIB)
    assert not state.runs(decode(1024, 1024))
    with pytest.raises(DeviceOutOfMemory):
        state.then(decode(1024, 1024))
