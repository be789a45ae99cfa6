"""What a host holds of a loaded model's text encoders."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host.loaded_text import held


def tensor(count, size):
    return SimpleNamespace(nelement=lambda: count, element_size=lambda: size)


def model_with(weights, buffers=(), **fields):
    joint = SimpleNamespace(parameters=lambda: weights, buffers=lambda: buffers)
    return SimpleNamespace(forge_objects=SimpleNamespace(clip=SimpleNamespace(cond_stage_model=joint)), **fields)


def test_every_weight_counts_once_in_the_type_that_it_lies_in():
    shared = tensor(1000, 2)
    model = model_with([shared, tensor(3000, 1), shared], [tensor(10, 4)])
    assert held(model) == {"text_encoders_bytes": 2000 + 3000 + 40, "text_layer_bytes": 3000}


@pytest.mark.parametrize("model", [None, SimpleNamespace(), model_with([])])
def test_without_text_encoders_nothing_is_said(model):
    assert held(model) == {}


def test_a_model_without_a_name_brings_them_into_its_request(fake, monkeypatch):
    inspected = SimpleNamespace(family=None, components=())
    monkeypatch.setattr("lib_vram.host.webui.inspect_file", lambda path: inspected)
    models = fake.modules["modules.sd_models"]
    info = models.checkpoints_list["model.safetensors"]
    models.model_data.sd_model = model_with([tensor(3000, 2)], sd_checkpoint_info=info)
    host = callbacks.guard().host
    if host.name not in ("forge", "neo"):
        pytest.skip("models without a name are for hosts that gain architectures")
    model = host.request_from_form("txt2img", {}).model
    assert (model.family, model.text_encoders_bytes, model.text_layer_bytes) == ("loaded", 6000, 6000)
