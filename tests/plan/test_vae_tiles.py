"""A large start picture, or one enlarged by an image upscaler, is encoded in tiles before anything worse is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.message import render
from lib_vram.plan.adjustments import TILE_CANDIDATES
from lib_vram.plan.search import RUNS, make_plan
from lib_vram.request import Request
from lib_vram.units import GIB

LARGE_START = {"mode": "img2img", "width": 2048, "height": 2048}
ENLARGED = {"width": 1024, "height": 1024, "hires": {"scale": 2.0, "upscaler": "Lanczos"}}


def request_of(host, gib, family, **fields):
    card = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": gib * GIB}
    return Request.from_dict({"host": host, "device": card, "model": {"family": family}, **fields})


@pytest.mark.parametrize(
    ("host", "gib", "family", "fields", "binding"),
    [
        ("a1111", 6, "sd15", LARGE_START, "vae_encode"),
        ("a1111", 8, "sdxl", {**LARGE_START, "host_args": ["--medvram"]}, "vae_encode"),
        ("a1111", 6, "sd15", ENLARGED, "hires_upscale"),
        ("a1111", 6, "sd15", {**ENLARGED, "hires": {"scale": 2.0, "upscaler": "R-ESRGAN 4x+"}}, "hires_upscale"),
        ("reforge", 6, "sdxl", LARGE_START, "vae_decode"),
    ],
)
def test_tiles_are_all_that_is_changed(host, gib, family, fields, binding):
    request = request_of(host, gib, family, **fields)
    before = estimate(request)
    plan = make_plan(request)
    assert (before.verdict, before.binding_phase) == ("wont_fit", binding)
    assert plan.fits and "vae_tiled" in [step.id for step in plan.steps]
    assert all(step.costs in ("nothing", "time") for step in plan.steps)
    peaks = {phase.name: phase.peak_bytes for phase in before.phases}
    assert all(phase.peak_bytes <= peaks[phase.name] for phase in plan.estimate.phases)


@pytest.mark.parametrize("gib", [3, 4, 5, 6])
def test_the_largest_tile_that_fits_is_taken(gib):
    request = request_of("a1111", gib, "sd15", mode="img2img", width=1536, height=1536, host_args=["--medvram"])
    plan = make_plan(request)
    tile = plan.request.vae.tile_size
    assert plan.fits and tile is not None
    larger = [side for side in TILE_CANDIDATES if side > tile]
    if larger:
        more = replace(plan.request.vae, tile_size=min(larger))
        assert estimate(plan.request.replace(vae=more)).verdict not in RUNS


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "VAE in tiles of 1024 pixels: same picture to the eye, slower VAE"),
        ("pt", "VAE em blocos de 1024 pixels: mesma imagem a olho nu, VAE mais lento"),
        ("es", "VAE en bloques de 1024 píxeles: misma imagen a simple vista, VAE más lento"),
    ],
)
def test_people_are_told_that_the_vae_is_slower_at_whichever_end_it_works(language, text):
    plan = make_plan(request_of("a1111", 6, "sd15", **LARGE_START))
    assert [render(step.text, language) for step in plan.steps if step.id == "vae_tiled"] == [text]
