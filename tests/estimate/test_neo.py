"""Neo's memory manager, followed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.estimate.forge import Model
from lib_vram.estimate.neo import MINIMUM_BYTES, RESERVED_BYTES, NeoMemory, Rules, denoise_estimate_bytes, rules_of
from lib_vram.physics.component import Component
from lib_vram.plan.search import make_plan
from lib_vram.request import Request
from lib_vram.units import GIB, MIB

OWN = Rules(MINIMUM_BYTES + RESERVED_BYTES, RESERVED_BYTES)
UNET, TEXT, VAE = Model("unet", 4 * GIB, 64 * MIB), Model("text_encoders", GIB, 32 * MIB), Model("vae", GIB // 4, MIB)


def a_request(**fields):
    base = {"host": "neo", "model": {"family": "sdxl"}, "width": 1024, "height": 1024, "vae": {"dtype": "bf16"},
            "device": {"total_bytes": 8 * GIB}}  # fmt: skip
    return Request.from_dict(base | fields)


def on_card(memory):
    return {item.model.name: item.on_device_bytes for item in memory.loaded}


def test_a_model_that_leaves_the_reserve_free_is_loaded_whole_beside_the_others():
    memory = NeoMemory(8 * GIB, OWN)
    memory.load((TEXT,))
    memory.load((UNET,))
    assert on_card(memory) == {"unet": 4 * GIB, "text_encoders": GIB}


def test_other_models_lose_only_as_much_as_is_wanted_free():
    """Forge sends a model away as a whole; Neo takes the missing part of it."""
    memory = NeoMemory(6 * GIB, OWN)
    memory.load((TEXT,))
    memory.load((UNET,))
    wanted = int(1.1 * UNET.size_bytes + OWN.minimum_bytes)
    assert on_card(memory) == {"unet": 4 * GIB, "text_encoders": 6 * GIB - wanted}


def test_a_model_that_does_not_fit_is_loaded_up_to_the_reserve_and_a_layer():
    memory = NeoMemory(4 * GIB, OWN)
    memory.load((UNET,))
    assert on_card(memory) == {"unet": 4 * GIB - OWN.minimum_bytes - UNET.layer_bytes}


def test_a_resident_model_gives_weights_back_for_a_larger_need():
    memory = NeoMemory(6 * GIB, OWN)
    memory.load((UNET,))
    assert on_card(memory) == {"unet": 4 * GIB}
    memory.load((UNET,), 5 * GIB, 2.5 * GIB)
    assert on_card(memory) == {"unet": int(6 * GIB - 2.5 * GIB - RESERVED_BYTES) - UNET.layer_bytes}


def test_half_of_the_need_is_enough_for_the_weights_to_stay():
    memory = NeoMemory(8 * GIB, OWN)
    memory.load((UNET,), 6 * GIB, 3 * GIB)
    assert on_card(memory) == {"unet": 4 * GIB}


def test_several_models_of_one_call_share_what_is_left():
    memory = NeoMemory(5 * GIB, OWN)
    memory.load((UNET, TEXT))
    assert sum(on_card(memory).values()) <= 5 * GIB - OWN.minimum_bytes


def test_outside_nvidia_weights_eat_into_what_the_need_would_keep():
    memory = NeoMemory(8 * GIB, Rules(OWN.minimum_bytes, RESERVED_BYTES, weights_ratio=0.4))
    memory.load((UNET,), 16 * GIB, 8 * GIB)
    assert on_card(memory) == {"unet": int(0.4 * 8 * GIB) - UNET.layer_bytes}


@pytest.mark.parametrize(
    ("flags", "forge", "reserved"),
    [
        ([], {}, RESERVED_BYTES),
        (["--reserve-vram", "2"], {}, 2 * GIB),
        (["--reserve-vram=0.1"], {"inference_memory_bytes": 0}, int(0.1 * GIB)),
        (["--reserve-vram=much"], {}, RESERVED_BYTES),
        ([], {"inference_memory_bytes": 3 * GIB}, 3 * GIB - MINIMUM_BYTES),
    ],
)
def test_the_reserve_comes_from_the_flag_the_run_or_neo_itself(flags, forge, reserved):
    rules = rules_of(a_request(host_args=flags, forge=forge))
    assert (rules.reserved_bytes, rules.minimum_bytes) == (reserved, MINIMUM_BYTES + reserved)


@pytest.mark.parametrize(
    ("family", "frames", "rows", "mebibytes"),
    [
        ("sd15", 1, 2, 655.36), ("sdxl", 1, 2, 524.288), ("flux1", 1, 1, 1015.808), ("flux2_klein_9b", 1, 1, 1597.44),
        ("wan21_14b", 81, 1, 17616.0768), ("qwen_image", 1, 2, 1179.648),
    ],
)  # fmt: skip
def test_neos_own_figure_for_the_unet_depends_on_the_family(family, frames, rows, mebibytes):
    component = Component(family, "denoise", 1024, 1024, frames=frames)
    assert denoise_estimate_bytes(component, rows) == pytest.approx(mebibytes * MIB)


def parts(result, name):
    return dict(next(phase for phase in result.phases if phase.name == name).resident_parts)


@pytest.mark.parametrize("flag", ["--novram", "--neveroom"])
def test_with_every_weight_swapped_only_a_layer_is_on_the_card(flag):
    assert set(parts(estimate(a_request(host_args=[flag])), "sampling")) == {"context", "latents", "swap"}


def test_with_gpu_only_nothing_leaves_the_card():
    kept = parts(estimate(a_request(host_args=["--gpu-only"])), "vae_decode")
    assert {"unet", "text_encoders", "vae"} <= set(kept)


def test_text_encoders_on_the_cpu_take_nothing():
    assert "text_encode" not in [phase.name for phase in estimate(a_request(host_args=["--cpu-text-enc"])).phases]


@pytest.mark.parametrize("family", ["flux1", "zimage", "wan21_14b"])
def test_a_family_without_a_profile_is_unknown_or_computed_and_never_an_error(family):
    assert estimate(a_request(model={"family": family})).verdict in ("unknown", "fits", "tight", "wont_fit")


def test_a_smaller_size_of_the_plan_is_one_that_neo_makes():
    plan = make_plan(a_request(width=2048, height=2048, device={"total_bytes": GIB}))
    size = (plan.request.width, plan.request.height)
    assert plan.fits and size < (2048, 2048) and all(side % 64 == 0 for side in size)


def test_where_no_size_of_the_shape_is_a_multiple_the_rounded_one_is_what_fits():
    plan = make_plan(a_request(width=1000, height=1400, device={"total_bytes": int(1.5 * GIB)}))
    rounded = [(side + 32) // 64 * 64 for side in (plan.request.width, plan.request.height)]
    as_made = plan.request.replace(width=rounded[0], height=rounded[1])
    assert plan.fits and estimate(as_made).verdict in ("fits", "tight")


def test_more_memory_kept_free_means_fewer_weights_on_the_card():
    forges = ({}, {"inference_memory_bytes": 4 * GIB})
    few, many = (parts(estimate(a_request(forge=forge)), "sampling")["unet"] for forge in reversed(forges))
    assert few < many


@given(
    width=st.integers(8, 256).map(lambda rows: rows * 8),
    height=st.integers(8, 256).map(lambda rows: rows * 8),
    gib=st.sampled_from([2, 4, 6, 12]),
    family=st.sampled_from(["sd15", "sdxl"]),
)
def test_what_runs_is_never_ruled_out(width, height, gib, family):
    request = a_request(width=width, height=height, device={"total_bytes": gib * GIB}, model={"family": family})
    assert could_fit(request) or estimate(request).verdict == "wont_fit"


@given(free_gib=st.integers(1, 24), need_gib=st.integers(0, 12), ratio=st.sampled_from([0.0, 0.4]))
def test_models_never_take_more_than_there_is(free_gib, need_gib, ratio):
    memory = NeoMemory(free_gib * GIB, Rules(OWN.minimum_bytes, RESERVED_BYTES, weights_ratio=ratio))
    for models in ((TEXT,), (UNET,), (VAE,), (UNET, TEXT)):
        memory.load(models, need_gib * GIB, need_gib * GIB / 2)
        assert memory.free_bytes() >= 0
        assert all(0 <= item.on_device_bytes <= item.model.size_bytes for item in memory.loaded)
