"""The line in the infotext."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard import infotext
from lib_vram.request import ControlUnit, DeviceSpec, ForgeSettings, Hires, IdleModel, ModelSpec, Request, VaeSpec
from tests.fakehost.processing import quote

GIB, MIB = 1024**3, 1024**2
BASE = Request(
    DeviceSpec(8 * GIB), ModelSpec("sd15"), 1024, 768, batch_size=4, hires=Hires(2.0), upscaler_tile=192,
    controlnets=(ControlUnit(),), idle_models=(IdleModel("checkpoint", 2 * GIB),),
)  # fmt: skip

PARAMETER = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')
"""How the hosts read an infotext's last line."""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"batch_size": 1, "batch_count": 4}, "batch 4x1 -> 1x4"),
        ({"vae": VaeSpec(tiled=True, tile_size=768)}, "VAE tiled 768"),
        ({"forge": ForgeSettings(never_oom_vae=True)}, "VAE tiled"),
        ({"forge": ForgeSettings(never_oom_unet=True)}, "UNet always offloaded"),
        ({"batch_cond_uncond": False}, "cond and uncond apart"),
        ({"hires": Hires(1.65)}, "hires 2 -> 1.65"),
        ({"hires": None}, "hires off"),
        ({"width": 896, "height": 672}, "size 1024x768 -> 896x672"),
        ({"batch_size": 2, "batch_count": 2, "batch_cond_uncond": False}, "batch 4x1 -> 2x2; cond and uncond apart"),
        ({"live_preview": "off"}, "live preview approx -> off"),
        ({"attention": "sub_quad"}, "attention sdpa -> sub_quad"),
        ({"idle_models": ()}, "idle models unloaded"),
        ({"forge": ForgeSettings(1500 * MIB)}, "kept free 1024 -> 1500 MiB"),
        ({"upscaler_tile": 128}, "upscaler tile 192 -> 128"),
        ({"controlnets": (ControlUnit(low_vram=True),)}, "ControlNet low VRAM"),
        ({"model": ModelSpec("sd15", storage_dtype="fp8")}, "weights stored in fp8"),
        ({}, ""),
    ],
)
def test_the_line_says_what_changed(changes, line):
    assert infotext.changes_line(BASE, BASE.replace(**changes)) == line


def test_a_hires_size_in_pixels_is_shown_as_a_size():
    original = BASE.replace(hires=Hires(2.0, 2048, 1536))
    changed = BASE.replace(hires=Hires(2.0, 1600, 1200))
    assert infotext.changes_line(original, changed) == "hires 2048x1536 -> 1600x1200"


def test_the_warning_has_the_figures():
    phase = PhaseEstimate("hires_sampling", GIB, GIB, 8 * GIB, GIB, 0, 0, "rule")
    line = infotext.warning_line(Estimate("wont_fit", 7 * GIB, "hires_sampling", phases=(phase,)))
    assert line == "would not fit; hires sampling needs 9.0 GiB of 7.0 GiB"


@given(
    size=st.integers(1, 64), count=st.integers(1, 64), width=st.integers(8, 512), scale=st.floats(1, 4, allow_nan=False)
)
def test_every_parser_reads_the_line_back_whole(size, count, width, scale):
    changed = BASE.replace(
        batch_size=size, batch_count=count, width=width * 8, hires=Hires(scale), batch_cond_uncond=False
    )
    line = infotext.changes_line(BASE, changed)
    text = f"Steps: 20, {infotext.KEY}: {quote(line)}, Version: v1.10.1"
    assert quote(line) == line
    assert dict(PARAMETER.findall(text))[infotext.KEY] == line
