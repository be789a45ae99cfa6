"""Every host, every family that it runs: what a plan promises, with the profiles that are shipped."""

from __future__ import annotations

import random

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.flags import runs_on
from lib_vram.estimate.simulate import simulate
from lib_vram.plan import adjustments
from lib_vram.plan.levers import LEVERS
from lib_vram.plan.search import make_plan
from lib_vram.request import SIZE_LIMITS, Request
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request

HOSTS = ("a1111", "forge", "neo", "reforge", "classic")
FAMILIES = (
    "sd15", "sd21", "sdxl", "sd35_medium", "sd35_large", "flux1", "chroma", "flux2_klein_4b", "flux2_klein_9b",
    "qwen_image", "zimage", "lumina2", "wan21_1b", "wan21_14b",
)  # fmt: skip
PAIRS = [(host, family) for host in HOSTS for family in FAMILIES if runs_on(host, family)]
WITH_CONTROLNETS = ("sd15", "sd21", "sdxl")


def random_request(rng: random.Random, host: str, family: str) -> Request:
    """A request on a card that lacks up to half of what it would take."""
    large = family not in ("sd15", "sd21")
    is_video = family.startswith("wan")
    controlnets = [{"family": family}] * rng.choice([0, 0, 1]) if family in WITH_CONTROLNETS else []
    request = a_request(
        host=host,
        host_args=rng.choice([[], [], ["--medvram"]]) if host == "a1111" else [],
        model={"family": family, "weights_dtype": rng.choice(["fp16", "fp16", "bf16", "fp8"])},
        mode=rng.choice(["txt2img", "txt2img", "img2img"]),
        attention=rng.choice(["sdpa", "sdpa", "xformers", "split", "sub_quad"]),
        live_preview=rng.choice(["approx", "taesd", "full"]),
        width=64 * rng.randint(8, 20 if large else 14),
        height=8 * rng.randint(64, 160 if large else 112),
        frames=rng.choice([1, 17]) if is_video else 1,
        batch_size=1 if is_video else rng.choice([1, 2, 4]),
        hires=None if is_video else rng.choice([None, None, {"scale": 1.5}, {"scale": 1.3, "upscaler": "Lanczos"}]),
        controlnets=controlnets,
        idle_models=rng.choice([[], [{"kind": "interrogator", "bytes": 900 * MIB}]]),
        device={"total_bytes": 192 * GIB},
    )
    needs = max((phase.needs_bytes for phase in estimate(request).phases), default=8 * GIB)
    return request.replace(
        device=a_request(device={"total_bytes": max(GIB, int(needs * rng.uniform(0.5, 1.0)))}).device
    )


def broken_promises(request: Request) -> list[str]:
    """Return what a plan for ``request`` does not keep of what plans promise."""
    before, plan = estimate(request), make_plan(request)
    if before.verdict == "unknown":
        return [] if plan.when_not and not plan.steps else ["planned the unknown"]
    after, peaks = plan.request, {phase.name: phase.peak_bytes for phase in before.phases}
    return [
        text
        for text, broken in {
            "another number of images": after.images != request.images,
            "a phase is raised": any(item.peak_bytes > peaks[item.name] for item in plan.estimate.phases),
            "does not complete": plan.fits and simulate(after).outcome != "completed",
            "is said not to run": plan.fits and plan.estimate.verdict not in ("fits", "tight"),
            "gives up what runs": not plan.fits and simulate(request).outcome == "completed",
            "no reason": not plan.fits and plan.when_not is None,
            "another shape": not _same_shape(request, after),
        }.items()
        if broken
    ]


def _same_shape(before: Request, after: Request) -> bool:
    if (before.width, before.height) == (after.width, after.height):
        return True
    off = min(
        abs(after.height - after.width * before.height / before.width),
        abs(after.width - after.height * before.width / before.height),
    )
    return off <= 8 and all(side % 8 == 0 and side >= SIZE_LIMITS[0] for side in (after.width, after.height))


@pytest.fixture
def all_levers(monkeypatch):
    """Let every host do what its row of the table names, ready or not."""
    monkeypatch.setattr(adjustments, "has_lever", lambda host, lever: host in LEVERS[lever])


@pytest.mark.parametrize(("host", "family"), PAIRS)
def test_plans_keep_their_promises(host, family, all_levers):
    request = random_request(random.Random(f"{host} {family}"), host, family)
    assert broken_promises(request) == [], request
