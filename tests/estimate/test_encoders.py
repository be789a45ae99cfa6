"""Text encoders and VAEs kept apart from the model: in files of their own, in other types, on the CPU."""

from __future__ import annotations

import pytest

from lib_vram.errors import VramGuardError
from lib_vram.estimate.encoders import ENCODERS, encoding_family, on_card
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import ARCHITECTURES, weights_of
from lib_vram.model.inspect import Checkpoint, ComponentWeights
from lib_vram.physics.families import SHAPES
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request

T5 = 4_762_310_656
CLIP_L = 123_060_480


def flux(**changes):
    """A Flux request on Forge."""
    model = {"family": "flux1", "weights_dtype": "fp8"} | changes.pop("model", {})
    return a_request(**{"host": "forge", "device": {"total_bytes": 24 * GIB}, "model": model, **changes})


def a_file(*components):
    """What reads every file as one with ``components``."""
    return lambda path: Checkpoint(None, tuple(components), ())


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_a_familys_text_encoders_are_the_sum_of_its_own(family):
    total = sum(ENCODERS[item.name].all for item in SHAPES[family].encoders)
    logit_scale = 1  # which OpenCLIP's own form has and the others' lacks
    assert 0 <= total - ARCHITECTURES[family].text_encoders <= logit_scale


def test_t5_in_fp8_halves_and_unpacks_one_layer_at_a_time():
    request = flux(text_encoders=[{"name": "t5_xxl", "dtype": "fp8"}])
    assert weights_of(request).text_encoders_bytes == T5 + 2 * CLIP_L
    work = next(work for work in timeline(request) if work.worker == "text_encoders")
    assert dict(work.held)["unpacked_weights"] == 2 * 4096 * 10_240


def test_what_is_on_the_cpu_takes_nothing_of_the_card():
    request = flux(text_encoders=[{"name": "t5_xxl", "device": "cpu"}])
    assert on_card(request) == ("clip_l",)
    assert weights_of(request).text_encoders_bytes == 2 * CLIP_L
    work = next(work for work in timeline(request) if work.worker == "text_encoders")
    assert work.component.family == encoding_family(request) == "sd15"
    assert any(note.key == "estimate.encoders_on_cpu" for note in estimate(request).notes)


def test_without_any_on_the_card_no_text_is_encoded_there():
    request = flux(text_encoders=[{"name": name, "device": "cpu"} for name in ("t5_xxl", "clip_l")])
    assert all(work.worker != "text_encoders" for work in timeline(request))
    assert weights_of(request).text_encoders_bytes == 0


def test_an_encoders_own_file_decides_what_it_weighs():
    file = a_file(ComponentWeights("text_encoder", "q8_0", T5, 1000, loaded_bytes=900))
    request = flux(text_encoders=[{"name": "t5_xxl", "checkpoint": "t5-q8.gguf"}])
    assert weights_of(request, file).text_encoders_bytes == 900 + 2 * CLIP_L
    in_half = flux(text_encoders=[{"name": "t5_xxl", "checkpoint": "t5-fp32.safetensors"}])
    file = a_file(ComponentWeights("text_encoder", "fp32", T5, 4 * T5))
    assert weights_of(in_half, file).text_encoders_bytes == 2 * T5 + 2 * CLIP_L


def test_an_encoders_file_that_cannot_be_read_is_said():
    def broken(path):
        raise VramGuardError("no such file")

    sizes = weights_of(flux(text_encoders=[{"name": "t5_xxl", "checkpoint": "t5.safetensors"}]), broken)
    assert sizes.text_encoders_bytes == 2 * (T5 + CLIP_L)
    assert "estimate.encoder_unusable" in [note.key for note in sizes.notes]


def test_a_vaes_own_file_decides_what_it_weighs():
    file = a_file(ComponentWeights("vae", "fp32", 1000, 4000))
    assert weights_of(a_request(vae={"checkpoint": "vae.safetensors"}), file).vae_bytes == 2000
    sizes = weights_of(a_request(vae={"checkpoint": "vae.safetensors"}), a_file())
    assert sizes.vae_bytes // MIB == 159
    assert "estimate.vae_unusable" in [note.key for note in sizes.notes]


def test_fp8_storage_halves_the_denoiser_and_in_a1111_the_text_encoders_layers():
    plain, stored = (a_request(model={"family": "sd15", "storage_dtype": dtype}) for dtype in (None, "fp8"))
    assert 2 * weights_of(stored).unet_bytes == weights_of(plain).unet_bytes
    assert weights_of(stored).text_encoders_bytes == CLIP_L + 49_408 * 768
    assert weights_of(stored.replace(host="forge")).text_encoders_bytes == 2 * CLIP_L


def test_under_no_half_the_layers_are_fp8_and_the_table_of_tokens_fp32():
    model = {"family": "sd15", "storage_dtype": "fp8"}
    weights = weights_of(a_request(model=model, host_args=["--no-half"]))
    tokens = ENCODERS["clip_l"].tokens
    assert weights.text_encoders_bytes == ENCODERS["clip_l"].all - tokens + 4 * tokens
    assert weights.unet_bytes == 859_520_964


def test_storage_in_another_type_takes_the_layer_at_hand_in_the_computed_one():
    for dtype, layer in (("fp8", 29_491_200), ("nf4", 13_107_200)):
        request = a_request(host="forge", model={"family": "sdxl", "storage_dtype": dtype})
        work = next(work for work in timeline(request) if work.worker == "unet")
        assert dict(work.held)["unpacked_weights"] == 2 * layer


def test_nf4_quantises_no_convolution():
    request = a_request(host="forge", model={"family": "sdxl", "storage_dtype": "nf4"})
    linear = 2_232_647_680
    assert weights_of(request).unet_bytes == int(linear * 4.5 / 8) + 2 * (2_567_463_684 - linear)


def test_what_is_quantised_already_is_not_stored_in_another_type():
    request = flux(model={"weights_dtype": "q4_k", "storage_dtype": "fp8"})
    assert weights_of(request).unet_bytes == weights_of(flux(model={"weights_dtype": "q4_k"})).unet_bytes
