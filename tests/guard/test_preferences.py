"""What a person wants left alone reaches the plan; a run that fits is only made faster where changes are wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.guard import guard as guard_module
from lib_vram.plan import reserve
from lib_vram.plan.preferences import Preferences
from lib_vram.plan.result import Plan
from lib_vram.units import GIB, MIB
from tests.fakehost.processing import page_run


@pytest.fixture
def fits(monkeypatch):
    monkeypatch.setattr(guard_module, "estimate", lambda request: Estimate("fits", 7 * GIB, "vae_decode", GIB))


def lighter(request):
    return request.replace(forge=replace(request.forge, inference_memory_bytes=384 * MIB))


def test_settings_and_what_was_undone_twice_reach_the_plan(fake, monkeypatch):
    seen = []

    def make_plan(request, preferences):
        seen.append(preferences)
        return Plan(False, (), request, estimate(request))

    def estimate(request):
        return Estimate("wont_fit", 7 * GIB, "vae_decode", 8 * GIB)

    monkeypatch.setattr(guard_module, "estimate", estimate)
    monkeypatch.setattr(guard_module, "make_plan", make_plan)
    monkeypatch.setattr(callbacks.guard(), "undone", guard_module.Undone())
    fake.opts.data["vram_guard_keep"] = ["size", 7]
    page_run(fake.make())
    for _ in range(2):
        callbacks.guard().undone.note(["vae_tiled"])
    page_run(fake.make())
    assert seen == [Preferences.of(["size"]), Preferences.of(["size"], ["vae_tiled"])]


@pytest.mark.parametrize("host_name", ["forge"], indirect=True)
def test_fix_mode_gives_a_run_that_fits_the_reserve_that_spares_it_swaps(fake, fits, monkeypatch):
    monkeypatch.setattr(reserve, "without_needless_swaps", lighter)
    fake.opts.data["vram_guard_mode"] = "fix"
    assert "384 MiB" in page_run(fake.make())[0].infotext


@pytest.mark.parametrize("mode", ["off", "show", "ask"])
def test_in_other_modes_a_run_that_fits_is_as_it_was_asked_for(fake, fits, monkeypatch, mode):
    monkeypatch.setattr(reserve, "without_needless_swaps", lighter)
    fake.opts.data["vram_guard_mode"] = mode
    assert "VRAM Guard" not in page_run(fake.make())[0].infotext
