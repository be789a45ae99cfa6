"""The shape of every family, and that each has figures for every part in both forms of its code."""

from __future__ import annotations

import typing

import pytest

from lib_vram.physics.component import Component, Part
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.memory import component_memory, setting_of
from lib_vram.request import Family

PARTS: tuple[Part, ...] = ("text_encode", "denoise", "vae_decode", "vae_encode")


def test_every_family_of_a_request_has_a_shape() -> None:
    assert set(SHAPES) == set(typing.get_args(Family))


@pytest.mark.parametrize("code", ["ldm", "diffusers"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("family", [family for family in SHAPES if family != LOADED])
def test_every_part_of_every_family_is_ready(family: Family, code: str, dtype: str) -> None:
    for part in PARTS:
        at = Component(family, part, 512, 768, code=code, dtype=dtype)  # type: ignore[arg-type]
        answer = component_memory(at)
        assert answer.source == "profile"
        assert 0 < answer.floor_bytes <= answer.minimum_bytes <= answer.comfortable_bytes


@pytest.mark.parametrize(
    ("family", "rows", "columns"),
    [("sd15", 96, 64), ("flux1", 96, 64), ("flux2_klein_4b", 48, 32), ("wan21_1b", 96, 64)],
)
def test_rows_and_columns_of_the_latent(family: Family, rows: int, columns: int) -> None:
    at = setting_of(Component(family, "denoise", 512, 768))
    assert (at.rows, at.columns) == (rows, columns)


@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (4, 1), (5, 2), (81, 21)])
def test_a_video_has_a_latent_frame_for_four_of_its_own_after_the_first(frames: int, latents: int) -> None:
    assert SHAPES["wan21_1b"].latent_frames(frames) == latents
    assert setting_of(Component("wan21_1b", "denoise", 832, 480, frames=frames)).frames == latents


def test_several_pictures_are_one_long_one_only_where_diffusers_lists_them() -> None:
    pictures = {
        code: Component("zimage", "denoise", 512, 512, batch=3, cfg=False, code=code) for code in ("ldm", "diffusers")
    }  # type: ignore[arg-type]
    assert (setting_of(pictures["ldm"]).batch, setting_of(pictures["diffusers"]).frames) == (3, 3)
