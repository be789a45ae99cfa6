"""Where a plan gives up size, two runs that keep it are offered in words."""

from __future__ import annotations

import pytest

from lib_vram.plan.recipe import recipe
from lib_vram.plan.search import make_plan
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def always(request):
    return True


def test_a_large_picture_is_made_native_first_and_then_in_tiles():
    seen = []
    message = recipe(
        a_request(model={"family": "sdxl"}, width=2048, height=1536), lambda request: seen.append(request) or True
    )
    assert str(message) == (
        "For 2048×1536 all the same: make it at 1208×904, then enlarge it ×1.7 in img2img with the script SD upscale, "
        "in tiles of 1024 pixels, with a denoising strength of 0.2 to 0.35 and a short general prompt. Both runs fit."
    )
    assert [(item.mode, item.width, item.height) for item in seen] == [
        ("txt2img", 1208, 904), ("img2img", 1024, 1024),
    ]  # fmt: skip


def test_a_second_pass_is_left_for_later_and_the_first_size_kept():
    message = recipe(a_request(hires={"scale": 4.0}, batch_size=2, batch_count=3), always)
    assert dict(message.values) == {
        "width": 2048, "height": 2048, "first_width": 512, "first_height": 512, "scale": "4", "tile": 512,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{}, {"width": 576}, {"mode": "img2img", "width": 2048}, {"model": {"family": "wan21_1b"}, "width": 2048}],
)
def test_where_there_is_nothing_to_enlarge_there_is_no_recipe(changes):
    assert recipe(a_request(**changes), always) is None


@pytest.mark.parametrize("mode", ["txt2img", "img2img"])
def test_a_recipe_whose_runs_do_not_fit_is_none(mode):
    assert recipe(a_request(width=2048, height=2048), lambda request: request.mode != mode) is None


def test_it_stands_beside_a_plan_that_gives_up_size():
    smaller = make_plan(a_request(width=6144, height=6144), physics)
    assert [step.id for step in smaller.steps][-1] == "smaller_size"
    assert "6144×6144" in str(smaller.recipe)
    assert smaller.to_dict("es")["recipe"].startswith("Para llegar a 6144×6144")


def test_it_stands_beside_no_plan_that_costs_only_time():
    plan = make_plan(a_request(width=2048, height=2048), physics)
    assert plan.fits and plan.steps
    assert plan.recipe is None and "recipe" not in plan.to_dict()


def test_there_is_none_where_not_even_the_first_run_fits():
    model = {"family": "sdxl", "weights_dtype": "fp8"}
    request = a_request(model=model, width=2048, height=2048, device={"total_bytes": 3 * GIB})
    plan = make_plan(request, physics)
    assert not plan.fits and plan.recipe is None
