"""What the scripts of a run do to the UNet is read from their arguments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host.asked import from_form
from lib_vram.host.unet_patches import UnetPatches, patches_of
from lib_vram.request import HrFix, TiledDiffusion

A1111 = (True, "MultiDiffusion", False, True, 1024, 1024, 96, 64, 48, 4, "None", 2.0, False)


def run_with(title, *arguments, **fields):
    script = SimpleNamespace(title=lambda: title, args_from=1, args_to=1 + len(arguments))
    scripts = SimpleNamespace(alwayson_scripts=[script])
    return SimpleNamespace(scripts=scripts, script_args=(0, *arguments), width=512, height=768, **fields)


@pytest.mark.parametrize(
    ("title", "arguments", "expected"),
    [
        ("MultiDiffusion Integrated", (True, "MultiDiffusion", 768, 512, 64, 4),
         UnetPatches(tiles=TiledDiffusion(768, 512, 64, 4))),
        ("MultiDiffusion Integrated", (True, "SpotDiffusion", 16, 9000, 64, 8192, "random"),
         UnetPatches(tiles=TiledDiffusion(64, 9000, 64, 256))),
        ("MultiDiffusion Integrated", (False, "MultiDiffusion", 768, 512, 64, 4), UnetPatches()),
        ("MultiDiffusion Integrated", (True, "MultiDiffusion", None, 512, 64, 4), UnetPatches()),
        ("Tiled Diffusion", A1111, UnetPatches(tiles=TiledDiffusion(768, 512, 384, 4, first_pass_only=True))),
        ("Kohya HRFix Integrated", (True, 3, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"), UnetPatches(hr_fix=HrFix())),
        ("Kohya HRFix Integrated", (False, 3, 2.0, 0.0, 0.35, True, "bicubic", "bicubic"), UnetPatches()),
        ("SelfAttentionGuidance Integrated (SD 1.x, SD 2.x, SDXL)", (True, 0.5, 2.0, 1.0),
         UnetPatches(guidance=("sag",))),
        ("PerturbedAttentionGuidance Integrated", (True, 3.0, 0.0, 0.0, 1.0), UnetPatches(guidance=("pag",))),
        ("FreeU Integrated", (True, 1.01), UnetPatches(guidance=("freeu",))),
        ("FreeU Integrated", (False, 1.01), UnetPatches()),
        ("DynamicThresholding (CFG-Fix) Integrated", (True, 1.0), UnetPatches()),
    ],
)  # fmt: skip
def test_a_scripts_arguments_say_what_it_does(title, arguments, expected):
    assert patches_of(run_with(title, *arguments)) == expected


def test_a_run_without_scripts_has_no_patches():
    assert patches_of(SimpleNamespace(scripts=None, script_args=())) == UnetPatches()


@pytest.mark.parametrize(
    ("changes", "images", "expected"),
    [
        ({}, None, None),
        ({2: True}, None, (1024, 1024)),
        ({}, [(600, 400)], (600, 400)),
        ({10: "4x-UltraSharp"}, [(600, 400)], (1200, 800)),
        ({3: False, 10: "4x-UltraSharp"}, [(600, 400)], (1024, 1536)),
        ({3: False}, [(600, 400)], None),
        ({0: False, 2: True}, None, None),
    ],
)
def test_the_size_is_the_one_to_which_tiled_diffusion_sets_the_run(changes, images, expected):
    arguments = [changes.get(place, value) for place, value in enumerate(A1111)]
    fields = {} if images is None else {"init_images": [SimpleNamespace(size=size) for size in images]}
    assert patches_of(run_with("Tiled Diffusion", *arguments, **fields)).size == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, UnetPatches()),
        ({"unet_tiles": None, "hr_fix": None, "guidance": []}, UnetPatches()),
        ({"unet_tiles": [768, 512, 64, 4], "guidance": ["sag", "nothing like it"]},
         UnetPatches(tiles=TiledDiffusion(768, 512, 64, 4), guidance=("sag",))),
        ({"unet_tile_cells": [96, 64, 48, 4]},
         UnetPatches(tiles=TiledDiffusion(768, 512, 384, 4, first_pass_only=True))),
        ({"unet_tile_cells": [96, 64, 48, 4], "unet_sets_size": True},
         UnetPatches(tiles=TiledDiffusion(768, 512, 384, 4, first_pass_only=True, sets_size=True))),
        ({"hr_fix": [3, 2, 0, 0.35]}, UnetPatches(hr_fix=HrFix())),
        ({"unet_tiles": [768, None, 64, 4], "hr_fix": "on", "guidance": "sag"}, UnetPatches()),
        ({"unet_tiles": [float("nan"), 512, 64, 4], "hr_fix": [3, float("inf"), 0, 1]}, UnetPatches()),
    ],
)  # fmt: skip
def test_the_pages_scripts_are_read_alike(fields, expected):
    assert from_form("txt2img", fields).patches == expected


def test_the_request_of_a_run_has_them(fake):
    p = fake.make(width=1024, height=1024)
    script = SimpleNamespace(title=lambda: "Tiled Diffusion", args_from=len(p.script_args), args_to=None)
    p.scripts = SimpleNamespace(alwayson_scripts=[*p.scripts.alwayson_scripts, script])
    p.script_args += (*A1111[:2], True, False, 2048, 1536, *A1111[6:])
    request = callbacks.guard().host.request_from_processing(p)
    assert (request.width, request.height) == (2048, 1536)
    assert request.tiled_diffusion == TiledDiffusion(768, 512, 384, 4, first_pass_only=True, sets_size=True)
