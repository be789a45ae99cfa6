"""The files of *VAE / Text Encoder* are counted as what their headers say they are."""

from __future__ import annotations

import json
import struct
import sys
from types import SimpleNamespace

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.host.chosen_modules import Chosen, chosen_modules
from lib_vram.request import DeviceSpec, ModelSpec, Request, TextEncoder, VaeSpec
from lib_vram.units import GIB

T5 = "encoder.block.0.layer.0.SelfAttention.k.weight"
CLIP_L = "text_model.encoder.layers.0.layer_norm1.weight"
VAE = "decoder.conv_in.weight"
SHAPES = {
    "t5": {T5: ("F8_E4M3", (4096, 4096)), "shared.weight": ("F8_E4M3", (32128, 4096))},
    "clip": {CLIP_L: ("F16", (768,)), "text_model.embeddings.token_embedding.weight": ("F16", (49408, 768))},
    "vae": {VAE: ("BF16", (512, 16, 3, 3)), "encoder.conv_out.weight": ("BF16", (32, 512, 3, 3))},
}
BYTES = {"F8_E4M3": 1, "F16": 2, "BF16": 2}


@pytest.fixture
def files(tmp_path):
    made = {}
    for name, tensors in SHAPES.items():
        entries, place = {}, 0
        for tensor, (dtype, shape) in tensors.items():
            size = BYTES[dtype]
            for side in shape:
                size *= side
            entries[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, place + size]}
            place += size
        text = json.dumps(entries).encode()
        path = tmp_path / f"{name}.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + place)
        made[name] = str(path)
    return made


def test_every_file_is_told_by_its_header(files):
    chosen = chosen_modules([files["vae"], files["t5"], files["clip"]])
    assert chosen.vae_checkpoint == files["vae"]
    assert {item["name"]: item["checkpoint"] for item in chosen.text_encoders} == {
        "t5_xxl": files["t5"], "clip_l": files["clip"]
    }  # fmt: skip


@pytest.mark.parametrize("paths", [None, (), "ae.safetensors", ["gone.safetensors"], [None]])
def test_what_cannot_be_read_is_left_to_the_host(paths):
    assert chosen_modules(paths) == Chosen()


@pytest.fixture(params=["forge", "neo"])
def host_name(request):
    return request.param


def test_the_files_chosen_in_the_host_come_into_the_request(fake, host, files):
    fake.opts.data["forge_additional_modules"] = [files["vae"], files["t5"]]
    request = host.request_from_form("txt2img", {"width": 512, "height": 512})
    assert request.vae.checkpoint == files["vae"]
    assert request.text_encoders == (TextEncoder("t5_xxl", checkpoint=files["t5"]),)


def test_what_the_page_shows_is_ahead_of_the_option(fake, host, files, monkeypatch):
    fake.opts.data["forge_additional_modules"] = [files["vae"], files["t5"]]
    known = SimpleNamespace(module_list={"clip.safetensors": files["clip"], "ae.safetensors": files["vae"]})
    monkeypatch.setitem(sys.modules, "modules_forge.main_entry", known)
    form = {"width": 512, "height": 512, "text_encoders": ["clip.safetensors", "gone.safetensors"]}
    request = host.request_from_form("txt2img", form)
    assert request.vae.checkpoint is None
    assert request.text_encoders == (TextEncoder("clip_l", checkpoint=files["clip"]),)


@pytest.fixture
def host(fake):
    from lib_vram import callbacks

    return callbacks.guard().host


def test_a_t5_in_fp8_takes_less_of_the_card_than_one_in_fp16(files):
    request = Request(DeviceSpec(24 * GIB), ModelSpec("flux1"), 1024, 1024, host="forge", vae=VaeSpec())
    fp8 = request.replace(text_encoders=(TextEncoder("t5_xxl", checkpoint=files["t5"]),))
    resident = [
        next(phase for phase in estimate(item).phases if phase.name == "text_encode").resident_bytes
        for item in (request, fp8)
    ]
    assert resident[1] < resident[0] - 3 * GIB
