"""Tiles, guidance and Kohya's HR fix: what the UNet's work becomes, and what it takes beside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.estimate.patched import guidance_bytes, in_tiles, resized
from lib_vram.estimate.timeline import timeline
from lib_vram.physics.component import Component
from lib_vram.physics.memory import component_memory
from lib_vram.request import HrFix
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request, physics


def tiled(**changes):
    tiles = {"tile_width": 768, "tile_height": 768, "overlap": 64, "batch": 4, **changes.pop("tiles", {})}
    return a_request(host="forge", tiled_diffusion=tiles, **changes)


def sampled(request):
    return next(work.component for work in timeline(request) if work.phase == "sampling" and work.worker == "unet")


@pytest.mark.parametrize(
    ("size", "tiles", "expected"),
    [
        ((768, 768), {}, (768, 768, 1)),
        ((776, 768), {}, (768, 768, 2)),
        ((1472, 768), {}, (768, 768, 2)),  # two tiles of 96 cells, 8 of them common, are 184 cells
        ((1480, 768), {}, (768, 768, 3)),
        ((1472, 1472), {}, (768, 768, 4)),
        ((2048, 2048), {}, (768, 768, 3)),  # nine tiles in three turns
        ((2048, 2048), {"batch": 1}, (768, 768, 1)),
        ((2048, 2048), {"batch": 64}, (768, 768, 9)),
        ((2048, 512), {"tile_width": 512, "overlap": 0}, (512, 512, 4)),
        ((1024, 1024), {"tile_width": 512, "tile_height": 512, "overlap": 2048}, (512, 512, 4)),
    ],
)
def test_as_many_tiles_go_through_the_unet_as_the_script_puts_together(size, tiles, expected):
    request = tiled(width=size[0], height=size[1], tiles=tiles)
    component = in_tiles(request, sampled(request))
    assert (component.width, component.height, component.batch) == expected


def test_each_tile_has_all_pictures_of_the_batch():
    request = tiled(width=1472, height=1472, batch_size=3)
    assert in_tiles(request, sampled(request)).batch == 12


def test_the_vae_and_the_text_encoders_are_not_tiled():
    request = tiled(width=1472, height=1472)
    for work in timeline(request):
        if work.phase in ("vae_decode", "text_encode"):
            assert in_tiles(request, work.component) == work.component


def test_a_script_for_the_first_pass_leaves_the_second_whole():
    request = tiled(width=1472, height=1472, hires={"scale": 2.0}, tiles={"first_pass_only": True})
    first, second = (work.component for work in timeline(request) if work.worker == "unet")
    assert in_tiles(request, first).width == 768
    assert in_tiles(request, second) == second


def test_in_tiles_a_size_fits_that_does_not_fit_whole():
    size = {"width": 4096, "height": 4096, "device": {"total_bytes": 8 * GIB}, "vae": {"tiled": True}}
    peak = {phase.name: phase for phase in estimate(tiled(**size), physics).phases}["sampling"].floor_bytes
    whole = {phase.name: phase for phase in estimate(a_request(host="forge", **size), physics).phases}["sampling"]
    assert peak < whole.floor_bytes / 6


@given(side=st.integers(64, 4096), batch=st.integers(1, 9), total=st.integers(3, 12))
def test_what_fits_is_never_ruled_out(side, batch, total):
    request = tiled(width=side, height=side, tiles={"batch": batch}, device={"total_bytes": total * GIB})
    if estimate(request, physics).verdict in ("fits", "tight"):
        assert could_fit(request, physics)


UNET = Component(family="sdxl", part="denoise", width=1024, height=1024, batch=1, cfg=True)


@pytest.mark.parametrize(
    ("family", "side", "traced_mib"),
    [("sdxl", 1024, 385.9 - 305.9), ("sdxl", 2048, 4391.6 - 1221.6), ("sd15", 1024, 502.5 - 500.5),
     ("sd15", 2048, 2033.2 - 2001.2)],
)  # fmt: skip
def test_kept_scores_take_what_was_traced(family, side, traced_mib):
    request = a_request(host="forge", guidance=["sag"])
    component = Component(family=family, part="denoise", width=side, height=side, batch=1, cfg=True)
    assert guidance_bytes(request, component) / MIB == pytest.approx(traced_mib, abs=6)


def test_without_an_unconditional_half_the_host_leaves_that_guidance_out():
    assert guidance_bytes(a_request(host="forge", guidance=["sag"], cfg_scale=1), UNET) == 0


def test_guidance_that_runs_again_needs_no_more():
    assert guidance_bytes(a_request(host="forge", guidance=["pag"]), UNET) == 0


@pytest.mark.parametrize(("family", "mib"), [("sdxl", 15.0), ("sd15", 0)])
def test_freeu_adds_what_was_traced(family, mib):
    component = Component(family=family, part="denoise", width=1024, height=1024, batch=1, cfg=True)
    assert guidance_bytes(a_request(host="forge", guidance=["freeu"]), component) / MIB == pytest.approx(mib, abs=0.5)


def test_in_tiles_the_scores_are_those_of_the_tiles():
    request = tiled(width=1472, height=1472, guidance=["sag"], model={"family": "sdxl"})
    tile = Component(family="sdxl", part="denoise", width=768, height=768, batch=4, cfg=True)
    assert guidance_bytes(request, sampled(request)) == guidance_bytes(a_request(guidance=["sag"]), tile)


def test_a_factor_below_one_enlarges_the_unet():
    request = a_request(model={"family": "sdxl"}, hr_fix={"factor": 0.5})
    assert (resized(request, UNET).width, resized(request, UNET).height) == (2048, 2048)
    assert resized(a_request(model={"family": "sdxl"}, hr_fix={"factor": 2.0}), UNET) == UNET


PLAIN_MIB = {("sdxl", 1024): 305.9, ("sdxl", 2048): 1221.6, ("sd15", 1024): 500.5, ("sd15", 2048): 2001.2}


@pytest.mark.parametrize(
    ("family", "block", "side", "traced_mib"),
    [("sdxl", 3, 1024, 275.9), ("sdxl", 3, 2048, 1101.6), ("sdxl", 9, 2048, 1101.6), ("sdxl", 2, 1024, 266.1),
     ("sdxl", 2, 2048, 1046.9), ("sdxl", 1, 1024, 184.4), ("sdxl", 1, 2048, 725.1), ("sd15", 1, 1024, 460.5),
     ("sd15", 1, 2048, 1841.2), ("sd15", 3, 2048, 2001.2)],
)  # fmt: skip
def test_a_fix_in_every_step_leaves_what_was_traced_and_a_little_more(family, block, side, traced_mib):
    request = a_request(model={"family": family}, host="forge", hr_fix={"block": block, "end": 1.0})
    unet = Component(family=family, part="denoise", width=side, height=side, batch=1, cfg=True)
    floor_mib = component_memory(resized(request, unet)).floor_bytes / MIB
    assert component_memory(unet).floor_bytes / MIB == pytest.approx(PLAIN_MIB[family, side], abs=0.1)
    assert traced_mib - 0.1 <= floor_mib <= traced_mib * 1.045


@pytest.mark.parametrize(
    "changes",
    [{"attention": "math"}, {"hr_fix": {"end": 1.0, "factor": 1.5}}, {"hr_fix": {"end": 1.0, "start": 0.1}},
     {"model": {"family": "flux1"}}, {"model": {"family": "sd21"}}],
)  # fmt: skip
def test_what_was_not_traced_lowers_nothing(changes):
    request = a_request(**{"model": {"family": "sdxl"}, "hr_fix": {"end": 1.0}, **changes})
    unet = Component(family=request.model.family, part="denoise", width=1024, height=1024)
    assert resized(request, unet) == unet


@pytest.mark.parametrize(
    ("family", "fix", "note"),
    [
        ("sdxl", HrFix(), "hr_fix_some_steps"),
        ("sdxl", HrFix(end=1.0), "hr_fix_all_steps"),
        ("sdxl", HrFix(block=9, end=1.0), "hr_fix_all_steps"),
        ("sd15", HrFix(end=1.0), "hr_fix_some_steps"),
        ("sd15", HrFix(block=1, end=1.0), "hr_fix_all_steps"),
        ("sdxl", HrFix(factor=0.5), "hr_fix_enlarges"),
    ],
)
def test_a_note_says_what_kohyas_fix_does_to_the_peak(family, fix, note):
    request = a_request(model={"family": family}).replace(hr_fix=fix)
    notes = [item.key for item in estimate(request, physics).notes]
    assert [key for key in notes if "hr_fix" in key] == [f"estimate.{note}"]
    assert not any("hr_fix" in item.key for item in estimate(a_request(), physics).notes)
