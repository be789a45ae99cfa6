from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib_vram.message import render
from lib_vram.model import header
from lib_vram.model.header import Tensor, read_header


def start(content: bytes | object) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


def problems_of(path: Path) -> list[str]:
    return [render(problem) for problem in read_header(path).problems]


def entry(shape: object, place: object, dtype: object = "F16") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": place}


def test_tensors_have_name_dtype_shape_and_size(raw_file: Callable[..., Path]) -> None:
    content = {"a": entry([2, 3], [0, 12]), "b": entry([4], [12, 28], "F32"), "__metadata__": {"format": "pt"}}
    read = read_header(raw_file(start(content) + bytes(28)))
    assert read.tensors == (Tensor("a", "F16", (2, 3), 12), Tensor("b", "F32", (4,), 16))
    assert read.metadata == {"format": "pt"}
    assert read.problems == ()


def test_a_scalar_and_an_empty_tensor_are_tensors(raw_file: Callable[..., Path]) -> None:
    content = {"scalar": entry([], [0, 8], "I64"), "nothing": entry([0, 5], [8, 8])}
    read = read_header(raw_file(start(content) + bytes(8)))
    assert [(tensor.elements, tensor.size_bytes) for tensor in read.tensors] == [(1, 8), (0, 0)]
    assert not read.problems


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"{}", "it is neither a safetensors nor a GGUF file"),
        (b"<!DOCTYPE html><html>", "it is a web page saved under a model's name; download the file itself"),
        (b"\xef\xbb\xbf\n  <HTML lang='en'>", "it is a web page saved under a model's name; download the file itself"),
        (
            b'{"error": "Repository not found"}',
            "it is a text, perhaps a server's answer, saved under a model's name; download the file itself",
        ),
        (bytes(1000), "it begins with nothing but zeros: the download did not end, repeat it"),
        (
            start({"a": entry([2], [0, 4])}) + bytes(104),
            "bytes that belong to no tensor: 100; programs refuse such a file, download it again",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
            "it is a Git LFS pointer, not the model itself; fetch it with git lfs pull",
        ),
        (start(b"{}"), "the file holds no tensors"),
        (start(b"[1]"), "it is neither a safetensors nor a GGUF file"),
        (start(b"{not json"), "the header is not readable: it should be a JSON object in UTF-8"),
        (start(b'{"a\xff": 1}'), "the header is not readable: it should be a JSON object in UTF-8"),
        (start(b'{"a": NaN}'), "the header is not readable: it should be a JSON object in UTF-8"),
        (start(b'{"a": ' + b"9" * 5000 + b"}"), "the header is not readable: it should be a JSON object in UTF-8"),
        (start(b'{"a": ' + b"[" * 200_000), "the header is not readable: it should be a JSON object in UTF-8"),
        (struct.pack("<Q", 500) + b'{"a":', "the file is cut off within its header; download it again"),
        (
            struct.pack("<Q", 2**63) + b'{"a":',
            "the header claims 8589934592.0 GiB, more than the 32 MiB that are read; the file is damaged",
        ),
        (start(b'{"a": 1, "a": 2}'), "the header names a twice"),
        (start(b'{"a": {"dtype": "F16", "dtype": "F32"}}'), "the header names dtype twice"),
    ],
)
def test_a_file_that_is_no_model_says_what_it_is(raw_file: Callable[..., Path], content: bytes, problem: str) -> None:
    assert problems_of(raw_file(content)) == [problem]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("old.ckpt", b"PK\x03\x04" + bytes(60)),
        ("older.pt", b"\x80\x02}q\x00."),
        ("odd.pth", b"cos\nsystem\n(S'x'\ntR."),
    ],
)
def test_a_pickle_is_refused_without_running_it(raw_file: Callable[..., Path], name: str, content: bytes) -> None:
    assert problems_of(raw_file(content, name)) == [
        "it is a pickle file (.ckpt, .pt), which cannot be read without running what is in it; "
        "convert it to safetensors"
    ]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (7, "entries of the header that are no tensors: 1, first bad"),
        (entry([1], [2, 4], "F12"), "tensors of a dtype that the format does not know: 1, first bad"),
        (entry([1], [2, 4], ["F16"]), "tensors of a dtype that the format does not know: 1, first bad"),
        (entry([-1], [2, 4]), "tensors without a usable shape: 1, first bad"),
        (entry([1.0], [2, 4]), "tensors without a usable shape: 1, first bad"),
        (entry([True], [2, 4]), "tensors without a usable shape: 1, first bad"),
        (entry([2**70], [2, 4]), "tensors without a usable shape: 1, first bad"),
        (entry([1] * 99, [2, 4]), "tensors without a usable shape: 1, first bad"),
        (entry([1], [4, 2]), "tensors without a usable place in the file: 1, first bad"),
        (entry([1], [2]), "tensors without a usable place in the file: 1, first bad"),
        (entry([1], "24"), "tensors without a usable place in the file: 1, first bad"),
        (entry([2], [2, 4]), "tensors whose size in the file is not what their shape says: 1, first bad"),
        (entry([2], [0, 4]), "tensors that overlap others: 1, first bad"),
        (
            entry([3], [2, 8]),
            "the file is cut off, download it again (tensors beyond its end: 1, first bad)",
        ),
    ],
)
def test_a_hostile_entry_is_named_and_the_others_are_kept(
    raw_file: Callable[..., Path], bad: object, problem: str
) -> None:
    path = raw_file(start({"good": entry([1], [0, 2]), "bad": bad}) + bytes(4))
    assert problems_of(path) == [problem]
    assert "good" in [tensor.name for tensor in read_header(path).tensors]


def test_each_kind_of_fault_is_told_once_with_its_count(raw_file: Callable[..., Path]) -> None:
    content = {f"bad{number}": 7 for number in range(1000)}
    assert problems_of(raw_file(start(content))) == ["entries of the header that are no tensors: 1000, first bad0"]


def test_names_from_a_file_are_shortened_and_made_printable(raw_file: Callable[..., Path]) -> None:
    problem = problems_of(raw_file(start({"\x1b[31m\n\ud800" + "x" * 500: 7})))[0]
    assert "\x1b" not in problem
    assert "\n" not in problem
    assert problem.endswith("...")
    assert len(problem) < 160


def test_a_header_of_a_million_entries_is_refused_before_it_is_parsed(raw_file: Callable[..., Path]) -> None:
    path = raw_file(start(b'{"a":[' + b"{}," * 1_000_000 + b"{}]}"))
    began = time.perf_counter()
    assert problems_of(path) == ["the header has more than 1000000 entries; it is no model's"]
    assert time.perf_counter() - began < 0.5


def test_no_more_is_read_than_the_header(raw_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    content = start({"a": entry([1000], [0, 2000])}) + bytes(2000)
    original = header._read

    class Counting:
        def __init__(self, file: object) -> None:
            self.file = file

        def read(self, size: int) -> bytes:
            asked.append(size)
            return self.file.read(size)  # type: ignore[attr-defined]

        def seek(self, place: int) -> None:
            self.file.seek(place)  # type: ignore[attr-defined]

    monkeypatch.setattr(header, "_read", lambda file, size, ending: original(Counting(file), size, ending))
    assert read_header(raw_file(content)).tensors
    assert sum(asked) == 32 + len(content) - 2000 - 8


def test_a_path_that_is_no_file_says_what_it_is(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == ["it is a folder, not a model file"]
    assert problems_of(tmp_path / "missing.safetensors") == ["there is no such file"]
    assert problems_of(Path("nul\0byte"))[0].startswith(("the file cannot be opened", "there is no such file"))
    assert not read_header(tmp_path).readable


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problems_of(tmp_path / "pipe") == ["it is a device or a pipe, not a model file"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(content=st.binary(max_size=400))
def test_any_bytes_give_an_answer(raw_file: Callable[..., Path], content: bytes) -> None:
    read = read_header(raw_file(content))
    assert read.problems
    assert all(render(problem) for problem in read.problems)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F16", "F4", "I64", "X"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 50), min_size=2, max_size=2) | JSON,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(content=st.dictionaries(st.text(max_size=8), ENTRY | JSON, max_size=5), data=st.binary(max_size=40))
def test_any_header_gives_an_answer_within_the_file(
    raw_file: Callable[..., Path], content: dict[str, object], data: bytes
) -> None:
    read = read_header(raw_file(start(content) + data))
    assert read.tensors or read.problems
    if not read.problems:
        assert sum(tensor.size_bytes for tensor in read.tensors) <= len(data)
