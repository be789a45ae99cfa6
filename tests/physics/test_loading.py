"""What weights take beyond their sum: against what was published, and by the allocator's own rules."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.encoders import ENCODERS
from lib_vram.estimate.weights import ARCHITECTURES
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.controlnets import CONTROLNETS
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.loading import LOADED_WEIGHTS, known_numbers, on_device
from lib_vram.units import MIB

PLAIN = AllocatorConf()
PUBLISHED = Path(__file__).parent.parent / "accuracy" / "data" / "published.jsonl"
FAMILIES = [family for family in SHAPES if family != LOADED]
OTHERS = {"open_clip_h": 13_644_800, "qwen25_vl_7b": 676_550_144, "clip_g": 1}
"""What the hosts' own files have beside what was traced: a layer, the weights for pictures, a temperature."""


def pipeline(family, dtype="fp16", *, vae_dtype=None):
    """Return every tensor of a pipeline of ``family``, loaded in this order."""
    encoders = ((item.name, dtype) for item in SHAPES[family].encoders)
    return (*encoders, (f"{family}-denoise", dtype), (f"{SHAPES[family].vae}-vae", vae_dtype or dtype))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_every_denoiser_with_all_its_weights(family):
    assert sum(map(abs, known_numbers(f"{family}-denoise"))) == ARCHITECTURES[family].unet


@pytest.mark.parametrize("name", ENCODERS)
def test_the_table_has_every_text_encoder(name):
    assert sum(map(abs, known_numbers(name))) == ENCODERS[name].all - OTHERS.get(name, 0)


@pytest.mark.parametrize("family", ["sd15", "sd21", "sdxl", "flux1", "qwen_image"])
def test_the_table_has_the_controlnets_that_stand_for_a_family(family):
    assert sum(map(abs, known_numbers(f"{family}-controlnet"))) == CONTROLNETS[family][0].parameters


def test_what_is_not_known_has_no_tensors():
    assert known_numbers("loaded-denoise") == ()
    assert on_device((("loaded-denoise", "fp16"),), PLAIN) is None


def test_the_table_is_small():
    assert LOADED_WEIGHTS.stat().st_size < 32_000


@pytest.mark.parametrize(
    ("name", "more_mib", "tails_mib"),
    [("sd15-denoise", 13.2, 49.4), ("sdxl-denoise", 101.2, 155.8), ("clip_l", 6.6, 3.7), ("sd15-vae", 5.3, 5.2),
     ("flux1-denoise", 1.0, 1.3), ("sd35_large-denoise", 375.3, 12.4)],
)  # fmt: skip
def test_a_part_in_half_precision_takes_more_than_its_sum(name, more_mib, tails_mib):
    found = on_device(((name, "fp16"),), PLAIN)
    assert (found.allocated_bytes - found.sum_bytes) / MIB == pytest.approx(more_mib, abs=0.05)
    assert found.tails_bytes / MIB == pytest.approx(tails_mib, abs=0.05)


@pytest.mark.parametrize(("family", "more_mib"), [("sdxl", 114), ("sd15", 27), ("flux1", 15)])
def test_whole_models_take_what_was_found_against_published_rows(family, more_mib):
    found = on_device(pipeline(family), PLAIN)
    assert (found.allocated_bytes - found.sum_bytes) / MIB == pytest.approx(more_mib, abs=6)


def rows():
    """Return what published pipelines had on the card after loading, where it was computed by loading them."""
    for line in PUBLISHED.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("beside") == "computed" and row["family"] != "sd15":  # that has a safety checker too
            yield pytest.param(row, id=row["id"])


@pytest.mark.parametrize("row", list(rows()))
def test_it_is_what_published_pipelines_have_on_the_card_after_loading(row):
    vae_dtype = row.get("vae_dtype", row["dtype"])  # of one that is decoded in fp32 the middle stays in half precision
    found = on_device(pipeline(row["family"], row["dtype"], vae_dtype=vae_dtype.split("_")[0]), PLAIN)
    assert found.allocated_bytes == pytest.approx(row["beside_bytes"], rel=0.003)


@pytest.mark.parametrize("conf", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_segments_that_grow_and_the_driver_s_pool_leave_the_512_bytes_alone(conf):
    found = on_device((("sdxl-denoise", "fp16"),), AllocatorConf.parse(conf))
    assert found.tails_bytes == 0
    assert 0 < found.allocated_bytes - found.sum_bytes < 512 * 1680


def test_a_setting_that_rounds_up_rounds_weights_up_too():
    rounded = on_device((("sdxl-denoise", "fp16"),), AllocatorConf.parse("roundup_power2_divisions:4"))
    assert rounded.allocated_bytes > on_device((("sdxl-denoise", "fp16"),), PLAIN).allocated_bytes * 1.02


def test_vectors_of_a_quantised_part_stay_in_half_precision_and_scales_are_tensors_of_their_own():
    assert on_device((((-1024, 65536), "q8_0"),), PLAIN).sum_bytes == 2 * 1024 + 65536 * 34 // 32
    assert on_device((((-1024, 65536), "nf4"),), PLAIN).sum_bytes == 2 * 1024 + 65536 // 2 + 65536 // 64 * 4
    assert on_device((((-1024, 65536), "fp8"),), PLAIN).sum_bytes == 1024 + 65536


def test_half_of_a_part_takes_half_of_it():
    found = on_device((("sdxl-denoise", "fp16"),), PLAIN)
    assert found.allocated(found.sum_bytes) == found.allocated_bytes
    assert found.tails(found.sum_bytes) == found.tails_bytes
    half = found.sum_bytes // 2
    assert abs(2 * (found.allocated(half) - half) - (found.allocated_bytes - found.sum_bytes)) < 4
    assert found.allocated(0) == found.tails(0) == 0


COUNTS = st.lists(st.integers(1, 30_000_000).flatmap(lambda count: st.sampled_from([count, -count])), min_size=1)


@given(COUNTS, st.sampled_from(["fp32", "fp16", "fp8", "nf4", "q8_0", "q4_k"]))
def test_nothing_takes_less_than_its_sum_nor_more_than_a_mebibyte_a_tensor(numbers, dtype):
    found = on_device(((tuple(numbers), dtype),), PLAIN)
    if found is None:
        assert set(numbers) <= {-1, 1} and dtype in ("nf4", "q4_k")
        return
    blocks = 2 * len(numbers)
    assert found.sum_bytes <= found.allocated_bytes <= found.sum_bytes + blocks * MIB
    assert 0 <= found.tails_bytes <= 22 * MIB * blocks


def test_what_is_loaded_after_one_another_is_loaded_into_the_same_allocator():
    one = tuple(chain(known_numbers("clip_l"), known_numbers("clip_g")))
    assert on_device(((one, "fp16"),), PLAIN) == on_device((("clip_l", "fp16"), ("clip_g", "fp16")), PLAIN)
