"""Upscalers, face restorers, detectors and adapters: what they need, as the hosts run them."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from lib_vram.errors import BadInput
from lib_vram.physics.addons import (
    Addon,
    AddonKind,
    addon_memory,
    addon_trace,
    addon_weights_bytes,
    composed_bytes,
)
from lib_vram.physics.allocator import CachingAllocator

KINDS = get_args(AddonKind)


def floor(kind: AddonKind, side: int, **changes: object) -> int:
    """What ``kind`` needs for a square picture."""
    return addon_memory(replace(Addon(kind, side, side), **changes)).floor_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("esrgan", 16_697_987), ("compact", 1_213_296), ("gfpgan", 86_444_252), ("codeformer", 94_112_707),
     ("clip_vision_h", 632_076_800), ("scunet", 17_946_072), ("parsenet", 21_303_254), ("hed", 14_716_168)],
)  # fmt: skip
def test_weights_are_those_of_the_published_models(kind, parameters):
    assert addon_weights_bytes(Addon(kind, 512, 512)) == 4 * parameters


def test_half_precision_halves_the_weights_of_what_can_run_in_it():
    assert addon_weights_bytes(Addon("esrgan", 512, 512, "fp16")) == 2 * 16_697_987
    assert addon_weights_bytes(Addon("swinir", 512, 512, "fp16")) == addon_weights_bytes(Addon("swinir", 512, 512))


def test_a_tiled_upscaler_needs_the_same_for_any_larger_picture():
    assert floor("esrgan", 512, tile=192) == floor("esrgan", 4096, tile=192) < floor("esrgan", 512)


def test_without_tiles_the_need_grows_with_the_area():
    assert floor("compact", 512) == pytest.approx(4 * floor("compact", 256), rel=0.01)


def test_a_network_that_folds_pixels_into_channels_needs_a_quarter():
    assert floor("esrgan", 192, shuffle=2) == floor("esrgan", 96)


def test_swinir_puts_its_tiles_together_on_the_card():
    assert composed_bytes(Addon("swinir", 1024, 512)) == 3 * 4 * 33 * 1024 * 512
    assert composed_bytes(Addon("scunet", 1024, 512)) == 3 * 4 * 3 * 1024 * 512
    assert composed_bytes(Addon("dat", 1024, 512)) == 0


def test_a_face_is_always_512_pixels_and_its_detector_sees_at_least_640():
    assert floor("codeformer", 512) == floor("codeformer", 4096)
    assert floor("retinaface", 256) == floor("retinaface", 640) < floor("retinaface", 1024)


def test_openpose_looks_at_a_body_in_184_rows_whatever_the_picture():
    assert floor("openpose_body", 512) == floor("openpose_body", 2048)
    wide = addon_memory(Addon("openpose_body", 1024, 512)).floor_bytes
    assert wide > floor("openpose_body", 512)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_every_kind_answers_in_order(kind, dtype):
    memory = addon_memory(Addon(kind, 768, 640, dtype))
    assert 0 < memory.low_bytes <= memory.floor_bytes <= memory.minimum_bytes <= memory.comfortable_bytes
    assert memory.floor_bytes <= memory.high_bytes
    assert memory.source == "profile"


@pytest.mark.parametrize("kind", KINDS)
def test_every_trace_runs_in_its_minimum_and_leaves_nothing(kind):
    addon = Addon(kind, 512, 768, tile=192 if kind in ("dat", "hat", "swinir") else 0)
    allocator = CachingAllocator(addon_memory(addon).minimum_bytes)
    addon_trace(addon).replay(allocator)
    assert allocator.allocated_bytes == 0


def test_a_stand_in_is_a_rule_with_a_wide_interval_and_its_own_weights():
    own = addon_memory(Addon("depth_anything", 512, 512))
    stand_in = addon_memory(Addon("depth_anything", 512, 512, by_rule=True, parameters=1000))
    assert (stand_in.source, stand_in.weights_bytes) == ("rule", 4000)
    assert stand_in.low_bytes < own.low_bytes
    assert stand_in.high_bytes > own.high_bytes


TRACED = (
    ("t2i_adapter_sd15", 512, 512, 37_617_664),
    ("t2i_adapter_sd15", 1024, 1024, 61_997_056),
    ("t2i_adapter_sd15", 1280, 768, 59_965_440),
    ("t2i_adapter_sdxl", 1024, 1024, 56_754_176),
    ("midas", 512, 512, 452_089_856),
    ("midas", 768, 512, 678_057_984),
    ("manga_line", 512, 512, 277_955_584),
    ("manga_line", 768, 512, 416_891_904),
    ("mobile_sam", 512, 512, 1_904_547_840),
    ("uniformer", 512, 512, 395_575_296),
    ("uniformer", 768, 512, 574_488_576),
)
"""Kind, width, height and the peak in bytes: T2I-Adapters of Forge's class in fp16, the others of the code in A1111's
ControlNet extension in fp32."""


@pytest.mark.parametrize(("kind", "width", "height", "peak_bytes"), TRACED)
def test_an_addon_peaks_where_the_hosts_own_code_does(kind, width, height, peak_bytes):
    dtype = "fp16" if kind.startswith("t2i") else "fp32"
    assert addon_memory(Addon(kind, width, height, dtype)).floor_bytes == pytest.approx(peak_bytes, rel=0.0005)


@pytest.mark.parametrize("field", ["width", "height"])
def test_no_size_below_one(field):
    with pytest.raises(BadInput, match=field):
        Addon("esrgan", **({"width": 64, "height": 64} | {field: 0}))
