"""Profiles as files: what they hold, and what a damaged one does."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import BadProfile
from lib_vram.physics import profile as profiles
from lib_vram.physics.profile import ALLOC, FOLDER, FREE, LOOP, REPEAT, SYMBOLS, Profile, halvings, load, monomials

SHIPPED = sorted(path.stem for path in FOLDER.glob("*.json"))
TERMS = (((0, 512),), ((1, 1024),))
CHAIN = ((ALLOC, 0), (LOOP, 2), (LOOP, 5), (ALLOC, 1), (FREE, 2), (FREE, 1))
"""A block, then five times: take the next and give the last one back; then give back the last."""


def content() -> dict[str, Any]:
    """Return the content of one shipped file."""
    data: dict[str, Any] = json.loads((FOLDER / "sd15-vae_decode-fp16-forge.json").read_text(encoding="utf-8"))
    return data


def test_a_side_is_halved_upwards() -> None:
    assert halvings(5, 8) == (40, 12, 4, 1)


def test_monomials_are_in_the_order_of_their_names() -> None:
    named = dict(zip(SYMBOLS, monomials(3, 5, 8)))
    batched = {"1": 1, "B": 3, "B*A0": 120, "B*A1": 36, "B*A2": 12, "B*A3": 3, "B*S": 39, "B*A1*A1": 3 * 12**2}
    assert {name: named[name] for name in batched} == batched
    assert [named[name] for name in ("A0", "A1", "A2", "A3", "R1", "C1")] == [40, 12, 4, 1, 3, 4]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_loads_and_is_written_as_it_was_read(name: str) -> None:
    profile = load(name)
    assert profile is not None
    text = json.dumps(profile.to_json(), sort_keys=True, separators=(",", ":")) + "\n"
    assert text == (FOLDER / f"{name}.json").read_text(encoding="utf-8")


def test_all_profiles_together_are_far_below_a_megabyte() -> None:
    assert len(SHIPPED) > 36
    assert sum((FOLDER / f"{name}.json").stat().st_size for name in SHIPPED) < 700_000


def test_there_is_no_profile_of_what_is_not_shipped() -> None:
    assert load("flux1-denoise-fp16-a1111") is None


def test_loops_are_written_out_whole_or_in_part() -> None:
    profile = Profile("x", 0, TERMS, (), CHAIN)
    turn = [(ALLOC, 1), (FREE, 2)]
    assert list(profile.unrolled()) == [(ALLOC, 0), *turn * 5, (FREE, 1)]
    assert list(profile.unrolled(2)) == [(ALLOC, 0), *turn * 2, (FREE, 1)]


def test_what_was_taken_before_a_shortened_loop_is_still_found() -> None:
    tokens = ((ALLOC, 0), (ALLOC, 0), (LOOP, 2), (LOOP, 5), (ALLOC, 1), (FREE, 2), (FREE, 1), (FREE, 7))
    profile = Profile("x", 0, TERMS, (), tokens)
    assert list(profile.unrolled())[-1] == (FREE, 7)
    assert list(profile.unrolled(2))[-1] == (FREE, 4)


def test_what_a_repeat_keeps_adds_up_so_it_is_always_written_out() -> None:
    profile = Profile("x", 0, TERMS, (), ((REPEAT, 1), (REPEAT, 4), (ALLOC, 1)))
    assert list(profile.unrolled(2)) == [(ALLOC, 1)] * 4


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"format": None},
        {"tokens": "no base85 \x00"},
        {"tokens": content()["tokens"][:-7]},
        {"terms": [[[0, 1]]]},
        {"terms": "x"},
        {"calls": [[1, 2]]},
        {"parameters": "many"},
    ],
)
def test_a_damaged_profile_is_told_apart(damage: dict[str, Any]) -> None:
    with pytest.raises(BadProfile):
        Profile.from_json({**content(), **damage})


@pytest.mark.parametrize("missing", ["format", "name", "parameters", "terms", "calls", "tokens"])
def test_a_profile_that_lacks_something_is_told_apart(missing: str) -> None:
    data = copy.deepcopy(content())
    del data[missing]
    with pytest.raises(BadProfile):
        Profile.from_json(data)


@pytest.mark.parametrize("data", [None, [], "text", 7])
def test_what_is_no_profile_at_all_is_told_apart(data: object) -> None:
    with pytest.raises(BadProfile):
        Profile.from_json(data)


def test_a_file_that_is_no_json_is_told_apart(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    monkeypatch.setattr(profiles, "FOLDER", tmp_path)
    with pytest.raises(BadProfile, match=r"broken\.json"):
        load("broken")


@given(st.lists(st.integers(0, 2**40)).map(lambda values: values if len(values) % 2 == 0 else values[1:]))
def test_numbers_survive_their_packing(values: list[int]) -> None:
    assert profiles._from_varints(profiles._varints(values)) == values
