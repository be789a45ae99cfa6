"""A run that fits is given a smaller reserve only where that keeps much of the model from being swapped."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.simulate import simulate
from lib_vram.plan.reserve import without_needless_swaps
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request


def on_card(request):
    sampling = next(phase for phase in estimate(request).phases if phase.name == "sampling")
    return dict(sampling.resident_parts)


def a_tight_one(**changes):
    """SDXL on a card on which the default reserve of 1 GiB leaves no room for all of the UNet."""
    data = {"host": "forge", "model": {"family": "sdxl"}, "width": 1024, "height": 1024}
    return a_request(**{**data, "device": {"total_bytes": 6 * GIB}, **changes})


@pytest.mark.parametrize("host", ["forge", "classic"])
def test_the_default_reserve_is_cut_to_what_is_needed_and_a_margin(host):
    request = a_tight_one(host=host)
    lighter = without_needless_swaps(request)
    assert "swap" in on_card(request) and "swap" not in on_card(lighter)
    assert lighter.forge.inference_memory_bytes == 384 * MIB
    assert simulate(lighter).outcome == "completed"
    assert estimate(lighter).verdict == "fits"


def test_the_margin_is_really_left():
    lighter = without_needless_swaps(a_tight_one(width=1152, height=1152))
    less = lighter.forge.inference_memory_bytes - 128 * MIB
    forge = {"inference_memory_bytes": less}
    assert estimate(a_tight_one(width=1152, height=1152, forge=forge)).verdict == "fits"


@pytest.mark.parametrize(
    "changes",
    [
        {"device": {"total_bytes": 8 * GIB}},
        {"device": {"total_bytes": 4 * GIB}},
        {"forge": {"inference_memory_bytes": 384 * MIB}},
        {"host": "a1111", "host_args": ["--medvram"]},
        {"width": 4096, "height": 4096},
    ],
    ids=[
        "nothing is swapped",
        "most is swapped anyway",
        "it is small already",
        "there is no reserve",
        "it does not fit",
    ],
)
def test_it_is_left_alone_where_that_changes_nothing_that_matters(changes):
    assert without_needless_swaps(a_tight_one(**changes)) is None


def test_more_batches_make_a_smaller_gain_worth_it():
    request = a_tight_one(device={"total_bytes": 4 * GIB})
    assert without_needless_swaps(request) is None
    many = without_needless_swaps(request.replace(batch_count=4))
    assert many is not None
    assert on_card(many)["unet"] > on_card(request)["unet"]
