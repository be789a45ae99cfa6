"""What a plan offers a script of diffusers: the calls that it can make, and that it keeps its promises with them."""

from __future__ import annotations

import random

import pytest

from lib_vram.plan.adjustments import LADDER, offered
from lib_vram.plan.host_rungs import OFFLOAD, OFFLOAD_LAYERS, VAE_SLICED
from lib_vram.plan.ram import need_bytes, ram_need
from lib_vram.plan.search import make_plan
from lib_vram.plan.table import seen_bytes
from tests.estimate.test_diffusers import FAMILIES, MODEL, SEQUENTIAL, drawn, pipeline
from tests.plan.test_all_hosts import broken_promises


def on_card(gib, *calls, **fields):
    request = pipeline("sdxl", *calls, **fields)
    return request.replace(device=request.device.__class__(seen_bytes(gib)))


def test_it_is_offered_what_a_script_can_do_and_nothing_of_a_webui():
    names = {rung.id for rung in offered(pipeline())}
    assert names == {rung.id for rung in LADDER} - {
        "live_preview", "cond_uncond_apart", "upscaler_tile", "controlnet_low_vram", "reserve",
    }  # fmt: skip


def test_a_batch_of_sdxl_fits_on_8_gib_with_two_calls():
    plan = make_plan(on_card(8, batch_size=4))
    assert [step.id for step in plan.steps] == ["vae_sliced", "offload"]
    assert plan.request.host_args == ("--enable-vae-slicing", MODEL)
    assert [(step.before, step.after) for step in plan.steps] == [(False, True), ("whole", "model")]
    assert str(plan.steps[1].text).startswith("pipe.enable_model_cpu_offload() in place of")


def test_what_the_script_calls_already_is_not_offered_again():
    request = on_card(4, "--enable-vae-slicing", SEQUENTIAL, batch_size=4)
    assert [rung.candidates(request) for rung in (VAE_SLICED, OFFLOAD, OFFLOAD_LAYERS)] == [(), (), ()]
    assert OFFLOAD.candidates(on_card(4, MODEL)) == ()
    assert OFFLOAD_LAYERS.apply(on_card(4, MODEL), "sequential").host_args == (SEQUENTIAL,)
    assert VAE_SLICED.candidates(on_card(8)) == ()


def test_tiles_are_offered_that_are_smaller_than_the_picture_and_no_larger_than_the_vaes_own():
    rung = next(rung for rung in LADDER if rung.id == "vae_tiled")
    assert rung.candidates(pipeline("sdxl"))[:2] == (960, 896)
    assert rung.candidates(pipeline("sdxl", width=1536))[:2] == (1024, 960)
    assert rung.candidates(pipeline("sd15")) == (512, 448, 384, 320, 256)
    assert rung.candidates(pipeline("sd15", vae={"tiled": True, "tile_size": 320})) == (256,)
    assert rung.candidates(pipeline("sd15", width=256, height=256)) == ()
    assert rung.candidates(pipeline("wan21_1b", width=832, height=480)) == (256,)


def test_smaller_tiles_come_with_the_lines_that_set_them():
    plan = make_plan(on_card(4, SEQUENTIAL))
    assert [step.id for step in plan.steps] == ["vae_tiled"]
    assert str(plan.steps[0].text).startswith("vae.enable_tiling(), tile_sample_min_size = ")


def test_attention_that_diffusers_has_not_is_not_offered():
    rung = next(rung for rung in LADDER if rung.id == "attention")
    assert rung.candidates(pipeline("sdxl", attention="math")) == ("sdpa",)


def test_what_leaves_the_card_lies_in_ram():
    whole, model, sequential = (ram_need(pipeline("sdxl", *calls)) for calls in ([], [MODEL], [SEQUENTIAL]))
    assert whole and model and sequential
    assert whole.running_bytes < model.running_bytes < sequential.running_bytes
    assert need_bytes(pipeline("sdxl")) == whole.loading_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_keep_their_promises(family):
    rng = random.Random(f"plan {family}")
    for share in (0.4, 0.8):
        request = drawn(rng, family)
        tight = request.replace(device=request.device.__class__(int(request.device.total_bytes * share)))
        assert broken_promises(tight) == [], tight
