"""The published ControlNets: peaks of fresh traces of the code that runs them, weights of the published files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.component import Code, Component
from lib_vram.physics.controlnets import CONTROLNETS, result_numbers, shape_of, variant_of, variants
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.request import Family

TRACED: tuple[tuple[Family, str, Code, int, int, int, int], ...] = (
    ("flux1", "", "ldm", 1, 1024, 1024, 1877321216),
    ("flux1", "", "ldm", 2, 768, 1280, 3536704000),
    ("flux1", "union2", "ldm", 1, 1024, 1024, 1241731584),
    ("flux1", "union2", "ldm", 2, 768, 1280, 2334731776),
    ("flux1", "single", "ldm", 1, 1024, 1024, 1191399936),
    ("flux1", "single", "ldm", 2, 768, 1280, 2240359936),
    ("flux1", "xlabs", "ldm", 1, 1024, 1024, 1046172160),
    ("flux1", "xlabs", "ldm", 2, 768, 1280, 1968057856),
    ("sd35_large", "", "ldm", 1, 1024, 1024, 658549760),
    ("sd35_large", "", "ldm", 2, 768, 1280, 1234784768),
    ("flux1", "", "diffusers", 1, 1024, 1024, 1073355776),
    ("flux1", "", "diffusers", 2, 768, 1280, 2012558848),
    ("flux1", "union2", "diffusers", 1, 1024, 1024, 466157056),
    ("flux1", "union2", "diffusers", 2, 768, 1280, 870518784),
    ("flux1", "single", "diffusers", 1, 1024, 1024, 434773504),
    ("flux1", "single", "diffusers", 2, 768, 1280, 817188864),
    ("flux1", "xlabs", "diffusers", 1, 1024, 1024, 365567488),
    ("flux1", "xlabs", "diffusers", 2, 768, 1280, 687427584),
    ("qwen_image", "", "diffusers", 1, 1024, 1024, 477706752),
    ("qwen_image", "", "diffusers", 2, 768, 1280, 894333440),
    ("sd35_medium", "", "diffusers", 1, 1024, 1024, 873028096),
    ("sd35_medium", "", "diffusers", 2, 768, 1280, 1637396992),
    ("sd35_large", "", "diffusers", 1, 1024, 1024, 1156064768),
    ("sd35_large", "", "diffusers", 2, 768, 1280, 2167621632),
    ("zimage", "", "diffusers", 1, 1024, 1024, 1440352768),
    ("zimage", "", "diffusers", 1, 768, 1280, 1359377920),
    ("zimage", "fun1", "diffusers", 1, 1024, 1024, 806717952),
    ("zimage", "fun1", "diffusers", 1, 768, 1280, 761822720),
    ("zimage", "lite", "diffusers", 1, 1024, 1024, 826935808),
    ("zimage", "lite", "diffusers", 1, 768, 1280, 780039680),
    ("wan21_1b", "", "diffusers", 1, 1024, 1024, 789112832),
    ("wan21_1b", "", "diffusers", 2, 768, 1280, 1476381696),
    ("wan21_14b", "", "diffusers", 1, 1024, 1024, 1625521152),
    ("wan21_14b", "", "diffusers", 2, 768, 1280, 3046433792),
)
"""Family, which of its ControlNets, code, batch, width, height and the peak in bytes; of five frames for Wan. From the
modules of ``tools/control_parts.py`` (reForge) and ``tools/diffusers_parts.py``."""

LORA_PEAKS = ((2, 512, 97_582_080), (2, 768, 175_974_400), (2, 1024, 312_338_432), (8, 1024, 1_249_351_168))
"""Batch, side and the peak in bytes of SDXL's Control-LoRA of rank 256 in Forge's own classes."""

SDXL_UNION_PEAK_BYTES = 312_338_432
"""Of Forge Neo's own class with eight kinds of hint, at 1024×1024 and a batch of two."""


def net(family: Family, variant: str = "", code: Code = "ldm", **changes: object) -> Component:
    """A ControlNet at 1024×1024 without an unconditional half."""
    return Component(family, "controlnet", **{"width": 1024, "height": 1024, "cfg": False, "code": code,
                     "variant": variant} | changes)  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize(("family", "variant", "code", "batch", "width", "height", "peak_bytes"), TRACED)
def test_the_peak_is_that_of_a_fresh_trace(family, variant, code, batch, width, height, peak_bytes):
    frames = 5 if family.startswith("wan") else 1
    at = net(family, variant, code, batch=batch, width=width, height=height, frames=frames)
    assert component_trace(at).floor_bytes == pytest.approx(peak_bytes, rel=0.0005)
    assert component_memory(at).source == "profile"


def test_a_union_of_sdxl_peaks_where_its_other_controlnets_do():
    assert component_trace(net("sdxl", batch=2)).floor_bytes == SDXL_UNION_PEAK_BYTES


@pytest.mark.parametrize(("batch", "side", "peak_bytes"), LORA_PEAKS)
def test_a_control_lora_peaks_where_forges_own_does(batch, side, peak_bytes):
    at = net("sdxl", "lora", batch=batch, width=side, height=side)
    assert component_trace(at).floor_bytes == pytest.approx(peak_bytes, rel=0.0005)
    assert component_trace(replace(at, host="a1111")).floor_bytes >= peak_bytes


@pytest.mark.parametrize(
    ("family", "variant", "file_gigabytes"),
    [("flux1", "", 6.60), ("flux1", "union2", 4.28), ("flux1", "single", 3.58), ("flux1", "xlabs", 1.49),
     ("qwen_image", "", 3.54), ("zimage", "", 6.71), ("zimage", "fun1", 3.10), ("zimage", "lite", 2.02),
     ("sdxl", "", 2.50), ("sdxl", "lora", 0.774)],
)  # fmt: skip
def test_weights_are_those_of_the_published_files(family, variant, file_gigabytes):
    at = net(family, variant)
    assert component_memory(at).weights_bytes / 1e9 == pytest.approx(file_gigabytes, abs=0.006)
    assert component_memory(at).weights_bytes == pytest.approx(2 * shape_of(family, variant).parameters, rel=0.0005)


@pytest.mark.parametrize("family", CONTROLNETS)
def test_every_variant_answers_in_every_type_and_says_what_it_weighs(family):
    for variant in ("", *variants(family)):
        half, full = (component_memory(net(family, variant, dtype=dtype)) for dtype in ("fp16", "fp32"))
        assert 0 < half.floor_bytes <= half.minimum_bytes <= half.comfortable_bytes
        assert full.weights_bytes == 2 * half.weights_bytes
        assert full.floor_bytes > half.floor_bytes


@pytest.mark.parametrize("family", ["chroma", "lumina2", "flux2_klein_4b", "sdxl_refiner"])
def test_a_family_that_nobody_has_made_one_for_is_not_guessed(family):
    with pytest.raises(NotReady, match=f"there is none of {family} yet"):
        component_memory(net(family))


@pytest.mark.parametrize(("family", "part"), [("flux1", "denoise"), ("sdxl", "controlnet")])
def test_a_variant_that_there_is_not_is_refused(family, part):
    with pytest.raises(BadInput, match="variant"):
        component_memory(Component(family, part, 512, 512, variant="union2"))


@pytest.mark.parametrize(
    ("family", "file_bytes", "variant"),
    [("flux1", None, ""), ("flux1", 6_603_953_920, ""), ("flux1", 4_281_779_224, "union2"),
     ("flux1", 3_583_232_168, "single"), ("flux1", 1_487_621_136, "xlabs"), ("zimage", 3_101_600_000, "fun1"),
     ("zimage", 2_016_700_000, "lite"), ("sdxl", 5_004_000_000, ""), ("chroma", 1_000_000, "")],
)  # fmt: skip
def test_a_files_size_tells_which_one_it_is(family, file_bytes, variant):
    assert variant_of(family, file_bytes) == variant


def test_what_is_handed_over_counts_blocks_width_and_tokens():
    assert result_numbers("flux1", "", 1024, 1024, 1) == 15 * 3072 * 4096
    assert result_numbers("zimage", "fun1", 1024, 768, 1) == 6 * 3840 * (64 * 48 + 512)
    assert result_numbers("wan21_14b", "", 832, 480, 21) == 8 * 5120 * 21 * 52 * 30
    assert result_numbers("sd21", "", 512, 512, 1) == result_numbers("sd15", "", 512, 512, 1)
    assert result_numbers("chroma", "", 512, 512, 1) == 0
