"""GGUF headers: exact bytes by block sizes, both byte orders, and files that lie."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lib_vram.message import render
from lib_vram.model.gguf import TYPES
from lib_vram.model.header import read_header
from lib_vram.model.inspect import inspect_file
from lib_vram.model.tensor import Tensor

STRING, ARRAY, UINT32, INT32 = 8, 9, 4, 5
NUMBER_OF = {name: number for number, (name, _, _) in reversed(list(TYPES.items()))}
TENSOR = tuple[str, str | int, tuple[int, ...]]


class Writer:
    """Writes GGUF headers, good and bad."""

    def __init__(self, order: str = "<", version: int = 3) -> None:
        self.order, self.version = order, version
        self.notes: list[bytes] = []
        self.tensors: list[bytes] = []
        self.place = 0

    def pack(self, code: str, *values: int) -> bytes:
        return struct.pack(self.order + code, *values)

    def text(self, value: str) -> bytes:
        return self.pack("Q", len(value.encode())) + value.encode()

    def note(self, name: str, kind: int, value: bytes) -> None:
        self.notes.append(self.text(name) + self.pack("I", kind) + value)

    def tensor(self, name: str, kind: str | int, shape: tuple[int, ...]) -> None:
        number = NUMBER_OF[kind] if isinstance(kind, str) else kind
        sizes = tuple(reversed(shape))
        head = self.text(name) + self.pack("I", len(sizes)) + self.pack(f"{len(sizes)}Q", *sizes)
        self.tensors.append(head + self.pack("IQ", number, self.place))
        _, block, block_bytes = TYPES.get(number, ("", 1, 1))
        size = block_bytes
        for side in sizes:
            size *= side
        self.place += -(-(size // block) // 32) * 32

    def content(self, missing_bytes: int = 0) -> bytes:
        counts = self.pack("IQQ", self.version, len(self.tensors), len(self.notes))
        head = b"GGUF" + counts + b"".join(self.notes) + b"".join(self.tensors)
        return head + bytes(-len(head) % 32 + max(0, self.place - missing_bytes))


def written(*tensors: TENSOR, order: str = "<", version: int = 3) -> Writer:
    writer = Writer(order, version)
    for tensor in tensors:
        writer.tensor(*tensor)
    return writer


def problems_of(path: Path) -> list[str]:
    return [render(problem) for problem in read_header(path).problems]


@pytest.mark.parametrize(
    ("dtype", "size_bytes"),
    [
        ("F32", 2048), ("F16", 1024), ("BF16", 1024), ("I8", 512), ("F64", 4096),
        ("Q4_0", 288), ("Q4_1", 320), ("Q5_0", 352), ("Q5_1", 384), ("Q8_0", 544), ("Q8_1", 640),
        ("Q2_K", 168), ("Q3_K", 220), ("Q4_K", 288), ("Q5_K", 352), ("Q6_K", 420), ("Q8_K", 584),
        ("IQ1_S", 100), ("IQ1_M", 112), ("IQ2_XXS", 132), ("IQ2_XS", 148), ("IQ2_S", 164), ("IQ3_XXS", 196),
        ("IQ3_S", 220), ("IQ4_NL", 288), ("IQ4_XS", 272), ("TQ1_0", 108), ("TQ2_0", 132), ("MXFP4", 272),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("order", "version"), [("<", 2), ("<", 3), (">", 3)])
def test_a_tensor_takes_whole_blocks(
    raw_file: Callable[..., Path], dtype: str, size_bytes: int, order: str, version: int
) -> None:
    path = raw_file(written(("a", dtype, (2, 256)), order=order, version=version).content(), "model.gguf")
    read = read_header(path)
    assert (read.tensors, read.problems) == ((Tensor("a", dtype, (2, 256), size_bytes),), ())


def test_notes_are_read_and_shapes_of_comfyui_are_taken(raw_file: Callable[..., Path]) -> None:
    writer = written(("conv", "Q8_0", (18, 32)))
    writer.note("general.architecture", STRING, writer.text("sd1"))
    writer.note("general.file_type", UINT32, writer.pack("I", 7))
    writer.note("tokens", ARRAY, writer.pack("IQ", STRING, 2) + writer.text("ab") + writer.text("c"))
    shape = (2, 32, 3, 3)
    writer.note("comfy.gguf.orig_shape.conv", ARRAY, writer.pack("IQ4i", INT32, 4, *shape))
    read = read_header(raw_file(writer.content()))
    assert read.tensors == (Tensor("conv", "Q8_0", shape, 612),)
    assert read.metadata == {"general.architecture": "sd1", "general.file_type": "7"}


def test_a_noted_shape_of_another_size_is_not_believed(raw_file: Callable[..., Path]) -> None:
    writer = written(("conv", "F16", (4, 4)))
    writer.note("comfy.gguf.orig_shape.conv", ARRAY, writer.pack("IQ2i", INT32, 2, 5, 5))
    assert read_header(raw_file(writer.content())).tensors[0].shape == (4, 4)


def test_a_quantised_model_is_weighed_by_component(raw_file: Callable[..., Path]) -> None:
    writer = written(
        ("double_blocks.0.img_attn.qkv.weight", "Q4_K", (9216, 3072)),
        ("double_blocks.0.img_mlp.2.weight", "Q6_K", (3072, 1024)),
        ("img_in.bias", "F32", (3072,)),
        ("vector_in.in_layer.bias", "F32", (3072,)),
        ("guidance_in.in_layer.bias", "F32", (3072,)),
    )
    checkpoint = inspect_file(raw_file(writer.content(), "flux.gguf"))
    (transformer,) = checkpoint.components
    q4_k, q6_k = 9216 * 3072 * 9 // 16, 3072 * 1024 * 210 // 256
    assert (checkpoint.family, checkpoint.variant, checkpoint.problems) == ("flux1", "dev", ())
    assert (transformer.dtype, transformer.parameters) == ("q4_k", 9216 * 3072 + 3072 * 1024 + 3 * 3072)
    assert transformer.dtypes == (("q4_k", q4_k), ("q6_k", q6_k), ("fp32", 3 * 4 * 3072))
    assert transformer.bytes == q4_k + q6_k + 3 * 4 * 3072
    assert transformer.largest_layer == 9216 * 3072


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"GGUF", "the file is cut off within its header; download it again"),
        (b"GGUF\x01\0\0\0" + bytes(40), "it is a GGUF file of version 1; versions 2 and 3 are read"),
        (Writer(version=3).content(), "the file holds no tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "the header has more than 1000000 entries; it is no model's"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "the header has more than 1000000 entries; it is no model's"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 2**62),
            "the header claims 4294967296.0 GiB, more than the 32 MiB that are read; the file is damaged",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"n" + struct.pack("<I", 77),
            "the GGUF header is damaged at its note n",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"n" + struct.pack("<IIQ", ARRAY, STRING, 2**40),
            "the header has more than 1000000 entries; it is no model's",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQQ", 3, 0, 1, 1)
            + b"n"
            + struct.pack("<I", ARRAY)
            + struct.pack("<IQ", 9, 1) * 20,
            "the GGUF header is damaged at its note ?",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"n" + struct.pack("<I", 2**31),
            "the GGUF header is damaged at its tensor n",
        ),
    ],
)
def test_a_header_that_lies_is_a_problem_and_no_crash(
    raw_file: Callable[..., Path], content: bytes, problem: str
) -> None:
    assert problems_of(raw_file(content, "model.gguf")) == [problem.replace("note ?", "note ")]


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (("bad", 99, (4,)), "tensors of a dtype that the format does not know: 1, first bad"),
        (("bad", "Q4_K", (2, 100)), "tensors whose rows are no whole blocks of their type: 1, first bad"),
        (("bad", "Q4_0", ()), "tensors whose rows are no whole blocks of their type: 1, first bad"),
        (("good", "F32", (4,)), "tensors that the header names twice: 1, first good"),
    ],
)
def test_a_bad_tensor_is_named_and_the_others_are_kept(
    raw_file: Callable[..., Path], tensor: TENSOR, problem: str
) -> None:
    path = raw_file(written(("good", "F32", (4,)), tensor).content())
    assert problems_of(path) == [problem]
    assert read_header(path).tensors[0] == Tensor("good", "F32", (4,), 16)


def test_a_shape_beyond_all_memory_is_refused(raw_file: Callable[..., Path]) -> None:
    writer = Writer()
    writer.tensors.append(writer.text("a") + writer.pack("IQQIQ", 2, 2**40, 2**40, 0, 0))
    assert problems_of(raw_file(writer.content())) == ["tensors without a usable shape: 1, first a"]


def test_a_download_that_broke_off_names_the_first_tensor_beyond_the_end(raw_file: Callable[..., Path]) -> None:
    writer = written(("a", "F32", (8,)), ("b", "F32", (8,)))
    assert problems_of(raw_file(writer.content(missing_bytes=8))) == [
        "the file is cut off, download it again (tensors beyond its end: 1, first b)"
    ]


def test_an_impossible_alignment_is_told(raw_file: Callable[..., Path]) -> None:
    writer = written(("a", "F32", (8,)))
    writer.note("general.alignment", UINT32, writer.pack("I", 0))
    assert problems_of(raw_file(writer.content())) == ["alignment of tensors that cannot be: 0"]


def test_a_vocabulary_of_256_000_words_is_passed_over_quickly(raw_file: Callable[..., Path]) -> None:
    writer = written(("enc.blk.0.attn_norm.weight", "F32", (4096,)))
    words = b"".join(writer.text(f"word {number}") for number in range(256_000))
    writer.note("tokenizer.ggml.tokens", ARRAY, writer.pack("IQ", STRING, 256_000) + words)
    path = raw_file(writer.content())
    began = time.perf_counter()
    assert inspect_file(path).components[0].kind == "t5_xxl"
    assert time.perf_counter() - began < 0.5


def test_the_parts_of_a_split_file_are_summed(tmp_path: Path) -> None:
    for number in (1, 2):
        writer = written((f"blk.{number - 1}.attn_norm.weight", "F32", (4096,)))
        writer.note("split.count", UINT32, writer.pack("I", 2))
        (tmp_path / f"llm-0000{number}-of-00002.gguf").write_bytes(writer.content())
    checkpoint = inspect_file(tmp_path / "llm-00001-of-00002.gguf")
    assert (checkpoint.components[0].bytes, checkpoint.problems) == (2 * 4 * 4096, ())
    (tmp_path / "llm-00002-of-00002.gguf").unlink()
    assert [render(problem) for problem in inspect_file(tmp_path / "llm-00001-of-00002.gguf").problems] == [
        "files of the model that are missing: 1, first llm-00002-of-00002.gguf"
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(
    rest=st.binary(max_size=300), version=st.sampled_from([2, 3]), tensors=st.integers(0, 3), notes=st.integers(0, 3)
)
def test_any_bytes_after_the_magic_give_an_answer(
    raw_file: Callable[..., Path], rest: bytes, version: int, tensors: int, notes: int
) -> None:
    read = read_header(raw_file(b"GGUF" + struct.pack("<IQQ", version, tensors, notes) + rest))
    assert read.problems or read.tensors or "split.count" in read.metadata
    assert all(render(problem) for problem in read.problems)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_file_cut_anywhere_is_a_problem(raw_file: Callable[..., Path], cut: int) -> None:
    writer = written(("a", "Q8_0", (4, 64)), ("b", "F16", (10,)))
    writer.note("general.architecture", STRING, writer.text("flux"))
    whole = writer.content()
    assert bool(problems_of(raw_file(whole[:cut]))) == (cut < len(whole) - 12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(st.sampled_from(sorted(NUMBER_OF)), st.lists(st.integers(1, 5), max_size=3)), min_size=1, max_size=6
    )
)
def test_the_sizes_sum_to_no_more_than_the_file(
    raw_file: Callable[..., Path], tensors: list[tuple[str, list[int]]]
) -> None:
    writer = written(*((f"t{place}", kind, (*shape, 256)) for place, (kind, shape) in enumerate(tensors)))
    path = raw_file(writer.content())
    read = read_header(path)
    assert not read.problems and len(read.tensors) == len(tensors)
    assert sum(tensor.size_bytes for tensor in read.tensors) <= path.stat().st_size


def test_a_text_encoders_tokens_are_unpacked_when_it_is_loaded_and_q4_k_grows(raw_file: Callable[..., Path]) -> None:
    writer = written(
        ("enc.blk.0.attn_norm.weight", "F32", (4096,)),
        ("token_embd.weight", "Q4_K", (10, 4096)),
        ("enc.blk.0.attn_k.weight", "Q4_K", (4096, 4096)),
        ("enc.blk.0.attn_q.weight", "Q8_0", (4096, 4096)),
    )
    (encoder,) = inspect_file(raw_file(writer.content(), "t5.gguf")).components
    n = 4096 * 4096
    assert encoder.bytes == 4 * 4096 + 10 * 4096 * 9 // 16 + n * 9 // 16 + n * 17 // 16
    assert encoder.loaded_bytes == 4 * 4096 + 2 * 10 * 4096 + n * 5 // 8 + n * 17 // 16
    assert (encoder.kind, encoder.largest_layer) == ("t5_xxl", n)
