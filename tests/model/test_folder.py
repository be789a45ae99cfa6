"""Models of several files: indexes, diffusers' folders, and indexes that point elsewhere."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from lib_vram.message import render
from lib_vram.model.inspect import Checkpoint, inspect_file

Shapes = dict[str, tuple[int, ...]]


def write(path: Path, shapes: Shapes) -> None:
    """Write a safetensors file of half-precision tensors."""
    entries, place = {}, 0
    for name, shape in shapes.items():
        end = place + 2 * math.prod(shape)
        entries[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(entries).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))


def write_index(path: Path, places: object) -> None:
    path.write_text(json.dumps({"metadata": {}, "weight_map": places}))


def problems_of(checkpoint: Checkpoint) -> list[str]:
    return [render(problem) for problem in checkpoint.problems]


def flux_transformer(folder: Path) -> None:
    first = {"transformer_blocks.0.attn.to_q.weight": (8, 8), "time_text_embed.timestep_embedder.linear_1.bias": (8,)}
    write(folder / "diffusion_pytorch_model-00001-of-00002.safetensors", first)
    write(folder / "diffusion_pytorch_model-00002-of-00002.safetensors", {"single_transformer_blocks.0.x": (4, 4)})
    places = {**dict.fromkeys(first, "diffusion_pytorch_model-00001-of-00002.safetensors")}
    places["single_transformer_blocks.0.x"] = "diffusion_pytorch_model-00002-of-00002.safetensors"
    write_index(folder / "diffusion_pytorch_model.safetensors.index.json", places)


def test_an_index_stands_for_all_its_files(tmp_path: Path) -> None:
    flux_transformer(tmp_path)
    checkpoint = inspect_file(tmp_path / "diffusion_pytorch_model.safetensors.index.json")
    (transformer,) = checkpoint.components
    assert (checkpoint.family, checkpoint.variant, checkpoint.problems) == ("flux1", "schnell", ())
    assert (transformer.name, transformer.parameters, transformer.bytes) == ("transformer", 88, 176)


def test_one_of_several_files_says_that_there_are_more(tmp_path: Path) -> None:
    flux_transformer(tmp_path)
    assert problems_of(inspect_file(tmp_path / "diffusion_pytorch_model-00002-of-00002.safetensors"))[0] == (
        "it is one of the model's 2 files; give the index (.safetensors.index.json) for all of them"
    )


def test_a_missing_file_of_an_index_is_named_and_the_rest_is_summed(tmp_path: Path) -> None:
    flux_transformer(tmp_path)
    (tmp_path / "diffusion_pytorch_model-00001-of-00002.safetensors").unlink()
    checkpoint = inspect_file(tmp_path / "diffusion_pytorch_model.safetensors.index.json")
    assert checkpoint.components[0].parameters == 16
    assert problems_of(checkpoint)[-1] == (
        "files of the model that are missing: 1, first diffusion_pytorch_model-00001-of-00002.safetensors"
    )


def test_a_folder_of_diffusers_is_inspected_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    flux_transformer(tmp_path / "transformer")
    clip = {"text_model.embeddings.token_embedding.weight": (10, 768)}
    write(tmp_path / "text_encoder" / "model.safetensors", clip)
    write(tmp_path / "text_encoder" / "model.fp16.safetensors", {"wrong.weight": (1,)})
    t5 = {"encoder.block.0.layer.0.SelfAttention.k.weight": (2, 4096)}
    write(tmp_path / "text_encoder_2" / "model.safetensors", t5)
    write(tmp_path / "vae" / "diffusion_pytorch_model.safetensors", {"decoder.conv_in.weight": (2, 16, 3, 3)})
    (tmp_path / "scheduler").mkdir()
    for path in (tmp_path, tmp_path / "model_index.json"):
        checkpoint = inspect_file(path)
        assert (checkpoint.family, checkpoint.problems) == ("flux1", ())
        assert [(item.name, item.kind, item.bytes) for item in checkpoint.components] == [
            ("transformer", "", 176),
            ("text_encoder", "clip_l", 15360),
            ("text_encoder_2", "t5_xxl", 16384),
            ("vae", "flux1", 576),
        ]


def test_a_folder_of_one_part_is_that_part(tmp_path: Path) -> None:
    write(tmp_path / "diffusion_pytorch_model.safetensors", {"decoder.conv_in.weight": (2, 4, 3, 3)})
    assert not inspect_file(tmp_path).readable
    (tmp_path / "config.json").write_text("{}")
    assert [(item.name, item.kind) for item in inspect_file(tmp_path).components] == [("vae", "sd15")]


def test_a_folder_with_nothing_to_read_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    assert problems_of(inspect_file(tmp_path)) == ["it is a folder, not a model file"]


@pytest.mark.parametrize(
    "places",
    [
        {"a": "../secret.safetensors"},
        {"a": "/etc/passwd"},
        {"a": "C:\\models\\a.safetensors"},
        {"a": ".."},
        {"a": ""},
        {"a": 7},
        {f"t{number}": f"part{number}.safetensors" for number in range(1001)},
        {},
        [],
        None,
    ],
)
def test_an_index_that_points_elsewhere_or_nowhere_is_refused(tmp_path: Path, places: object) -> None:
    path = tmp_path / "model.safetensors.index.json"
    write_index(path, places)
    checkpoint = inspect_file(path)
    assert (checkpoint.components, checkpoint.readable) == ((), True)
    assert problems_of(checkpoint) == [
        "the index model.safetensors.index.json is damaged or names files outside its folder"
    ]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"a":' + b"[" * 100_000])
def test_an_index_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(content)
    assert "is damaged" in problems_of(inspect_file(path))[0]


def test_a_changed_part_is_read_again(tmp_path: Path) -> None:
    flux_transformer(tmp_path)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    before = inspect_file(index)
    assert inspect_file(index) is before
    write(tmp_path / "diffusion_pytorch_model-00002-of-00002.safetensors", {"single_transformer_blocks.0.x": (9, 9)})
    assert inspect_file(index).components[0].parameters == 88 - 16 + 81
