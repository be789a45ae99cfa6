"""What a rescue changes in the middle of a run takes effect on every host's own adapter, and ends with the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram import callbacks
from lib_vram.host import rescue_levers
from tests.fakehost.processing import Txt2Img

GIB = 1024**3


@pytest.fixture
def host(fake):
    return callbacks.guard().host


@pytest.fixture
def run(fake, host):
    """A run that has begun, and the request that it computes."""
    p = fake.make(batch_size=2)
    host.restore(p)
    return p, host.request_from_processing(p)


def kept_free(fake):
    """What the host keeps free for computing at this moment, 0 where it keeps nothing."""
    if fake.name == "a1111":
        return 0
    if fake.name == "forge":
        return fake.modules["backend.memory_management"].current_inference_memory
    name = "backend.memory_management" if fake.name == "neo" else "ldm_patched.modules.model_management"
    return round(fake.modules[name].minimum_inference_memory())  # Neo counts in fractions of a byte


def test_cond_and_uncond_go_apart_until_the_run_ends(fake, host, run):
    p, request = run
    rescue_levers.change(host, p, request, request.replace(batch_cond_uncond=False))
    fake.sample(p)
    host.end_run(p)
    fake.sample(p)
    assert fake.record.unet_batches == [2, 2, 4]


def test_more_is_kept_free_until_the_run_ends(fake, host, run):
    p, request = run
    before = kept_free(fake)
    wanted = before + GIB
    after = request.replace(forge=replace(request.forge, inference_memory_bytes=wanted))
    rescue_levers.change(host, p, request, after)
    assert kept_free(fake) == (wanted if fake.name != "a1111" else 0)
    host.end_run(p)
    assert kept_free(fake) == before


def test_a_smaller_second_pass_is_written_into_the_run(fake, host):
    p = fake.make(Txt2Img, enable_hr=True, hr_scale=2.0)
    host.restore(p)
    p.calculate_target_resolution = lambda: setattr(p, "hr_upscale_to_x", int(p.width * p.hr_scale))
    request = host.request_from_processing(p)
    after = request.replace(hires=replace(request.hires, scale=1.5))
    rescue_levers.change(host, p, request, after)
    assert (p.hr_scale, p.hr_upscale_to_x, p.width) == (1.5, 768, 512)


def test_freeing_is_the_hosts_own_way_and_a_decode_keeps_the_other_models_at_first(fake, host, monkeypatch):
    done = []
    monkeypatch.setattr(type(host), "unload_models", lambda self: done.append("models"))
    monkeypatch.setattr(type(host), "empty_caches", lambda self: done.append("cache"))
    for phase, tried in (("vae_decode", 1), ("vae_decode", 2), ("sampling", 1)):
        rescue_levers.free(host, phase, tried)
    models = [] if fake.name == "a1111" else ["models"]
    assert done == ["cache", *models, "cache", *models, "cache"]
