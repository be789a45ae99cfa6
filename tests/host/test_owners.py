"""The loaded models and their real bytes, on every fake host."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host import owners
from lib_vram.host.owners import weights_of
from lib_vram.live.picture import Weights
from lib_vram.units import MIB


class Tensor:
    """Stands for one of torch's: where it is, and how many bytes of two each it has."""

    made = 0

    def __init__(self, size_bytes, device="cuda", place=None):
        Tensor.made += 1
        self.device = SimpleNamespace(type=device)
        self._size, self._place = size_bytes, Tensor.made if place is None else place

    def data_ptr(self):
        return self._place

    def nelement(self):
        return self._size // 2

    def element_size(self):
        return 2


class Module:
    """Stands for a module with parameters and buffers."""

    def __init__(self, *tensors, buffers=()):
        self._tensors, self._buffers = tensors, buffers

    def parameters(self):
        return iter(self._tensors)

    def buffers(self):
        return iter(self._buffers)


class ControlNet(Module):
    """Named as the hosts' own class is."""


def test_parameters_count_where_they_are_now():
    module = Module(Tensor(6), Tensor(4, "cpu"), Tensor(100, "meta", place=0), buffers=[Tensor(2)])
    assert weights_of([("unet", "a", module)]) == (Weights("unet", "a", 8, 4),)


def test_what_two_models_share_counts_once():
    shared = Tensor(10)
    found = weights_of([("unet", "a", Module(shared, Tensor(2))), ("checkpoint", "b", Module(shared))])
    assert found == (Weights("unet", "a", 12, 0),)


def test_nothing_is_shown_for_what_is_not_loaded():
    assert weights_of([("vae", "", None), ("vae", "", Module())]) == ()


@pytest.fixture
def host(fake):
    """The host with a model on the card whose text encoder is in RAM, and a ControlNet beside it."""
    unet, text, vae = Module(Tensor(8 * MIB)), Module(Tensor(2 * MIB, "cpu")), Module(Tensor(MIB))
    control = ControlNet(Tensor(4 * MIB))
    info = SimpleNamespace(filename="/models/dream.safetensors")
    objects = SimpleNamespace(
        unet=SimpleNamespace(model=unet), vae=SimpleNamespace(first_stage_model=vae),
        clip=SimpleNamespace(patcher=SimpleNamespace(model=text)),
    )  # fmt: skip
    model = SimpleNamespace(
        sd_checkpoint_info=info, model=SimpleNamespace(diffusion_model=unet), cond_stage_model=text,
        first_stage_model=vae, forge_objects=objects,
    )  # fmt: skip
    fake.modules["modules.sd_models"].model_data.sd_model = model
    managed = [SimpleNamespace(model=SimpleNamespace(model=item)) for item in (unet, control)]
    managed.append(SimpleNamespace(model=None))  # a weak reference whose model is gone
    for name in ("backend.memory_management", "ldm_patched.modules.model_management"):
        if name in fake.modules:
            fake.modules[name].current_loaded_models = managed
    if fake.name == "a1111":
        script = type("Script", (), {"model_cache": {"canny [abc]": SimpleNamespace(model=control)}})()
        script.title = lambda: "ControlNet"
        fake.modules["modules.scripts"].scripts_txt2img = SimpleNamespace(alwayson_scripts=[script])
    return callbacks.guard().host


def test_every_host_names_its_loaded_models_and_where_they_are(host, fake):
    found = host.loaded_weights()
    name = "canny [abc]" if fake.name == "a1111" else "ControlNet"
    assert set(found) == {
        Weights("unet", "dream.safetensors", 8 * MIB, 0),
        Weights("text_encoder", "", 0, 2 * MIB),
        Weights("vae", "", MIB, 0),
        Weights("controlnet", name, 4 * MIB, 0),
    }


def test_looking_loads_no_model(fake):
    fake.modules["modules.sd_models"].model_data.sd_model = None
    for name in ("backend.memory_management", "ldm_patched.modules.model_management"):
        if name in fake.modules:
            fake.modules[name].current_loaded_models = []
    assert callbacks.guard().host.loaded_weights() == ()
    assert fake.record.models_loaded == 0


def test_what_extensions_keep_is_named_for_what_it_is(host, fake, monkeypatch):
    layer = SimpleNamespace(up=Module(Tensor(2 * MIB)), alpha=1.0, down=Tensor(MIB))
    network = SimpleNamespace(name="style", modules={"a": layer, "b": SimpleNamespace(up=Tensor(MIB))})
    monkeypatch.setitem(sys.modules, "networks", SimpleNamespace(loaded_networks=[network]))
    shared = fake.modules["modules.shared"]
    shared.sd_upscalers = [
        SimpleNamespace(name="4x", scaler=SimpleNamespace(model=Module(Tensor(MIB)))),
        SimpleNamespace(name="Lanczos", scaler=SimpleNamespace(model="Lanczos")),
        SimpleNamespace(name="None", scaler=None),
    ]
    shared.face_restorers = [SimpleNamespace(name=lambda: "CodeFormer", net=Module(Tensor(MIB, "cpu")))]
    shared.interrogator = SimpleNamespace(clip_model=None, blip_model=Module(Tensor(3 * MIB)))
    found = {item.kind: (item.name, item.card_bytes, item.ram_bytes) for item in host.loaded_weights()}
    assert found["lora"] == ("style", 4 * MIB, 0)
    assert found["upscaler"] == ("4x", MIB, 0)
    assert found["face_restore"] == ("CodeFormer", 0, MIB)
    assert found["interrogator"] == ("BLIP", 3 * MIB, 0)


def test_a_host_is_at_work_while_it_has_a_job(host, fake):
    fake.modules["modules.shared"].state = SimpleNamespace(job="")
    assert not host.is_busy()
    fake.modules["modules.shared"].state.job = "task(x)"
    assert host.is_busy()


def test_the_folder_of_the_models_is_the_hosts_own(host, fake, monkeypatch):
    assert host.folders()["models"] == "."
    monkeypatch.setitem(sys.modules, "modules.paths_internal", SimpleNamespace(models_path="/models"))
    assert host.folders()["models"] == "/models"
    assert owners.model_folder() == "/models"
