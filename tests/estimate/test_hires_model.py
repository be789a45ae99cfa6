"""A second pass with a checkpoint of its own is that model's work, and the first pass stays the first one's."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def with_second(family, upscaler="Latent", **changes):
    second = {"family": family} if family else None
    return a_request(hires={"scale": 2.0, "upscaler": upscaler}, hires_model=second, **changes)


def phases(request):
    return {phase.name: phase for phase in estimate(request, physics).phases}


@pytest.mark.parametrize("host", ["a1111", "forge", "neo", "reforge", "classic"])
@pytest.mark.parametrize("upscaler", ["Latent", "Lanczos"])
def test_a_second_model_of_the_same_kind_changes_nothing(host, upscaler):
    same = estimate(with_second("sd15", upscaler, host=host), physics)
    assert same.phases == estimate(with_second(None, upscaler, host=host), physics).phases


def test_each_pass_has_its_own_models_weights_on_the_card():
    both, first, second = phases(with_second("sdxl")), phases(with_second(None)), phases(
        with_second(None, model={"family": "sdxl"})
    )  # fmt: skip
    assert both["sampling"].resident_bytes == first["sampling"].resident_bytes
    assert both["hires_sampling"].resident_bytes == second["hires_sampling"].resident_bytes
    assert both["text_encode"].resident_bytes == second["text_encode"].resident_bytes
    assert both["vae_decode"].resident_bytes == second["vae_decode"].resident_bytes


def test_the_decode_before_an_upscaler_is_the_first_models_and_the_encode_the_seconds():
    request = with_second("sdxl", "Lanczos")
    both, second = phases(request), phases(with_second(None, "Lanczos", model={"family": "sdxl"}))
    assert both["hires_upscale"].resident_bytes == second["hires_upscale"].resident_bytes
    assert both["hires_upscale"].floor_bytes == second["hires_upscale"].floor_bytes


def test_a_small_second_model_is_not_ruled_out_by_what_the_first_would_need_there():
    request = with_second("sd15", model={"family": "sdxl"}, width=512, height=512, device={"total_bytes": 8 * GIB})
    assert estimate(request, physics).verdict in ("fits", "tight")
    assert could_fit(request, physics)


def test_without_a_second_pass_its_model_is_not_loaded():
    assert phases(a_request(hires_model={"family": "sdxl"})) == phases(a_request())


@pytest.mark.parametrize(("refined_pass", "side"), [("second", 1024), ("first", 512)])
def test_a_refiner_works_in_the_pass_that_the_option_says(refined_pass, side):
    refiner = {"family": "sdxl_refiner", "refined_pass": refined_pass}
    request = a_request(
        model={"family": "sdxl"}, hires={"scale": 2.0}, refiner=refiner, device={"total_bytes": 24 * GIB}
    )
    alone = a_request(model={"family": "sdxl_refiner"}, width=side, height=side, device={"total_bytes": 24 * GIB})
    assert phases(request)["refiner_sampling"].floor_bytes == phases(alone)["sampling"].floor_bytes
