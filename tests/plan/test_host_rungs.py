"""The rungs that change how the host works, one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lib_vram.plan.host_rungs import (
    ATTENTION,
    COND_UNCOND_APART,
    CONTROLNET_LOW_VRAM,
    FP8_STORAGE,
    FREE_IDLE_MODELS,
    LIVE_PREVIEW,
    RESERVE,
    UPSCALER_TILE,
    finer_reserves,
)
from lib_vram.plan.search import make_plan
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request


@pytest.mark.parametrize(
    ("preview", "candidates"), [("full", ("approx",)), ("taesd", ("approx",)), ("approx", ()), ("off", ())]
)
def test_previews_that_a_decoder_makes_can_be_made_by_approximation(preview, candidates):
    request = a_request(live_preview=preview)
    assert LIVE_PREVIEW.candidates(request) == candidates
    if candidates:
        assert LIVE_PREVIEW.apply(request, "approx").live_preview == "approx"


def test_the_preview_step_says_what_it_was():
    full = a_request(live_preview="full")
    assert str(LIVE_PREVIEW.text(full, LIVE_PREVIEW.apply(full, "approx"))) == (
        "Live preview Full → cheap approximation for this run: same picture"
    )


@pytest.mark.parametrize(
    ("attention", "candidates"),
    [("math", ("sdpa", "sub_quad")), ("split", ("sdpa", "sub_quad")), ("sub_quad", ("sdpa",)), ("sdpa", ())],
)
def test_attention_that_keeps_scores_can_be_another(attention, candidates):
    request = a_request(attention=attention)
    assert ATTENTION.candidates(request) == candidates
    assert [ATTENTION.apply(request, other).attention for other in candidates] == list(candidates)


@pytest.mark.parametrize(
    ("attention", "candidates"),
    [
        ("math", ("sdpa", "xformers", "sub_quad")), ("sub_quad", ("sdpa", "xformers")), ("sdpa", ("xformers",)),
        ("xformers", ()),
    ],
)  # fmt: skip
def test_xformers_is_one_of_them_where_it_is_installed(attention, candidates):
    assert ATTENTION.candidates(a_request(attention=attention, more_attention=["xformers"])) == candidates
    assert ATTENTION.costs("xformers") == "nothing"


def test_xformers_keeps_no_scores_in_the_vae_where_sdpa_does():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 14 * GIB, "used_by_others_bytes": GIB}
    fields = {"model": {"family": "sdxl"}, "width": 1536, "height": 1536, "device": device}
    plan = make_plan(a_request(**fields, more_attention=["xformers"]))
    assert [(step.id, step.after, step.costs) for step in plan.steps] == [("attention", "xformers", "nothing")]
    without = make_plan(a_request(**fields))
    assert [step.id for step in without.steps] == ["vae_tiled"]


def test_sdpa_costs_nothing_and_sub_quadratic_attention_time():
    assert (ATTENTION.costs("sdpa"), ATTENTION.costs("sub_quad")) == ("nothing", "time")


@pytest.mark.parametrize(
    ("host", "changes", "candidates"),
    [
        ("a1111", {}, (False,)),
        ("a1111", {"cfg_scale": 1.0}, (False,)),
        ("a1111", {"batch_cond_uncond": False}, ()),
        ("forge", {}, (False,)),
        ("forge", {"cfg_scale": 1.0}, ()),
    ],
)
def test_cond_and_uncond_can_be_put_apart_where_both_are_computed(host, changes, candidates):
    assert COND_UNCOND_APART.candidates(a_request(host=host, **changes)) == candidates


def test_controlnets_get_low_vram_one_after_the_other():
    request = a_request(controlnets=[{"low_vram": True}, {"kind": "ip_adapter"}, {}, {}])
    assert CONTROLNET_LOW_VRAM.candidates(request) == (1, 2)
    one, both = (CONTROLNET_LOW_VRAM.apply(request, how_many) for how_many in (1, 2))
    assert [unit.low_vram for unit in one.controlnets] == [True, False, True, False]
    assert [unit.low_vram for unit in both.controlnets] == [True, False, True, True]
    assert [CONTROLNET_LOW_VRAM.value(item) for item in (request, one, both)] == [1, 2, 3]
    assert str(CONTROLNET_LOW_VRAM.text(request, one)) == "ControlNet Low VRAM: same picture, slower steps"
    assert str(CONTROLNET_LOW_VRAM.text(request, both)) == "Low VRAM for 2 ControlNets: same picture, slower steps"


def test_the_reserve_grows_by_gibibytes_to_all_of_the_card():
    request = a_request(host="forge", device={"total_bytes": 4 * GIB}, forge={"inference_memory_bytes": GIB // 2})
    sizes = [size / GIB for size in RESERVE.candidates(request)]
    assert sizes == [1.5, 2.5, 3.5, 4.0]
    assert RESERVE.candidates(RESERVE.apply(request, 4 * GIB)) == ()


def test_the_reserve_is_then_cut_down_in_fine_steps():
    request = a_request(host="forge", forge={"inference_memory_bytes": GIB})
    sizes = finer_reserves(request, 2 * GIB)
    assert sizes[0] == GIB + 64 * MIB
    assert sizes[-1] == 2 * GIB
    assert all(larger - smaller == 64 * MIB for smaller, larger in pairwise(sizes))


def test_the_reserve_step_says_how_much():
    request = a_request(host="forge", forge={"inference_memory_bytes": GIB})
    text = str(RESERVE.text(request, RESERVE.apply(request, 3 * GIB)))
    assert text == "1.0 GiB → 3.0 GiB kept free for computing: same picture, slower steps"


def test_idle_models_are_unloaded_all_at_once():
    idle = [{"kind": "checkpoint", "bytes": 2 * GIB}, {"kind": "upscaler", "bytes": GIB // 2}]
    request = a_request(idle_models=idle)
    assert FREE_IDLE_MODELS.candidates(a_request()) == ()
    after = FREE_IDLE_MODELS.apply(request, FREE_IDLE_MODELS.candidates(request)[0])
    assert (FREE_IDLE_MODELS.value(request), FREE_IDLE_MODELS.value(after)) == (2, 0)
    assert str(FREE_IDLE_MODELS.text(request, after)) == (
        "Unload 2.5 GiB of models that this run does not use: same picture"
    )


@pytest.mark.parametrize(
    ("changes", "candidates"),
    [
        ({"hires": {"upscaler": "R-ESRGAN 4x+"}}, (128, 96, 64)),
        ({"hires": {"upscaler": "R-ESRGAN 4x+"}, "upscaler_tile": 96}, (64,)),
        ({"hires": {"upscaler": "R-ESRGAN 4x+"}, "upscaler_tile": 0}, (384, 256, 192, 128, 96, 64)),
        ({"hires": {"upscaler": "Lanczos"}}, ()),
        ({"hires": {"upscaler": "Latent"}}, ()),
        ({"hires": {"upscaler": "R-ESRGAN 4x+"}, "mode": "img2img"}, ()),
        ({}, ()),
    ],
)
def test_an_upscaler_on_the_card_can_have_smaller_tiles(changes, candidates):
    assert UPSCALER_TILE.candidates(a_request(**changes)) == candidates


@pytest.mark.parametrize(
    ("tile", "text"),
    [
        (None, "Upscaler tiles 192 → 96 pixels: same picture to the eye, slower upscale"),
        (0, "Upscaler in tiles of 96 pixels: same picture to the eye, slower upscale"),
    ],
)
def test_the_upscaler_step_says_what_its_tiles_were(tile, text):
    request = a_request(hires={"upscaler": "R-ESRGAN 4x+"}, upscaler_tile=tile)
    assert str(UPSCALER_TILE.text(request, UPSCALER_TILE.apply(request, 96))) == text


@pytest.mark.parametrize(
    ("model", "candidates"),
    [
        ({}, ("fp8",)),
        ({"weights_dtype": "bf16"}, ("fp8",)),
        ({"weights_dtype": "q8_0"}, ()),
        ({"weights_dtype": "fp8"}, ()),
        ({"storage_dtype": "nf4"}, ()),
    ],
)
def test_weights_that_are_not_small_already_can_be_stored_in_fp8(model, candidates):
    request = a_request(model={"family": "sdxl", **model})
    assert FP8_STORAGE.candidates(request) == candidates
    if candidates:
        after = FP8_STORAGE.apply(request, "fp8")
        assert (after.model.storage_dtype, after.model.weights_dtype) == ("fp8", request.model.weights_dtype)
