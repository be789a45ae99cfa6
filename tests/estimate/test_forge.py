"""Forge's memory manager makes the same decisions as its published logs show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.forge import (
    ForgeMemory,
    Model,
    denoise_estimate_bytes,
    forge_least,
    least_part,
    part_that_fits,
    vae_estimate_bytes,
)
from lib_vram.estimate.residency import place
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import weights_of
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request

UNET = Model("unet", 4898 * MIB, 56 * MIB)
TEXT = Model("text_encoders", 2144 * MIB, 120 * MIB)
VAE = Model("vae", 160 * MIB, 5 * MIB)


def names(memory):
    return [item.model.name for item in memory.loaded]


def test_models_stay_while_there_is_room():
    memory = ForgeMemory(24 * GIB, GIB, fully_swapped=False)
    for model in (TEXT, UNET, VAE):
        memory.load((model,))
    assert names(memory) == ["vae", "unet", "text_encoders"]


def test_the_least_recently_used_model_goes_first():
    memory = ForgeMemory(9 * GIB, GIB, fully_swapped=False)
    memory.load((TEXT,))
    memory.load((UNET,), required_bytes=2 * GIB)
    assert names(memory) == ["unet"]


def test_room_is_made_for_1_3_times_the_model_and_the_larger_of_reserve_and_activations():
    free = int(1.3 * UNET.size_bytes) + 2 * GIB
    roomy = ForgeMemory(free + TEXT.size_bytes + 1, GIB, fully_swapped=False)
    short = ForgeMemory(free + TEXT.size_bytes, GIB, fully_swapped=False)
    for memory in (roomy, short):
        memory.load((TEXT,))
        memory.load((UNET,), required_bytes=2 * GIB)
    assert (names(roomy), names(short)) == (["unet", "text_encoders"], ["unet"])


@pytest.mark.parametrize(
    ("free_mib", "reserve_mib", "part_mib"),
    [
        (8000, 1024, 4898),
        (5922, 1024, 4898),
        (5921, 1024, 3766),
        (3000, 1024, 1520),
        (900, 1024, 0),
        (12000, 9000, 2307),
    ],
)
def test_a_model_that_does_not_fit_above_the_reserve_is_loaded_in_part(free_mib, reserve_mib, part_mib):
    assert part_that_fits(4898 * MIB, free_mib * MIB, reserve_mib * MIB) // MIB == part_mib


@given(st.integers(0, 30_000), st.integers(0, 30_000), st.integers(0, 8_000))
def test_others_in_the_way_never_lower_the_total_bound(free_mib, other_mib, reserve_mib):
    alone = least_part(UNET.size_bytes, free_mib * MIB, reserve_mib * MIB)
    crowded = least_part(UNET.size_bytes, (free_mib - other_mib) * MIB, reserve_mib * MIB)
    assert crowded <= alone <= crowded + other_mib * MIB
    assert alone <= part_that_fits(UNET.size_bytes, free_mib * MIB, reserve_mib * MIB)


def test_fully_swapped_sends_everything_away_and_loads_nothing():
    memory = ForgeMemory(24 * GIB, GIB, fully_swapped=True)
    memory.load((TEXT,))
    memory.load((UNET,))
    assert [(item.model.name, item.on_device_bytes) for item in memory.loaded] == [("unet", 0)]


def test_its_own_figures_are_those_of_its_source():
    sampling = timeline(a_request(host="forge", width=1024, height=1024))[1].component
    decode = timeline(a_request(host="forge", width=1024, height=1024))[-1].component
    assert denoise_estimate_bytes(sampling, 2) == 1.28 * 2 * 128 * 128 * 2 * 16384
    assert vae_estimate_bytes(decode) == 2178 * 128 * 128 * 64 * 2


def kept(request):
    placed = place(request, timeline(request), weights_of(request))
    return {
        item.work.phase: {name: size // MIB for name, size in item.resident if name not in ("context", "latents")}
        for item in placed
    }


def sdxl(**changes):
    return a_request(host="forge", model={"family": "sdxl"}, width=1024, height=1024, **changes)


def test_on_a_large_card_the_text_encoders_stay_beside_the_unet():
    assert kept(sdxl(device={"total_bytes": 24 * GIB})) == {
        "text_encode": {"text_encoders": 2154},
        "sampling": {"unet": 5000, "text_encoders": 2154},
        "vae_decode": {"unet": 5000, "text_encoders": 2154, "vae": 166},
    }


def test_on_8_gib_each_part_works_alone():
    assert kept(sdxl()) == {
        "text_encode": {"text_encoders": 2154},
        "sampling": {"unet": 5000},
        "vae_decode": {"vae": 166},
    }


def test_on_4_gib_a_part_of_the_unet_is_swapped():
    assert kept(sdxl(device={"total_bytes": 4 * GIB}))["sampling"] == {"unet": 2052, "swap": 58}


def test_a_larger_reserve_leaves_less_for_weights():
    request = sdxl(forge={"inference_memory_bytes": 4 * GIB})
    assert kept(request)["sampling"]["unet"] < 5000


def test_never_oom_for_the_unet_keeps_no_weights():
    assert kept(sdxl(forge={"never_oom_unet": True}))["sampling"] == {"swap": 58}


def test_a_tiled_decode_asks_for_the_reserve_only_so_the_unet_stays():
    request = sdxl(device={"total_bytes": 12 * GIB}, forge={"never_oom_vae": True})
    assert "unet" in kept(request)["vae_decode"]
    assert "unet" not in kept(sdxl(device={"total_bytes": 8 * GIB}))["vae_decode"]


def components(request):
    return {item.work.phase: item.component for item in place(request, timeline(request), weights_of(request))}


def test_cond_and_uncond_are_split_when_its_figure_exceeds_what_is_free():
    together = components(a_request(host="forge", batch_size=8, width=512, height=512))
    apart = components(a_request(host="forge", batch_size=24, width=768, height=768))
    assert (together["sampling"].cfg, apart["sampling"].cfg) == (True, False)


def test_pictures_are_decoded_as_many_at_a_time_as_its_figure_allows():
    request = a_request(host="forge", batch_size=8, width=1024, height=1024, device={"total_bytes": 12 * GIB})
    assert components(request)["vae_decode"].batch == 2
    assert components(a_request(host="forge", batch_size=8, width=2048, height=2048))["vae_decode"].batch == 1


def test_halved_sampling_holds_half_of_the_control_outputs():
    request = a_request(host="forge", batch_size=24, width=768, height=768, controlnets=[{"family": "sd15"}])
    placed = place(request, timeline(request), weights_of(request))
    wanted = dict(timeline(request)[2].held)["control_outputs"]
    assert dict(placed[2].work.held)["control_outputs"] == wanted // 2


@given(
    st.sampled_from(["sd15", "sdxl"]),
    st.integers(8, 400).map(lambda rows: 8 * rows),
    st.integers(1, 8),
    st.integers(1, 24),
    st.sampled_from([256, 1024, 4096]),
    st.sampled_from([[], [{"family": "sdxl"}], [{"family": "sd15"}, {"family": "sdxl"}]]),
    st.sampled_from([None, {"scale": 2.0}, {"scale": 1.5, "upscaler": "Lanczos"}]),
)
def test_the_lower_bound_is_one(family, side, batch, card, reserve, controlnets, hires):
    request = a_request(
        host="forge", model={"family": family}, width=side, height=side, batch_size=batch, controlnets=controlnets,
        device={"total_bytes": card * GIB}, forge={"inference_memory_bytes": reserve * MIB}, hires=hires,
    )  # fmt: skip
    works, weights = timeline(request), weights_of(request)
    least = forge_least(request, works, weights, card * GIB - 460 * MIB)
    for bound, item in zip(least, place(request, works, weights), strict=True):
        assert bound <= item.resident_bytes - 460 * MIB


def test_a_published_log_is_met():
    """SD 1.5 in fp32 on a small card (lllyasviel/stable-diffusion-webui-forge, issue 1598), figures in MB of 2**20.

    It frees 5797.46 for the UNet and 2592.85 for the VAE, and loads 1306.94 of 3278.81 with 3235.60 free.
    """
    request = a_request(
        host="forge", host_args=["--all-in-fp32", "--vae-in-fp32"], forge={"inference_memory_bytes": 1535 * MIB}
    )
    weights = weights_of(request)
    sampling, decode = (work.component for work in timeline(request)[1:])
    to_free = 1.3 * weights.unet_bytes + max(1535 * MIB, denoise_estimate_bytes(sampling, 2))
    assert to_free / MIB == pytest.approx(5797.46, abs=0.02)
    assert (1.3 * weights.vae_bytes + vae_estimate_bytes(decode)) / MIB == pytest.approx(2592.85, abs=0.02)
    loaded = part_that_fits(weights.unet_bytes, int(3235.60 * MIB), 1535 * MIB)
    assert loaded / MIB == pytest.approx(1306.94, rel=0.001)
