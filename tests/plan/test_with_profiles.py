"""The same promises with the profiles that are shipped, on fewer requests."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lib_vram.estimate.estimator import could_fit, estimate, failing_phase, runs
from lib_vram.estimate.physics import COMPUTED
from lib_vram.estimate.simulate import simulate
from lib_vram.plan import search
from lib_vram.plan.adjustments import LADDER, VAE_TILED
from lib_vram.plan.fit import largest
from lib_vram.plan.search import find_choices, make_plan
from lib_vram.request import Request
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request
from tests.plan.test_search import brute_force, of_rungs, thinned


def random_request(rng: random.Random) -> Request:
    """Requests of both hosts, families and all ways of attention, many of which do not fit."""
    return a_request(
        host=rng.choice(["a1111", "a1111", "forge", "forge", "neo", "reforge", "classic"]),
        host_args=rng.choice([[], [], ["--medvram"], ["--no-half-vae"]]),
        model={"family": rng.choice(["sd15", "sdxl"])},
        mode=rng.choice(["txt2img", "txt2img", "img2img"]),
        attention=rng.choice(["sdpa", "sdpa", "xformers", "math", "split", "sub_quad"]),
        alloc_conf=rng.choice(["", "", "max_split_size_mb:256", "expandable_segments:True"]),
        width=8 * rng.randint(32, 200),
        height=8 * rng.randint(32, 200),
        batch_size=rng.randint(1, 4),
        hires=rng.choice([None, None, {"scale": 1.5}, {"scale": 1.3, "upscaler": "Lanczos"}]),
        controlnets=rng.choice([[], [], [{"family": "sd15"}], [{"family": "sdxl", "low_vram": True}]]),
        device={"total_bytes": rng.randint(3 * GIB, 14 * GIB)},
    )


@pytest.mark.parametrize("seed", range(30))
def test_verdict_quick_answer_and_virtual_card_agree(seed):
    request = random_request(random.Random(seed))
    result = estimate(request)
    it_runs = result.verdict in ("fits", "tight")
    assert simulate(request).outcome == ("completed" if it_runs else "out_of_memory")
    assert runs(request, {}) == it_runs
    assert could_fit(request) or not it_runs


@pytest.mark.parametrize("host", ["a1111", "forge"])
@pytest.mark.parametrize("family", ["sd15", "sdxl"])
def test_the_verdict_turns_exactly_where_the_virtual_card_runs_out(host, family):
    request = a_request(host=host, model={"family": family}, width=1024, height=768, device={"total_bytes": 24 * GIB})
    needs = max(phase.needs_bytes for phase in estimate(request).phases)
    for total in (needs - 2 * MIB, needs - 1, needs):
        card = request.replace(device=replace(request.device, total_bytes=total))
        assert (simulate(card).outcome == "completed") == (estimate(card).verdict in ("fits", "tight"))


@pytest.mark.parametrize("seed", range(30))
def test_plans_fit_raise_nothing_and_keep_the_images(seed):
    request = random_request(random.Random(100 + seed))
    before, plan = estimate(request), make_plan(request)
    peaks = {phase.name: phase.peak_bytes for phase in before.phases}
    assert plan.request.images == request.images
    for phase in plan.estimate.phases:
        assert phase.peak_bytes <= peaks[phase.name]
    assert simulate(plan.request).outcome == ("completed" if plan.fits else "out_of_memory")
    assert (plan.when_not is None) == plan.fits


@pytest.mark.parametrize("seed", range(10))
def test_the_plan_is_the_one_that_trying_everything_finds(seed):
    rng = random.Random(200 + seed)
    ladder = tuple(thinned(rung, 3) for rung in LADDER if rung.id not in ("live_preview", "controlnet_low_vram"))
    while True:
        request = random_request(rng).replace(
            width=8 * rng.randint(60, 90), height=8 * rng.randint(60, 90), batch_size=2, hires=None
        )
        total_bytes = int(estimate(request).binding.needs_bytes * rng.uniform(0.8, 0.99))
        request = request.replace(device=replace(request.device, total_bytes=total_bytes))
        before = estimate(request)
        if before.verdict == "wont_fit":
            break
    assert of_rungs(find_choices(request, before, COMPUTED, ladder)) == of_rungs(brute_force(request, COMPUTED, ladder))


def test_attention_that_slices_itself_is_not_ruled_out_by_the_whole_score_matrix():
    """A1111's VAE takes whole score matrices with ``sdpa`` and slices with ``split``, so ``split`` may need less."""
    request = a_request(
        model={"family": "sdxl"}, host_args=["--medvram"], attention="split", width=2720, height=1816,
        device={"total_bytes": 23 * GIB},
    )  # fmt: skip
    assert estimate(request).verdict in ("fits", "tight")
    assert could_fit(request)


def test_a_plan_does_not_count_on_blocks_that_lie_well_by_chance():
    """The UNet at 1328×336 gets by with 410 MiB, not with 412 or 414, and with all from 416 MiB up."""
    request = a_request(
        attention="sub_quad", width=2048, height=512, batch_size=6, cfg_scale=1, live_preview="taesd",
        device={"total_bytes": 3 * GIB},
    )  # fmt: skip
    plan = make_plan(request)
    assert (plan.fits, plan.estimate.verdict in ("fits", "tight")) == (True, True)


def test_smaller_tiles_help_a_full_preview_that_decodes_in_them():
    request = a_request(
        live_preview="full", width=768, height=768, batch_cond_uncond=False, vae={"tiled": True, "tile_size": 768}
    )
    sampling = next(phase for phase in estimate(request).phases if phase.name == "sampling")
    request = request.replace(device=replace(request.device, total_bytes=sampling.needs_bytes - 64 * MIB))
    choices = find_choices(request, estimate(request), COMPUTED, (VAE_TILED,))
    assert [rung.id for rung, _ in choices] == ["vae_tiled"]
    assert [step.id for step in make_plan(request).steps] == ["live_preview"]


@pytest.mark.parametrize("size", [(512, 512), (1024, 1344)], ids=["the first pass fails", "the second pass fails"])
def test_a_second_pass_that_is_far_too_large_is_answered_in_time(size, monkeypatch):
    tried = []
    monkeypatch.setattr(
        search, "failing_phase", lambda *args, **options: tried.append(1) or failing_phase(*args, **options)
    )
    request = a_request(
        host="forge", model={"family": "sd15"}, width=size[0], height=size[1], batch_size=4,
        device={"total_bytes": 5 * GIB // 2}, hires={"width": 2048, "height": 2048, "upscaler": "None"},
        controlnets=[{"family": "sd15"}] * 2, forge={"inference_memory_bytes": GIB // 2, "never_oom_vae": True},
    )  # fmt: skip
    choices = find_choices(request, estimate(request), COMPUTED)
    assert choices is not None
    assert len(tried) < 200


def test_known_cases_read_as_a_person_expects():
    sdxl = a_request(model={"family": "sdxl"}, width=1024, height=1024)
    assert [step.id for step in make_plan(sdxl).steps] == ["vae_tiled"]
    assert estimate(sdxl.replace(host_args=("--medvram-sdxl",))).verdict == "fits"
    assert estimate(sdxl.replace(host="forge")).verdict == "fits"
    crowd = sdxl.replace(host="forge", batch_size=24)
    assert [step.id for step in make_plan(crowd).steps] == ["batch_to_count"]


def test_the_largest_size_runs_and_the_next_does_not():
    request = a_request()
    fit = largest(request, "size")
    size = {"width": fit.width + 8, "height": fit.height + 8}
    assert simulate(request.replace(width=fit.width, height=fit.height)).outcome == "completed"
    assert simulate(request.replace(**size)).outcome == "out_of_memory"


def test_a_size_that_falls_off_the_cliff_of_split_attention_is_snapped_to_one_that_does_not():
    """At 1000×1000 Forge's split attention takes all of the scores at once, at 992×992 a part after the other."""
    request = a_request(host="forge", attention="split", width=1000, height=1000, device={"total_bytes": 6 * GIB})
    plan = make_plan(request)
    assert [str(step.text) for step in plan.steps] == [
        "Size 1000×1000 → 992×992, which this attention can cut into equal parts: same shape, another composition"
    ]
    assert plan.fits and simulate(plan.request).outcome == "completed"
