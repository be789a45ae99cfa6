"""What only Forge Classic has."""

from __future__ import annotations

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.plan.result import Plan
from lib_vram.request import ForgeSettings
from tests.fakehost.processing import page_run

GIB = 1024**3


@pytest.fixture
def host_name():
    return "classic"


@pytest.fixture
def host(fake):
    return callbacks.guard().host


@pytest.mark.parametrize(("unet", "vae"), [(False, False), (True, False), (False, True)])
def test_never_ooms_switches_are_read_from_the_form_and_the_run(fake, host, unet, vae):
    wanted = ForgeSettings(GIB, never_oom_vae=vae, never_oom_unet=unet)
    form = {"never_oom_unet": unet, "never_oom_vae": vae}
    assert host.request_from_form("txt2img", form).forge == wanted
    p = fake.make(own=[unet, vae], own_title="Never OOM Integrated")
    assert host.request_from_processing(p).forge == wanted


def test_never_oom_writes_late_so_it_is_switched_on_through_its_own_arguments(fake, host):
    """It writes the flag in its ``process``, after our hook: a value set directly would be overwritten."""
    fake.memory.VAE_ALWAYS_TILED = True
    page_run(fake.make())
    assert fake.record.decodes == ["whole"]
    page_run(fake.make(own=[{"tiled": True}]))
    page_run(fake.make())
    assert fake.record.decodes == ["whole", "tiled", "whole"]


@pytest.mark.parametrize(("side", "tiled"), [(120, False), (128, True)])
def test_pictures_that_it_cannot_decode_in_tiles_are_decoded_whole(fake, host, side, tiled):
    p = fake.make(width=512, height=side, own=[{"tiled": True}])
    assert host.request_from_processing(p).forge.never_oom_vae is tiled
    page_run(p)
    assert fake.record.decodes == ["tiled" if tiled else "whole"]


def test_fp8_storage_is_an_option_here(fake, host):
    assert host.request_from_form("txt2img", {}).model.weights_dtype == "fp16"
    fake.opts.data["fp8_storage"] = True
    assert host.request_from_form("txt2img", {}).model.weights_dtype == "fp8"


def test_a_plan_is_written_by_never_ooms_own_fields(host):
    original = host.request_from_form("txt2img", {})
    changed = original.replace(forge=ForgeSettings(GIB, never_oom_vae=True))
    writes = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.previous, item.value) for item in writes] == [("never_oom_vae", False, True)]
