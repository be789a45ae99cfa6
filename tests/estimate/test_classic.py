"""Forge Classic's memory manager, by hand."""

from __future__ import annotations

import pytest

from lib_vram.estimate.classic import part_that_fits
from lib_vram.estimate.estimator import estimate
from lib_vram.plan.search import make_plan
from lib_vram.request import Request

GIB, MIB = 1024**3, 1024**2


def a_request(**fields):
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 12 * GIB}
    base = {"host": "classic", "model": {"family": "sdxl"}, "width": 1024, "height": 1024, "device": device}
    return Request.from_dict(base | fields)


def parts(request, phase="sampling"):
    return next(dict(item.resident_parts) for item in estimate(request).phases if item.name == phase)


@pytest.mark.parametrize(
    ("size", "free", "part"),
    [(2 * GIB, 3 * GIB, 2 * GIB), (2 * GIB, 3 * GIB - 1, int((2 * GIB - 1) / 1.3)), (2 * GIB, GIB, 0), (GIB, 0, 0)],
)
def test_a_model_is_whole_above_the_reserve_else_what_is_free_over_13(size, free, part):
    assert part_that_fits(size, free, GIB) == part


def test_a_larger_need_does_not_lower_the_part_that_is_loaded():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 5 * GIB}
    small, large = (a_request(device=device, width=side, height=side) for side in (512, 2048))
    assert parts(small)["unet"] == parts(large)["unet"] < 4800 * MIB


AS_ALLOCATED = 1.0207
"""What SDXL's UNet takes of its sum."""


def test_the_reserve_of_a_run_is_what_the_part_goes_by():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 6 * GIB}
    one, three = (a_request(device=device, forge={"inference_memory_bytes": size * GIB}) for size in (1, 3))
    assert parts(one)["unet"] - parts(three)["unet"] == pytest.approx(
        1.0207 * 2 * GIB / 1.3, abs=4 * MIB
    )  # as allocated


@pytest.mark.parametrize("fields", [{"forge": {"never_oom_unet": True}}, {"host_args": ["--always-no-vram"]}])
def test_always_offloading_leaves_one_layer_on_the_card(fields):
    found = parts(a_request(**fields))
    assert "unet" not in found and found["swap"] > 0


def test_always_high_vram_loads_all_whatever_is_free():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 5 * GIB}
    assert parts(a_request(device=device, host_args=["--always-high-vram"]))["unet"] > 4800 * MIB


def test_never_oom_for_the_vae_works_and_a_plan_uses_it():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 7 * GIB // 2, "used_by_others_bytes": GIB}
    plan = make_plan(a_request(device=device, model={"family": "sd15"}))
    assert plan.fits and [step.id for step in plan.steps] == ["vae_tiled"]
    assert plan.request.forge.never_oom_vae and plan.steps[0].text.key == "plan.vae_tiled_forge"


def test_a_need_beyond_the_reserve_sends_the_other_models_away():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 8 * GIB}
    assert "unet" in parts(a_request(device=device, model={"family": "sd15"}, width=512, height=512), "vae_decode")
    assert "unet" not in parts(
        a_request(device=device, model={"family": "sd15"}, width=1536, height=1536), "vae_decode"
    )
