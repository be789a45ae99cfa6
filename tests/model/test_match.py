"""Conditions of the table of signatures, and the table itself."""

from __future__ import annotations

from typing import get_args

import pytest

from lib_vram.model.match import Names
from lib_vram.model.signatures import CONTROLNETS, DENOISERS, LORA_LAYERS, TEXT_ENCODERS, VAES, VARIANTS
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.request import Family

NAMES = Names({"a.0.weight": (3, 768), "a.1.bias": (5,), "scalar": ()})


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("a.0.weight", True),
        ("a.0", False),
        ("a.0.", True),
        ("a.2.", False),
        ("!a.2.", True),
        ("a.0.weight[1]=768", True),
        ("a.0.weight[-1]=768|1024", True),
        ("a.0.weight[0]=768", False),
        ("a.0.weight[2]=768", False),
        ("a.0.weight[-3]=3", False),
        ("!a.0.weight[1]=768", False),
        ("scalar[0]=1", False),
        ("missing[0]=1", False),
    ],
)
def test_a_condition_holds_or_not(condition: str, holds: bool) -> None:
    assert NAMES.holds(condition) is holds


def test_the_first_line_that_holds_wins() -> None:
    assert NAMES.first((("x", ("missing",)), ("y", ("a.0.",)), ("z", ("a.0.weight",)))) == "y"
    assert NAMES.first((("x", ("a.0.", "missing")),)) is None


def test_every_family_has_lines_for_its_denoiser_and_its_loras() -> None:
    families = set(get_args(Family)) - {LOADED}
    assert families <= {name for name, _ in DENOISERS}
    assert families - {"chroma"} <= {name for _, _, widths in LORA_LAYERS for name in widths.values()}
    assert {name for name, _ in CONTROLNETS} <= families
    assert {name for name, _, _ in VARIANTS} <= families


def test_encoders_and_vaes_have_the_names_of_the_families_table() -> None:
    encoders = {encoder.name for shape in SHAPES.values() for encoder in shape.encoders}
    assert encoders <= {name for name, _ in TEXT_ENCODERS}
    assert {shape.vae for family, shape in SHAPES.items() if family != LOADED} <= {name for name, _ in VAES}
