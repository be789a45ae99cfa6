"""What is not on the ladder, because the computed need does not fall: why it is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.plan.search import make_plan
from lib_vram.request import Request
from lib_vram.units import GIB

HOSTS = ("a1111", "forge", "neo", "reforge", "classic")
RUNS = ("fits", "tight")


def a_request(host, family="sdxl", gib=6, **fields):
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": int(gib * GIB)}
    base = {"host": host, "model": {"family": family}, "width": 1024, "height": 1024, "device": device}
    return Request.from_dict(base | fields)


def needs(request, *phases):
    return {phase.name: phase.needs_bytes for phase in estimate(request).phases if phase.name in phases}


def second_passes(host, upscaler):
    """Yield requests with a second pass by the latent, each with the same by ``upscaler``."""
    for gib, scale, batch, tiled in product((4, 6, 8, 12), (1.5, 2.0, 3.0), (1, 4), (False, True)):
        vae = {"tiled": tiled, "dtype": "fp16"}
        latent = a_request(host, gib=gib, batch_size=batch, vae=vae, hires={"scale": scale, "upscaler": "Latent"})
        yield latent, latent.replace(hires=replace(latent.hires, upscaler=upscaler))


def gained(host, upscaler):
    """Return the requests that run with ``upscaler`` and not by the latent."""
    pairs = second_passes(host, upscaler)
    return [one for one, other in pairs if estimate(one).verdict not in RUNS and estimate(other).verdict in RUNS]


@pytest.mark.parametrize("host", ["a1111", "forge", "neo", "classic"])
@pytest.mark.parametrize("upscaler", ["ESRGAN_4x", "Lanczos"])
def test_a_second_pass_by_a_picture_upscaler_runs_on_no_card_on_which_one_by_the_latent_does_not(host, upscaler):
    """The second sampling is as large, holds the pictures beside, and a decode and an encode come on top."""
    assert gained(host, upscaler) == []


@pytest.mark.parametrize("upscaler", ["ESRGAN_4x", "Lanczos"])
def test_on_reforge_it_makes_the_host_load_less_of_the_model_anew_and_the_reserve_does_that_too(upscaler):
    """reForge takes no weights back from a model that is about to work; the decode in between sends them away."""
    requests = gained("reforge", upscaler)
    assert requests
    for request in requests:
        plan = make_plan(request)
        assert plan.fits and plan.request.hires == request.hires
        assert {step.costs for step in plan.steps} <= {"nothing", "time"}


def test_where_the_second_sampling_binds_its_need_is_the_same_or_more():
    latent = a_request("a1111", "sd15", 8, width=768, height=768, hires={"scale": 3.0, "upscaler": "Latent"})
    latent = latent.replace(attention="math", vae=replace(latent.vae, tiled=True, tile_size=512))
    picture = latent.replace(hires=replace(latent.hires, upscaler="ESRGAN_4x"))
    assert estimate(latent).binding_phase == "hires_sampling"
    by_latent, by_picture = (needs(item, "hires_sampling")["hires_sampling"] for item in (latent, picture))
    assert by_picture > by_latent


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("gib", [4, 5, 6, 8, 12])
def test_pictures_are_decoded_so_few_at_a_time_that_a_batch_decodes_where_one_does(host, gib):
    """A1111 decodes one after the other; Forge and its relatives as many as their own figure says there is room for."""
    vae = {"dtype": "bf16"}
    one, many = (a_request(host, gib=gib, batch_size=size, vae=vae) for size in (1, 8))
    decodes = [
        next(phase for phase in estimate(item).phases if phase.name == "vae_decode").needs_bytes
        <= estimate(item).available_bytes
        for item in (one, many)
    ]
    assert decodes[1] or not decodes[0]
