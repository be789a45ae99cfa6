"""An encode on A1111 that runs out is done again in our tiles, with the noise that it would have had."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lib_vram.guard import fail_open
from lib_vram.host import rescue, rescue_encode, rescue_levers

_spec = importlib.util.spec_from_file_location("rescue_host", Path(__file__).parent / "rescue_host.py")
webui = importlib.util.module_from_spec(_spec)
sys.modules["rescue_host"] = webui
_spec.loader.exec_module(webui)

SIDE = 1024


def out():
    return webui.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Picture:
    """Start pictures as one tensor."""

    def __init__(self, side=SIDE, count=1):
        self.shape = (count, 3, side, side)


class Img2Img(webui.Img2Img):
    """Encodes by the name that ``modules.processing`` has."""

    def init(self, *arguments):
        latents = sys.modules["modules.processing"].images_tensor_to_samples(Picture(count=self.batch_size))
        self.init_latent = latents * self.batch_size


class WithInpainting(webui.Processing):
    """A model for inpainting encodes the masked picture once more."""

    def img2img_image_conditioning(self, source_image, latent_image, image_mask=None):
        return self.host.encoder.forward(source_image)


@pytest.fixture
def rescued():
    return []


@pytest.fixture
def host(monkeypatch, rescued):
    made = webui.Host(mode="img2img", width=SIDE, height=SIDE).install(monkeypatch)
    generator = random.Random(5)
    made.noise = []

    def whole(picture):
        made.step("vae_encode", 0)
        return "whole"

    def encode(encoder, picture, tile):
        made.step(f"tiles {tile}", 0)
        return f"tiles {tile}"

    def images_tensor_to_samples(picture, approximation=None, model=None):
        made.noise.append(generator.random())  # drawn, and drawn again when it is repeated
        return [(model or sys.modules["modules.shared"].sd_model).first_stage_model.encoder.forward(picture)]

    made.encoder = SimpleNamespace(forward=whole)
    sys.modules["modules.shared"].sd_model.first_stage_model.encoder = made.encoder
    processing, common = sys.modules["modules.processing"], sys.modules["modules.sd_samplers_common"]
    processing.images_tensor_to_samples = common.images_tensor_to_samples = images_tensor_to_samples
    processing.StableDiffusionProcessing = WithInpainting
    processing.StableDiffusionProcessingImg2Img = Img2Img
    tiles = ModuleType("lib_vram.host.tiled_encode")
    tiles.supports, tiles.step_aside, tiles.encode = lambda it: made.tileable, lambda it: False, encode
    made.tileable = True
    monkeypatch.setitem(sys.modules, "lib_vram.host.tiled_encode", tiles)
    import lib_vram.host

    monkeypatch.setattr(lib_vram.host, "tiled_encode", tiles, raising=False)
    torch = SimpleNamespace(
        get_rng_state=generator.getstate, set_rng_state=generator.setstate,
        cuda=SimpleNamespace(is_available=lambda: False),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(rescue_levers.gc, "collect", lambda: 0)
    made.rescuer = rescue.Rescuer(made, lambda phase, line, error: rescued.append((phase, line)))
    fail_open.forget()
    made.rescuer.start()
    yield made
    made.rescuer.stop()


def encodes(host):
    return [step for step, _ in host.calls if step == "vae_encode" or step.startswith("tiles")]


def test_an_encode_that_does_not_fail_is_left_alone(host, rescued):
    host.run(Img2Img)
    assert (encodes(host), rescued) == (["vae_encode"], [])


def test_an_encode_that_runs_out_is_done_again_in_tiles_and_told(host, rescued):
    host.fails["vae_encode"] = [out()]
    p, pictures = host.run(Img2Img)
    assert encodes(host) == ["vae_encode", "tiles 960"]
    assert rescued == [("vae_encode", "VAE tiled 960")]
    assert p.extra_generation_params["VRAM Guard"] == "rescued in vae encode; VAE tiled 960"
    assert len(pictures) == 1


def test_what_ran_out_in_tiles_too_is_tried_once_more_in_smaller_ones(host, rescued):
    host.fails |= {"vae_encode": [out()], "tiles 960": [out()]}
    host.run(Img2Img)
    assert encodes(host) == ["vae_encode", "tiles 960", "tiles 320"]


def test_what_fails_three_times_ends_in_the_hosts_own_error(host, rescued):
    host.fails |= {"vae_encode": [out()], "tiles 960": [out()], "tiles 320": [out()]}
    with pytest.raises(webui.OutOfMemoryError):
        host.run(Img2Img)
    assert rescued == [] and encodes(host) == ["vae_encode", "tiles 960", "tiles 320"]


def test_the_repeated_encode_draws_the_noise_of_the_first(host):
    host.fails["vae_encode"] = [out()]
    host.run(Img2Img)
    assert len(host.noise) == 2 and host.noise[0] == host.noise[1]


def test_the_next_encode_of_that_size_goes_into_tiles_at_once(host):
    """The second pass, or the picture that a model for inpainting encodes once more."""
    host.fails["vae_encode"] = [out()]

    class Twice(Img2Img):
        def init(self, *arguments):
            super().init(*arguments)
            self.img2img_image_conditioning(Picture(), None)

    Twice.img2img_image_conditioning = lambda self, *given: WithInpainting.img2img_image_conditioning(self, *given)
    host.run(Twice)
    assert encodes(host) == ["vae_encode", "tiles 960", "tiles 960"]


def test_a_decode_of_the_same_size_goes_into_tiles_as_well(host):
    """It needs more than the encode that ran out."""
    host.fails["vae_encode"] = [out()]
    host.run(Img2Img, side=SIDE // 8)
    assert [step for step, _ in host.calls if step in ("vae_decode", "tiles 960")][-1] == "tiles 960"
    assert "vae_decode" not in [step for step, _ in host.calls]


def test_a_decoder_that_our_tiles_are_not_for_decodes_whole_after_an_encode_in_tiles(host, monkeypatch):
    """As where another extension's tiles have the decoder alone, or a second checkpoint has another VAE."""
    monkeypatch.setattr(sys.modules["lib_vram.host.tiled_decode"], "supports", lambda it: False)
    host.fails["vae_encode"] = [out()]
    host.run(Img2Img, side=SIDE // 8)
    assert [step for step, _ in host.calls if step in ("vae_decode", "tiles 960")] == ["tiles 960", "vae_decode"]


def test_another_error_passes_unchanged(host, rescued):
    host.fails["vae_encode"] = [ValueError("not memory")]
    with pytest.raises(ValueError, match="not memory"):
        host.run(Img2Img)
    assert (encodes(host), rescued) == (["vae_encode"], [])


def test_an_encoder_of_another_shape_is_freed_for_and_encoded_whole_again(host, rescued):
    host.tileable, host.fails["vae_encode"] = False, [out()]
    host.run(Img2Img)
    assert encodes(host) == ["vae_encode", "vae_encode"]
    assert rescued == [("vae_encode", "")]


def test_it_is_left_to_the_host_where_the_user_wants_no_rescue(host, rescued):
    host.options[rescue.RESCUE_KEY] = False
    host.fails["vae_encode"] = [out()]
    with pytest.raises(webui.OutOfMemoryError):
        host.run(Img2Img)
    assert encodes(host) == ["vae_encode"]


def test_the_encoder_and_the_hosts_functions_are_as_they_were(host):
    before = host.encoder.forward
    host.fails["vae_encode"] = [out()]
    host.run(Img2Img)
    assert host.encoder.forward is before
    wrapped = sys.modules["modules.processing"].images_tensor_to_samples
    host.rescuer.stop()
    assert sys.modules["modules.processing"].images_tensor_to_samples is wrapped.__wrapped__


def test_without_torch_there_is_no_generator_to_put_back(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert rescue_encode.Randomness.now() == rescue_encode.Randomness()


def test_a_generator_that_cannot_be_read_or_put_back_keeps_no_picture_from_being_encoded(host, rescued, monkeypatch):
    def refuses(*given):
        raise RuntimeError("no generator")

    torch = sys.modules["torch"]
    host.fails["vae_encode"] = [out()]
    monkeypatch.setattr(torch, "set_rng_state", refuses)
    host.run(Img2Img)
    monkeypatch.setattr(torch, "get_rng_state", refuses)
    host.run(Img2Img)
    assert rescued == [("vae_encode", "VAE tiled 960")] and encodes(host) == ["vae_encode", "tiles 960", "vae_encode"]
