from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.commands.reading import LIMIT_BYTES, parse_json, read_request
from lib_vram.errors import BadInput

REQUEST = {"device": {"total_bytes": 12 * 1024**3}, "model": {"family": "sdxl"}, "width": 1024, "height": 768}
FILE = "a JSON file with a request, or - for standard input"


def test_a_request_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST))
    assert (read_request(str(path)).width, read_request(str(path)).height) == (1024, 768)


def test_a_dash_means_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(json.dumps(REQUEST).encode())))
    assert read_request("-").model.family == "sdxl"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_the_encodings_of_windows_shells_are_understood(encoding: str) -> None:
    assert parse_json(json.dumps(REQUEST).encode(encoding)) == REQUEST


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "REQUEST: got '', takes a JSON object; this is empty"),
        (b" \n ", "REQUEST: got '', takes a JSON object; this is empty"),
        (b"{'a': 1}", "REQUEST: got \"'a': 1}\", takes JSON; line 1, column 2: Expecting property name"),
        (b"\x00\xff\xfe", "REQUEST: got b'\\x00\\xff\\xfe', takes JSON text in UTF-8; byte 1 is none"),
        (b'{"width": 1, "width": 2}', "width: got 2, takes one value: this field is given twice"),
        (b"[" * 100_000, "REQUEST: got '[[[[[[[[[[[[[[[[[[[[', takes JSON that is not nested this deep"),
    ],
)
def test_what_is_no_json_is_refused_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_json(content)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "shown"),
    [("NaN", "nan"), ("-Infinity", "-inf"), ("9" * 5000, "inf"), ("1e999", "inf"), ("9" * 41, "1e+41")],
)
@pytest.mark.parametrize("field", ["width", "cfg_scale"])
def test_numbers_beyond_all_bounds_are_refused_by_field(field: str, number: str, shown: str, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**REQUEST, field: "N"}).replace('"N"', number))
    with pytest.raises(BadInput, match=re.escape(f"{field}: got {shown}, takes a ")):
        read_request(str(path))


def test_a_request_of_ten_megabytes_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b" " * (10 * LIMIT_BYTES))
    with pytest.raises(BadInput, match="REQUEST: got 'more than 1 MiB', takes a JSON object of at most 1 MiB"):
        read_request(str(path))


def test_a_path_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    for path, reason in ((str(tmp_path), "this is a folder"), (str(tmp_path / "no"), "there is no such file")):
        with pytest.raises(BadInput) as caught:
            read_request(path)
        assert str(caught.value).endswith(f"takes {FILE}; {reason}")
    for unusable in ("a\0b", "a" * 5000):
        with pytest.raises(BadInput, match="REQUEST: got 'a"):
            read_request(unusable)


def test_no_path_and_no_standard_input_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="REQUEST: got None, takes a JSON file"):
        read_request(None)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match="there is no standard input here"):
        read_request("-")


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_bad_input(content: bytes) -> None:
    try:
        parse_json(content)
    except BadInput as error:
        assert len(str(error)) < 400
