from __future__ import annotations

import argparse

import pytest

from lib_vram.commands.options import one_of, required, whole
from lib_vram.errors import BadInput


def test_a_whole_number_within_its_limits_is_taken() -> None:
    assert [whole("--width", (-5, 16384))(text) for text in ("64", "-5", "16384")] == [64, -5, 16384]


@pytest.mark.parametrize("text", ["63", "16385", "1e3", "64.0", "", "-", "--5", "٦٤", "9" * 5000, "0x40", " 64"])
def test_anything_else_is_refused_with_what_it_takes(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        whole("--width", (64, 16384))(text)
    assert str(caught.value).endswith("takes a whole number from 64 to 16384")
    assert str(caught.value).startswith("--width: got ")


def test_a_choice_is_one_of_its_list() -> None:
    assert one_of("--cfg", ("on", "off"))("off") == "off"
    with pytest.raises(BadInput, match="--cfg: got 'maybe', takes one of on, off"):
        one_of("--cfg", ("on", "off"))("maybe")


def test_the_first_missing_option_is_named() -> None:
    arguments = argparse.Namespace(width=64, alloc_conf=None)
    required(arguments, "--width")
    with pytest.raises(BadInput, match="--alloc-conf: got None, takes a value: this option is required"):
        required(arguments, "--width", "--alloc-conf")
