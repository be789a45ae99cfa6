"""The pieces of work of a generation, in order, with their sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.estimate.timeline import control_outputs_bytes, latent_floor, timeline, upscaled_size
from lib_vram.units import KIB, MIB
from tests.estimate.stand_in import a_request


def told(request):
    """Return the works as ``phase worker width×height batch``."""
    return [
        f"{work.phase} {work.worker} {work.component.width}×{work.component.height} "
        f"{work.component.batch}{'+' if work.component.cfg else ''}"
        for work in timeline(request)
    ]


def test_txt2img_encodes_text_samples_and_decodes_one_picture_at_a_time():
    assert told(a_request(width=512, height=768, batch_size=4)) == [
        "text_encode text_encoders 512×512 1",
        "sampling unet 512×768 4+",
        "vae_decode vae 512×768 1",
    ]


def test_forge_may_decode_all_pictures_at_once():
    assert told(a_request(host="forge", batch_size=4))[-1] == "vae_decode vae 512×512 4"


def test_img2img_encodes_the_picture_first_and_has_no_second_pass():
    assert told(a_request(mode="img2img", hires={}))[:2] == [
        "vae_encode vae 512×512 1",
        "text_encode text_encoders 512×512 1",
    ]
    assert len(timeline(a_request(mode="img2img", hires={}))) == 4


@pytest.mark.parametrize(
    ("host", "variant", "mode", "encodes"),
    [
        ("a1111", "", "img2img", ["512×768 1"]),
        ("a1111", "inpaint", "img2img", ["512×768 1", "512×768 3"]),
        ("a1111", "pix2pix", "img2img", ["512×768 1", "512×768 3"]),
        ("forge", "inpaint", "img2img", ["512×768 1"]),
        ("forge", "inpaint", "txt2img", ["512×768 1"]),
        ("a1111", "pix2pix", "txt2img", []),
    ],
)
def test_models_for_editing_encode_what_they_look_at(host, variant, mode, encodes):
    request = a_request(host=host, mode=mode, width=512, height=768, batch_size=3,
                        model={"family": "sd15", "variant": variant})  # fmt: skip
    assert [line.removeprefix("vae_encode vae ") for line in told(request) if line.startswith("vae_enc")] == encodes


def test_a_transformer_for_inpainting_is_shown_no_grey_picture():
    request = a_request(host="forge", model={"family": "flux1", "variant": "inpaint"})
    assert not any(work.phase == "vae_encode" for work in timeline(request))


def test_an_inpainting_model_encodes_again_for_the_second_pass():
    works = told(a_request(model={"family": "sd15", "variant": "inpaint"}, hires={"scale": 1.5}))
    assert works.index("hires_upscale vae 768×768 1") == works.index("hires_sampling unet 768×768 1+") - 1


@pytest.mark.parametrize(
    ("host", "together", "expected"),
    [("a1111", True, "sampling unet 512×512 6"), ("a1111", False, "sampling unet 512×512 2"),
     ("forge", True, "sampling unet 512×512 2+")],
)  # fmt: skip
def test_instruct_pix2pix_computes_three_rows_for_each_picture_on_a1111(host, together, expected):
    request = a_request(host=host, mode="img2img", batch_size=2, batch_cond_uncond=together,
                        model={"family": "sd15", "variant": "pix2pix"})  # fmt: skip
    assert expected in told(request)


def test_a_picture_whose_latent_is_resized_is_encoded_at_its_own_size():
    request = a_request(mode="img2img", start_picture={"width": 1027, "height": 640})
    assert told(request)[0] == "vae_encode vae 1024×640 1"


def test_a_latent_upscaler_needs_no_decode_in_between():
    assert told(a_request(hires={"scale": 1.5}))[1:] == [
        "sampling unet 512×512 1+",
        "hires_sampling unet 768×768 1+",
        "vae_decode vae 768×768 1",
    ]


def test_an_image_upscaler_decodes_and_encodes_in_between():
    assert told(a_request(hires={"scale": 1.5, "upscaler": "Lanczos"}))[1:] == [
        "sampling unet 512×512 1+",
        "hires_upscale vae 512×512 1",
        "hires_upscale vae 768×768 1",
        "hires_sampling unet 768×768 1+",
        "vae_decode vae 768×768 1",
    ]


@pytest.mark.parametrize(
    ("hires", "size"),
    [
        ({"scale": 2.0}, (1024, 1536)),
        ({"width": 1024, "height": 1024}, (1024, 1536)),
        ({"width": 2048, "height": 1536}, (2048, 3072)),
        ({"width": 512, "height": 1536}, (1024, 1536)),
        ({"width": 768}, (768, 1152)),
    ],
)
def test_the_first_pass_is_enlarged_until_it_covers_the_second(hires, size):
    assert upscaled_size(a_request(width=512, height=768, hires=hires)) == size


def test_controlnets_take_their_turns_before_the_unet_which_holds_their_outputs():
    works = timeline(a_request(controlnets=[{"family": "sd15"}, {"family": "sd15"}]))
    assert [work.worker for work in works] == ["text_encoders", "controlnet", "controlnet", "unet", "vae"]
    assert [dict(work.held).get("control_outputs", 0) for work in works[1:4]] == [0, 26_869_760, 26_869_760]


def test_control_outputs_are_the_residuals_of_every_level():
    unet = timeline(a_request(width=512, height=512))[1].component
    cells = 3 * 320 * 64**2 + (320 + 640 + 640) * 32**2 + (640 + 1280 + 1280) * 16**2 + 4 * 1280 * 8**2
    assert control_outputs_bytes(unet) == 2 * 2 * cells


def test_latents_and_hints_are_held_while_sampling():
    work = timeline(a_request(width=1024, height=1024, controlnets=[{"family": "sd15"}]))[1]
    assert dict(work.held) == {"latents": 12 * 256 * KIB, "images": 2 * 3 * 1024 * 1024 * 2}


def test_encoding_holds_the_whole_batch_twice():
    work = timeline(a_request(mode="img2img", batch_size=4))[0]
    assert dict(work.held) == {"images": 2 * 4 * 3 * 512 * 512 * 2}
    forge = timeline(a_request(host="forge", mode="img2img", batch_size=4))[0]
    assert dict(forge.held) == {"images": 2 * 4 * 3 * 512 * 512 * 4}


@pytest.mark.parametrize(
    ("host", "vae", "forge", "tile"),
    [
        ("a1111", {"tiled": True}, {}, 768),
        ("a1111", {"tiled": True, "tile_size": 512}, {}, 512),
        ("a1111", {"tiled": False, "tile_size": 512}, {}, None),
        ("a1111", {"tiled": True, "tile_size": 1024}, {}, None),
        ("forge", {}, {"never_oom_vae": True}, 512),
        ("forge", {}, {}, None),
    ],
)
def test_tiles_are_the_host_s_and_a_picture_no_larger_than_a_tile_is_not_cut(host, vae, forge, tile):
    request = a_request(host=host, vae=vae, forge=forge, width=1024, height=1024)
    assert timeline(request)[-1].component.tile == tile


@pytest.mark.parametrize("host", ["a1111", "reforge"])
@pytest.mark.parametrize("place", [0, -1])
def test_our_tiles_go_in_step_through_encoder_and_decoder_with_attention_of_their_own(host, place):
    tiles = {"tiled": True, "tile_size": 512}
    request = a_request(host=host, mode="img2img", width=1024, height=1024, attention="split", vae=tiles)
    component = timeline(request)[place].component
    assert (component.tile, component.in_step, component.attention) == (512, True, "sdpa")


def test_forge_s_tiles_are_for_both_as_well_and_go_one_by_one():
    request = a_request(host="forge", mode="img2img", width=1024, height=1024, forge={"never_oom_vae": True})
    parts = [timeline(request)[place].component for place in (0, -1)]
    assert [(part.tile, part.in_step) for part in parts] == [(512, False)] * 2


def test_a_picture_made_larger_by_an_upscaler_is_encoded_in_tiles():
    request = a_request(hires={"scale": 2.0, "upscaler": "Lanczos"}, vae={"tiled": True, "tile_size": 768})
    encode = [work.component for work in timeline(request) if work.phase == "hires_upscale"][-1]
    assert (encode.part, encode.width, encode.tile, encode.in_step) == ("vae_encode", 1024, 768, True)


def test_our_tiles_leave_a_vae_of_another_shape_whole():
    request = a_request(host="reforge", model={"family": "wan21_1b"}, width=1024, height=1024, vae={"tiled": True})
    assert timeline(request)[-1].component.tile is None


@pytest.mark.parametrize("host", ["a1111", "forge"])
def test_the_host_s_own_form_of_the_code_runs(host):
    works = timeline(a_request(host=host, attention="split", controlnets=[{"family": "sd15"}]))[1:]
    assert {(work.component.host, work.component.attention) for work in works} == {(host, "split")}


@pytest.mark.parametrize(
    ("host", "flags", "beside"),
    [("a1111", [], "vae_decode"), ("a1111", ["--medvram"], None), ("forge", [], None)],
)
def test_only_a1111_without_medvram_decodes_full_previews_beside_the_unet(host, flags, beside):
    work = timeline(a_request(host=host, host_args=flags, live_preview="full"))[1]
    assert (work.beside and work.beside.part) == beside


def test_taesd_previews_are_held_where_they_run_beside():
    assert dict(timeline(a_request(live_preview="taesd"))[1].held)["live_preview"] == 384 * 512 * 512
    assert "live_preview" not in dict(timeline(a_request(live_preview="taesd", host_args=["--lowvram"]))[1].held)
    assert "live_preview" not in dict(timeline(a_request(live_preview="approx"))[1].held)


def test_a_detailer_repaints_one_crop_at_a_time():
    works = timeline(a_request(batch_size=4, detailer={"width": 768, "height": 768}))
    assert (works[3].phase, works[3].component.kind) == ("detailer", "yolo_n")
    detailer = [f"{work.component.part} {work.component.width} {work.component.batch}" for work in works[4:]]
    assert detailer == ["vae_encode 768 1", "text_encode 512 1", "denoise 768 1", "vae_decode 768 1"]


def test_cond_and_uncond_apart_halve_what_the_unet_sees():
    assert told(a_request(batch_size=2, batch_cond_uncond=False))[1] == "sampling unet 512×512 2"
    assert told(a_request(host="forge", batch_size=2, cfg_scale=1.0))[1] == "sampling unet 512×512 2"


@given(st.integers(64, 16384))
def test_a_size_is_cut_to_whole_rows_of_the_latent(pixels):
    assert pixels - 8 < latent_floor(pixels) <= pixels
    assert latent_floor(pixels) % 8 == 0


def test_the_largest_control_outputs_are_no_surprise():
    unet = timeline(a_request(model={"family": "sdxl"}, width=1024, height=1024))[1].component
    assert control_outputs_bytes(unet) // MIB == 102
