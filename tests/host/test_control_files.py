"""A control model's kind, family and size are those of its file; names say it where no header can be read."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lib_vram.host.control_files import ControlFile, control_file
from tests.model.conftest import entries_of, header_bytes

CONV = (3, 3)
SHAPES = {
    "plain": {
        "input_hint_block.0.weight": ("F16", (16, 3, *CONV)),
        "input_blocks.4.1.transformer_blocks.0.attn2.to_k.weight": ("F16", (320, 2048)),
        "label_emb.0.0.weight": ("F16", (1280, 2816)),
    },
    "lora": {"input_hint_block.0.weight": ("F16", (16, 3, *CONV)), "lora_controlnet": ("F16", (0,))},
    "lite": {"lllite_unet_input_blocks_7_1_transformer_blocks_0_attn1_to_q.down.0.weight": ("F16", (64, 1280))},
    "ip": {"ip_adapter.1.to_k_ip.weight": ("F16", (640, 2048))},
    "t2i": {"adapter.body.0.resnets.0.block1.weight": ("F16", (320, 320, *CONV))},
}


@pytest.fixture(params=["lib_controlnet.global_state controlnet_filename_dict", "scripts.global_state cn_models"])
def names(request, tmp_path, monkeypatch):
    """Return the host's table from names, which say nothing, to files: one for each of the shapes."""
    module, attribute = request.param.split()
    table = {"None": None}
    for name, shapes in SHAPES.items():
        entries = entries_of(shapes)
        start = header_bytes(entries)
        path = tmp_path / f"{name}.safetensors"
        with path.open("wb") as file:
            file.write(start)
            file.truncate(len(start) + max(entry["data_offsets"][1] for entry in entries.values()))
        table[f"{name} [0a1b2c]"] = str(path)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{attribute: table}))
    return table


def bytes_of(name):
    return max(entry["data_offsets"][1] for entry in entries_of(SHAPES[name]).values())


@pytest.mark.parametrize("written", ["{} [0a1b2c]", "{}", "{} [another]"])
@pytest.mark.parametrize(
    ("name", "kind", "family"),
    [("plain", "controlnet", "sdxl"), ("lora", "control_lora", None), ("lite", "controllllite", "sdxl"),
     ("ip", "ip_adapter", "sdxl"), ("t2i", "t2i_adapter", None)],
)  # fmt: skip
def test_the_header_of_the_file_decides(names, name, kind, family, written):
    size = bytes_of(name)
    assert control_file(written.format(name)) == ControlFile(kind, family, size, size // 2)


def test_weights_take_what_they_do_in_the_type_that_is_computed_in(names):
    found, size = control_file("plain"), bytes_of("plain")
    assert [found.loaded_bytes(dtype) for dtype in ("fp32", "fp16", "bf16", "fp8")] == [2 * size, size, size, size]
    assert ControlFile("controlnet", bytes=100).loaded_bytes("fp32") == 100


def test_a_file_whose_header_cannot_be_read_has_the_size_that_it_has(names, tmp_path):
    path = tmp_path / "old.pth"
    path.write_bytes(b"\x80\x02" * 500)
    names["t2iadapter_depth"] = str(path)
    assert control_file("t2iadapter_depth") == ControlFile("t2i_adapter", None, 1000)
    names["control_v11p_sd15_canny"] = str(path)
    assert control_file("control_v11p_sd15_canny") == ControlFile("controlnet")


@pytest.mark.parametrize("name", ["ip-adapter-plus_sd15", "None"])
def test_a_model_that_the_host_does_not_know_is_told_by_its_name(names, name):
    assert control_file(name) == ControlFile("ip_adapter" if "ip" in name else "controlnet")


def test_a_file_that_is_gone_is_told_by_its_name(names):
    names["kohya_lllite"] = "/nowhere/kohya_lllite.safetensors"
    assert control_file("kohya_lllite") == ControlFile("controllllite")
