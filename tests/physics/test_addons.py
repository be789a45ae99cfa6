"""Upscalers, face restorers and adapters: what they need, as the hosts run them."""

from __future__ import annotations

import pytest

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.addons import (
    NOT_COUNTED,
    addon_memory,
    lora_scratch_bytes,
    restore_memory,
    upscaler_dtype,
    upscaler_kind,
)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("esrgan", 16_697_987), ("compact", 1_213_296), ("gfpgan", 86_444_252), ("codeformer", 94_112_707),
     ("clip_vision_h", 632_076_800)],
)  # fmt: skip
def test_weights_are_those_of_the_published_models(kind, parameters):
    assert addon_memory(kind, 512, 512, dtype="fp16").weights_bytes == 2 * parameters
    assert addon_memory(kind, 512, 512, dtype="fp32").weights_bytes == 4 * parameters


def test_a_tiled_upscaler_needs_the_same_for_any_larger_picture():
    assert addon_memory("esrgan", 512, 512) == addon_memory("esrgan", 4096, 2048)
    assert addon_memory("esrgan", 512, 512).floor_bytes < addon_memory("esrgan", 512, 512, tile=0).floor_bytes


def test_without_tiles_the_need_grows_with_the_area():
    small, large = (addon_memory("compact", side, side, tile=0).floor_bytes for side in (256, 512))
    assert large == pytest.approx(4 * small, rel=0.01)


def test_swinir_keeps_the_enlarged_picture_on_the_card():
    def result(side):
        return addon_memory("swinir", side, side, dtype="fp32").floor_bytes

    assert result(1024) - result(512) == 3 * 4 * 33 * (1024**2 - 512**2)


def test_a_face_is_always_512_pixels_and_its_detector_sees_the_whole_picture():
    assert addon_memory("codeformer", 512, 512) == addon_memory("codeformer", 4096, 4096)
    small, large = restore_memory("codeformer", 512, 512), restore_memory("codeformer", 4096, 4096)
    assert small.weights_bytes == large.weights_bytes > addon_memory("codeformer", 512, 512, dtype="fp32").weights_bytes
    assert large.minimum_bytes > small.minimum_bytes


@pytest.mark.parametrize("kind", ["esrgan", "compact", "swinir", "dat", "hat", "gfpgan", "codeformer", "retinaface",
                                  "t2i_adapter_sd15", "t2i_adapter_sdxl", "clip_vision_h"])  # fmt: skip
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_every_kind_answers_in_order(kind, dtype):
    memory = addon_memory(kind, 768, 640, dtype=dtype)
    assert 0 < memory.low_bytes <= memory.floor_bytes <= memory.minimum_bytes <= memory.comfortable_bytes
    assert memory.floor_bytes <= memory.high_bytes


@pytest.mark.parametrize(
    ("name", "kind"),
    [("Latent (bicubic)", None), ("None", None), ("Lanczos", None), ("ScuNET PSNR", None), ("LDSR", None),
     ("ESRGAN_4x", "esrgan"), ("R-ESRGAN 4x+ Anime6B", "esrgan"), ("R-ESRGAN General 4xV3", "compact"),
     ("4x-UltraSharp", "esrgan"), ("SwinIR 4x", "swinir"), ("DAT x4", "dat"), ("HAT_SRx4", "hat")],
)  # fmt: skip
def test_an_upscalers_name_tells_its_kind(name, kind):
    assert upscaler_kind(name) == kind


def test_only_r_esrgan_runs_in_half_precision():
    assert [upscaler_dtype(name) for name in ("R-ESRGAN 4x+", "4x-UltraSharp", "SwinIR 4x")] == ["fp16", "fp32", "fp32"]


def test_a_lora_takes_three_copies_of_the_layer_at_hand():
    assert lora_scratch_bytes(1000) == 6000
    assert lora_scratch_bytes(1000, merges_in_fp32=True) == 12000


def test_what_has_no_profile_is_said():
    for kind in NOT_COUNTED:
        with pytest.raises(NotReady):
            addon_memory(kind, 512, 512)


@pytest.mark.parametrize("field", ["width", "height", "batch"])
def test_no_size_below_one(field):
    with pytest.raises(BadInput, match=field):
        addon_memory("esrgan", **{"width": 64, "height": 64} | {field: 0})
