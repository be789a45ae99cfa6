"""The plan that comes out is the best there is, and it keeps its promises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.estimator import estimate, failing_phase
from lib_vram.estimate.physics import Physics
from lib_vram.estimate.simulate import simulate
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.plan.adjustments import LADDER
from lib_vram.plan.result import COSTS
from lib_vram.plan.rung import Adjustment
from lib_vram.plan.search import (
    PATIENCE,
    Choices,
    apply_choices,
    find_choices,
    first_in_order,
    is_acceptable,
    make_plan,
)
from lib_vram.request import ForgeSettings, Request
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, memory, physics, trace

ATTENTION_TAKES = {"math": 3, "split": 2}
"""Times as many pixels as with other ways of attention."""


def steep_memory(component: Component) -> ComponentMemory:
    """The stand-in at pictures four times as wide and high, so that small sizes have something to give up."""
    wide = 4 * ATTENTION_TAKES.get(component.attention, 1)
    return memory(replace(component, width=component.width * wide, height=component.height * 4, tile=None))


steep = Physics.of(steep_memory)


def thinned(rung: Adjustment, most: int) -> Adjustment:
    """Return ``rung`` with at most so many of its candidates, the first and the last among them."""

    def candidates(request: Request) -> tuple[object, ...]:
        found = rung.candidates(request)
        if len(found) <= most:
            return found
        places = sorted({round(place * (len(found) - 1) / (most - 1)) for place in range(most)})
        return tuple(found[place] for place in places)

    return replace(rung, candidates=candidates)


def every_choice(request: Request, ladder: tuple[Adjustment, ...]) -> Iterator[tuple[Choices, Request]]:
    """Yield every combination with what it makes of ``request``, the best first: the last rung changes slowest.

    Of a rung whose extent counts for nothing there is only one choice beside leaving it: any of its candidates.
    """
    if not ladder:
        yield (), request
        return
    *below, rung = ladder
    candidates = rung.candidates(request)
    for candidate in (None, *(candidates[-1:] if rung.by_need else candidates)):
        changed = request if candidate is None else rung.apply(request, candidate)
        taken = () if candidate is None else ((rung, candidate),)
        for choices, result in every_choice(changed, tuple(below)):
            yield (*choices, *taken), result


def every_extent(choices: Choices, request: Request) -> Iterator[Request]:
    """Yield what ``choices`` make of ``request``, with each candidate of the rungs whose extent counts for nothing."""
    if not choices:
        yield request
        return
    (rung, value), *rest = choices
    for candidate in rung.candidates(request) if rung.by_need else (value,):
        yield from every_extent(tuple(rest), rung.apply(request, candidate))


def brute_force(request: Request, answer: Physics, ladder: tuple[Adjustment, ...]) -> Choices | None:
    """Try every combination and return the first that runs and raises no phase."""
    peaks = {phase.name: phase.peak_bytes for phase in estimate(request, answer).phases}
    for choices, _ in every_choice(request, ladder):
        if any(failing_phase(changed, peaks, answer) is None for changed in every_extent(choices, request)):
            return choices
    return None


def goes_too_far(request: Request, answer: Physics, choices: Choices) -> list[str]:
    """Return the rungs of ``choices`` whose tile could be larger, with all else as it is."""
    before = estimate(request, answer)
    found = []
    for place, (rung, value) in enumerate(choices):
        if not rung.by_need or rung.id == "reserve":
            continue
        others = apply_choices(request, (*choices[:place], *choices[place + 1 :]))
        for candidate in rung.candidates(others):
            if candidate == value:
                break
            if is_acceptable(before, estimate(rung.apply(others, candidate), answer)):
                found.append(rung.id)
    return found


def random_request(rng: random.Random) -> tuple[Request, Physics]:
    """Small sizes with a second pass under the steep stand-in, or larger ones without under the plain one."""
    small = rng.random() < 0.5
    sides = [64, 96, 128, 136] if small else [512, 640, 768]
    hires = {"scale": rng.choice([1.1, 1.25, 1.3])} if small and rng.random() < 0.6 else None
    if hires and rng.random() < 0.3:
        hires = {"width": rng.choice([160, 192]), "height": rng.choice([0, 160])}
    family = rng.choice(["sd15", "sdxl"])
    changes = {
        "host": rng.choice(["a1111", "a1111", "forge", "neo", "reforge", "classic"]),
        "host_args": rng.choice([[], [], ["--medvram"], ["--no-half-vae"]]),
        "model": {"family": family},
        "mode": rng.choice(["txt2img", "txt2img", "img2img"]),
        "attention": rng.choice(["sdpa", "sdpa", "xformers", "math"]),
        "live_preview": rng.choice(["approx", "full", "taesd"]),
        "width": rng.choice(sides),
        "height": rng.choice(sides),
        "batch_size": rng.randint(1, 6),
        "batch_count": rng.randint(1, 3),
        "cfg_scale": rng.choice([1.0, 7.0]),
        "hires": hires,
        "controlnets": [{"family": family}] * rng.choice([0, 0, 0, 1, 2]),
        "device": {"total_bytes": rng.randint(1 * GIB, 9 * GIB)},
        "vae": {"tiled": rng.random() < 0.1},
    }
    return a_request(**changes), steep if small else physics


def of_rungs(choices: Choices | None) -> dict[str, object] | None:
    """Return what was chosen by rung; of those whose extent counts for nothing only that they were."""
    if choices is None:
        return None
    return {rung.id: rung.by_need or value for rung, value in choices}


@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_the_one_that_trying_everything_finds(seed):
    rng = random.Random(seed)
    for _ in range(40):
        request, answer = random_request(rng)
        before = estimate(request, answer)
        if before.verdict != "wont_fit":
            continue
        ladder = tuple(thinned(rung, 3) for rung in LADDER if rng.random() < 0.7)
        found = find_choices(request, before, answer, ladder)
        assert of_rungs(found) == of_rungs(brute_force(request, answer, ladder)), request
        assert goes_too_far(request, answer, found or ()) == []


def requests() -> st.SearchStrategy[Request]:
    """Requests of both hosts that often do not fit."""
    return st.builds(
        lambda **changes: a_request(**changes),
        host=st.sampled_from(["a1111", "forge", "neo", "reforge", "classic"]),
        model=st.sampled_from([{"family": "sd15"}, {"family": "sdxl"}]),
        width=st.integers(64, 3000),
        height=st.integers(64, 3000),
        batch_size=st.integers(1, 12),
        batch_count=st.integers(1, 4),
        device=st.integers(1, 16).map(lambda size: {"total_bytes": size * GIB}),
        hires=st.sampled_from(
            [None, None, {"scale": 2.0}, {"scale": 1.5, "upscaler": "R-ESRGAN 4x+"}, {"width": 2048}]
        ),
        controlnets=st.sampled_from([[], [], [{"family": "sd15"}], [{"family": "sdxl"}, {"family": "sdxl"}]]),
    )


@given(requests())
def test_a_plan_keeps_the_number_of_images(request_):
    plan = make_plan(request_, physics)
    assert plan.request.images == request_.images


@given(requests())
def test_a_plan_raises_no_phase(request_):
    plan = make_plan(request_, physics)
    before = {phase.name: phase.peak_bytes for phase in estimate(request_, physics).phases}
    assert all(phase.peak_bytes <= before[phase.name] for phase in plan.estimate.phases)


@given(requests())
def test_a_smaller_size_is_on_multiples_of_8_and_keeps_its_shape_to_one_latent_row(request_):
    after = make_plan(request_, physics).request
    if (after.width, after.height) != (request_.width, request_.height):
        assert after.width % 8 == after.height % 8 == 0
        assert abs(after.height - after.width * request_.height / request_.width) <= 8 or (
            abs(after.width - after.height * request_.width / request_.height) <= 8
        )


@given(requests())
def test_a_plan_that_says_it_fits_completes_on_the_virtual_card(request_):
    plan = make_plan(request_, physics)
    if plan.fits:
        assert simulate(plan.request, physics, trace).outcome == "completed"
    else:
        assert simulate(plan.request, physics, trace).outcome == "out_of_memory"


@given(requests())
def test_no_step_of_a_plan_can_be_left_out(request_):
    plan = make_plan(request_, physics)
    before = estimate(request_, physics)
    if not plan.fits or not plan.steps:
        return
    choices = find_choices(request_, before, physics)
    for left_out in choices:
        rest = tuple(choice for choice in choices if choice is not left_out)
        assert not is_acceptable(before, estimate(apply_choices(request_, rest), physics))


@given(requests())
def test_steps_go_from_harmless_to_harmful_and_each_saves_something(request_):
    plan = make_plan(request_, physics)
    order = [COSTS.index(step.costs) for step in plan.steps]
    assert order == sorted(order)
    assert all(step.saves_bytes > 0 for step in plan.steps)


def test_a_request_that_fits_needs_no_step():
    plan = make_plan(a_request(), physics)
    assert (plan.fits, plan.steps, plan.request) == (True, (), a_request())


def test_a_decode_that_binds_is_tiled_and_the_batch_left_alone_where_it_does_not_matter():
    plan = make_plan(a_request(width=2048, height=2048, batch_size=2), physics)
    assert [(step.id, step.before, step.after) for step in plan.steps] == [("vae_tiled", False, True)]
    assert (plan.request.vae.tiled, plan.request.vae.tile_size) == (True, 1024)


def test_forge_is_given_its_own_switch_for_tiles():
    plan = make_plan(a_request(host="forge", width=2048, height=2048), physics)
    assert [(step.id, step.before, step.after) for step in plan.steps] == [("vae_tiled", False, True)]
    assert plan.request.forge.never_oom_vae


def test_sampling_that_binds_lowers_the_batch_to_the_largest_group_that_fits():
    request = a_request(width=1024, height=1024, batch_size=12)
    plan = make_plan(request, physics)
    step = plan.steps[0]
    assert (step.id, step.before, step.after, plan.request.batch_count) == ("batch_to_count", 12, 6, 2)
    assert str(step.text) == "Batch 12 → 6, 2 runs: same pictures"


def test_when_nothing_fits_the_flag_that_would_help_is_named():
    request = a_request(model={"family": "sdxl", "weights_dtype": "fp8"}, device={"total_bytes": 3 * GIB})
    plan = make_plan(request, physics)
    assert (plan.fits, plan.steps) == (False, ())
    assert str(plan.when_not).startswith("No change of these settings is enough. Started with --medvram")


def test_when_no_flag_helps_the_smallest_card_is_named():
    request = a_request(
        model={"family": "sdxl"}, width=1024, height=1024, host_args=["--lowvram"], device={"total_bytes": GIB}
    )
    plan = make_plan(request, physics)
    assert str(plan.when_not) == (
        "No change of these settings is enough. A lighter or quantised model may fit; "
        "as it is, it runs from a card of 3.0 GiB up."
    )


def test_what_cannot_be_computed_promises_no_plan():
    plan = make_plan(a_request(model={"family": "flux1"}), physics)
    assert (plan.fits, str(plan.when_not)) == (
        False,
        "Something in this request cannot be computed yet, so no plan can be promised to fit.",
    )


@pytest.mark.parametrize(
    ("first", "asked"), [(0, 1), (5, 6), (PATIENCE, PATIENCE + 1), (400, 90), (999, 90), (None, 90)]
)
def test_the_first_of_many_is_found_without_asking_for_each(first, asked):
    tried = []

    def holds(item):
        tried.append(item)
        return first is not None and item >= first

    assert first_in_order(range(1000), holds) == first
    assert len(tried) <= asked


def test_the_same_plan_reads_in_all_languages():
    plan = make_plan(a_request(width=2048, height=2048), physics)
    texts = {language: plan.to_dict(language)["steps"][0]["text"] for language in ("en", "pt", "es")}
    assert len(set(texts.values())) == 3
    assert "1024" in texts["pt"]


@pytest.mark.parametrize(
    ("ram_gib", "steps"), [(None, ["reserve"]), (32, ["reserve"]), (8, ["smaller_size"]), (6, ["reserve"])]
)
def test_a_plan_does_not_make_a_machine_swap_to_disk_that_did_not(ram_gib, steps):
    """With 8 GiB of RAM there is no room for a UNet that is swapped; with 6 there is none for what is asked for."""
    request = a_request(
        host="forge", model={"family": "sdxl"}, width=3072, height=3072, batch_cond_uncond=False,
        device={"total_bytes": 5 * GIB}, system={"ram_total_bytes": ram_gib and ram_gib * GIB},
    ).replace(forge=ForgeSettings(never_oom_vae=True))  # fmt: skip
    ladder = tuple(rung for rung in LADDER if rung.id in ("reserve", "smaller_size"))
    choices = find_choices(request, estimate(request, physics), physics, ladder)
    assert [rung.id for rung, _ in choices] == steps
