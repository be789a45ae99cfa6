"""What holds for every part of every family, in every form of its code and with every way of attention."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.attention import WAYS
from lib_vram.physics.component import Code, Component, ComponentMemory, Part
from lib_vram.physics.controlnets import CONTROLNETS
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.request import Attention, Dtype, Family

WIDTH, HEIGHT = 832, 576
FORMS: tuple[tuple[Code, str], ...] = (("diffusers", "forge"), ("ldm", "forge"), ("ldm", "a1111"), ("ldm", "neo"))
PLENTY_BYTES = 8 * 2**30
"""Free memory that is given where attention would otherwise look for the least."""
FAMILIES = tuple(family for family in get_args(Family) if family != LOADED)
WITHOUT_CONTROLNET = frozenset(FAMILIES) - CONTROLNETS.keys()
"""No ControlNet has been published, or only for programs whose code was not traced."""
MOST_OF_WEIGHTS = 40
"""A VAE's activations are many times its weights; nothing takes more than this at a picture of half a megapixel."""


def components(family: Family) -> list[Component]:
    """Return every part of ``family`` in every form of its code."""
    forms = [form for form in FORMS if form[1] != ("a1111" if SHAPES[family].transformer else "neo")]
    return [
        Component(family, part, WIDTH, HEIGHT, code=code, host=host, free_bytes=PLENTY_BYTES)  # type: ignore[arg-type]
        for part, (code, host) in product(get_args(Part), forms)
        if part != "controlnet" or family not in WITHOUT_CONTROLNET
    ]


def with_attention(component: Component) -> list[Component]:
    """Return ``component`` with every way of attention that its code has."""
    ways = WAYS["diffusers" if component.code == "diffusers" else component.host]
    return [replace(component, attention=way) for way in ways]  # type: ignore[arg-type]


def in_order(memory: ComponentMemory) -> bool:
    """Whether the figures come in the order in which they must."""
    return (
        0 < memory.low_bytes <= memory.high_bytes
        and memory.floor_bytes <= memory.high_bytes
        and memory.floor_bytes <= memory.minimum_bytes <= memory.comfortable_bytes
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_of_attention_answers_and_score_matrices_take_no_less(family: Family) -> None:
    for component in components(family):
        floors = {asked.attention: component_trace(asked).bare_floor_bytes for asked in with_attention(component)}
        assert floors["math"] >= floors["xformers"] > 0, component


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["fp32", "fp8"])
def test_every_type_answers_and_wider_numbers_take_more(family: Family, dtype: Dtype) -> None:
    for component in components(family):
        memory = component_memory(replace(component, dtype=dtype))
        assert in_order(memory), component
        half = component_memory(component)
        assert (memory.weights_bytes < half.weights_bytes) == (dtype == "fp8")
        if component.part != "text_encode":  # CLIP computes in fp32, and casts weights that are not
            assert memory.floor_bytes >= half.floor_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_more_of_anything_never_takes_less(family: Family) -> None:
    for component in components(family):
        floor = component_trace(component).floor_bytes
        for change in ({"batch": 2}, {"batch": 5}, {"width": WIDTH + 64}, {"height": HEIGHT + 64}):
            assert component_trace(replace(component, **change)).floor_bytes >= floor, (component, change)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_part_takes_is_plausible_against_its_weights(family: Family) -> None:
    for component in components(family):
        memory = component_memory(component)
        assert memory.weights_bytes > 2**20
        assert memory.comfortable_bytes < MOST_OF_WEIGHTS * memory.weights_bytes, component


@pytest.mark.parametrize("family", sorted(WITHOUT_CONTROLNET))
def test_a_part_that_does_not_exist_is_said_to_be_missing(family: Family) -> None:
    for code, host in FORMS:
        with pytest.raises(NotReady, match="part"):
            component_memory(Component(family, "controlnet", WIDTH, HEIGHT, code=code, host=host))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [family for family in FAMILIES if SHAPES[family].frames_per_latent > 1])
@pytest.mark.parametrize("attention", ["sdpa", "xformers", "math", "split"])
def test_videos_answer_with_every_way_of_attention(family: Family, attention: Attention) -> None:
    for code, frames in product(get_args(Code), (5, 45)):
        for part in ("denoise", "vae_decode", "vae_encode"):
            component = Component(
                family, part, 480, 320, frames=frames, code=code, attention=attention, free_bytes=PLENTY_BYTES
            )  # type: ignore[arg-type]
            assert component_trace(component).floor_bytes > 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tile", [256, 512, 1024])
def test_tiles_never_take_more_than_the_whole_picture(family: Family, tile: int) -> None:
    for component in components(family):
        if component.part.startswith("vae"):
            whole = replace(component, width=1536, height=1152)
            assert component_trace(replace(whole, tile=tile)).floor_bytes <= component_trace(whole).floor_bytes


@pytest.mark.parametrize("code", get_args(Code))
def test_what_a_code_does_not_have_is_refused_by_name(code: Code) -> None:
    with pytest.raises(BadInput, match="frames"):
        component_memory(Component("sdxl", "vae_decode", WIDTH, HEIGHT, frames=5, code=code))
