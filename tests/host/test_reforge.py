"""What only reForge has."""

from __future__ import annotations

import dataclasses

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.host.reforge import _one_by_one
from lib_vram.plan.result import Plan
from tests.fakehost.processing import page_run

GIB = 1024**3


@pytest.fixture
def host_name():
    return "reforge"


@pytest.fixture
def host(fake):
    return callbacks.guard().host


def with_never_oom(fake, unet, vae):
    return fake.make(own=[unet, vae], own_title="Never OOM Integrated")


def test_never_ooms_switch_for_the_vae_is_inert_and_does_not_count_as_tiled(fake, host):
    p = with_never_oom(fake, False, True)
    request = host.request_from_processing(p)
    assert request.forge.never_oom_vae is False and request.vae.tiled is False
    page_run(p)
    assert fake.memory.VAE_ALWAYS_TILED is True and fake.record.decodes == ["whole"]


def test_never_ooms_switch_for_the_unet_works_and_counts(fake, host):
    assert host.request_from_processing(with_never_oom(fake, True, False)).forge.never_oom_unet is True


def test_the_tiles_are_ours_with_their_size(fake, host):
    p = fake.make(own=[{"tiled": True, "tile_size": 512}])
    request = host.request_from_processing(p)
    assert (request.vae.tiled, request.vae.tile_size) == (True, 512)
    page_run(p)
    assert fake.record.decodes == ["tiled 512"]


def test_a_plan_is_written_by_our_own_switches(host):
    original = host.request_from_form("txt2img", {})
    changed = original.replace(
        vae=dataclasses.replace(original.vae, tiled=True, tile_size=640), batch_cond_uncond=False
    )
    writes = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.previous, item.value) for item in writes] == [
        ("vae_tiled", False, True), ("vae_tile_size", None, 640), ("cond_uncond_apart", False, True),
    ]  # fmt: skip


def together(model, conds, x):
    """The host's function with both halves in one call: a condition that is not there gives nothing."""
    calls.append(conds)
    return [f"result of {cond[0]}" if cond else "nothing" for cond in conds]


calls: list[list[list[str] | None]] = []


@pytest.mark.parametrize(
    ("conds", "made"),
    [
        ([["c"], ["u"]], [[["c"], None], [None, ["u"]]]),
        ([["c"], None], [[["c"], None]]),
        ([["c"]], [[["c"]]]),
        ([["a"], ["b"], ["c"]], [[["a"], None, None], [None, ["b"], None], [None, None, ["c"]]]),
    ],
)  # fmt: skip
def test_each_condition_gives_alone_what_it_gave_in_one_call(conds, made):
    expected = together("model", conds, "x")
    calls.clear()
    assert _one_by_one(together)("model", conds, "x") == expected
    assert calls == made
