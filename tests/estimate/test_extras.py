"""What runs beside the model: where in the timeline, at which size, and what else is on the device then."""

from __future__ import annotations

import pytest

from lib_vram.estimate.controls import control_bytes
from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.estimate.simulate import simulate
from lib_vram.estimate.timeline import timeline
from lib_vram.physics.addons import Addon, addon_weights_bytes
from lib_vram.physics.memory import component_memory
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request

HOSTS = ("a1111", "forge", "neo", "reforge", "classic")


def addons(request):
    """The add-ons of ``request``: phase, kind, width, height, tile."""
    works = [work for work in timeline(request) if isinstance(work.component, Addon)]
    return [
        (work.phase, work.component.kind, work.component.width, work.component.height, work.component.tile)
        for work in works
    ]


def parts(request, phase):
    """What is on the device in ``phase``."""
    return next(dict(item.resident_parts) for item in estimate(request).phases if item.name == phase)


def test_an_upscaler_works_between_decode_and_encode_tile_by_tile():
    request = a_request(hires={"upscaler": "4x-UltraSharp"})
    phase = [work.component for work in timeline(request) if work.phase == "hires_upscale"]
    assert [getattr(item, "kind", None) or item.part for item in phase] == ["vae_decode", "esrgan", "vae_encode"]
    assert addons(request) == [("hires_upscale", "esrgan", 512, 512, 192)]
    assert addons(a_request(host="neo", hires={"upscaler": "4x-UltraSharp"}))[0][-1] == 256
    assert addons(a_request(hires={"upscaler": "4x-UltraSharp"}, upscaler_tile=0))[0][-1] == 0


@pytest.mark.parametrize("upscaler", ["Latent", "Lanczos", "None", "LDSR"])
def test_no_network_no_work(upscaler):
    assert addons(a_request(hires={"upscaler": upscaler})) == []


def test_an_upscaler_that_must_run_twice_sees_its_own_result():
    assert addons(a_request(hires={"upscaler": "R-ESRGAN 2x+", "scale": 3.0}))[0][2:4] == (1024, 1024)


def test_faces_are_found_restored_and_parsed_after_the_decode():
    request = a_request(restore_faces="gfpgan", width=768)
    assert addons(request) == [("face_restore", kind, 768, 512, 0) for kind in ("retinaface", "gfpgan", "parsenet")]
    assert [item.name for item in estimate(request).phases][-2:] == ["vae_decode", "face_restore"]


def test_what_restores_faces_stays_for_the_next_batch():
    once, twice = a_request(restore_faces="codeformer"), a_request(restore_faces="codeformer", batch_count=2)
    assert "face_restore" not in parts(once, "sampling")
    left = a_request(restore_faces="codeformer", idle_models=[{"kind": "face_restore", "bytes": 1}])
    assert parts(twice, "sampling")["face_restore"] == parts(left, "sampling")["face_restore"] == 546 * MIB


def test_neo_keeps_an_upscaler_it_has_loaded():
    changes = {"hires": {"upscaler": "4x-UltraSharp"}}
    assert "upscaler" not in parts(a_request(host="forge", **changes), "vae_decode")
    assert parts(a_request(host="neo", **changes), "vae_decode")["upscaler"] == 64 * MIB
    assert "upscaler" not in parts(a_request(host="neo", **changes), "sampling")
    assert parts(a_request(host="neo", batch_count=2, **changes), "sampling")["upscaler"] == 64 * MIB


def test_under_medvram_nothing_of_the_model_is_there_while_faces_are_restored():
    request = a_request(restore_faces="gfpgan", hires={"upscaler": "R-ESRGAN 4x+"}, host_args=["--medvram"])
    assert sorted(parts(request, "face_restore")) == ["context", "face_restore"]
    upscaling = next(work for work in timeline(request) if isinstance(work.component, Addon))
    assert dict(upscaling.held)["upscaler"] == addon_weights_bytes(Addon("esrgan", 1, 1, "fp16"))


def test_a_detailer_detects_on_the_card_unless_told_to_save_memory():
    assert addons(a_request(detailer={}))[0][:2] == ("detailer", "yolo_n")
    assert addons(a_request(detailer={}, host_args=["--medvram"])) == []
    assert addons(a_request(detailer={"model": "mediapipe_face_full"})) == []


def test_preprocessors_come_first_and_see_their_own_resolution():
    request = a_request(width=1024, height=512, controlnets=[{"preprocessor": "softedge_hed", "processor_res": 768}])
    assert addons(request) == [("controlnet_preprocess", "hed", 1536, 768, 0)]
    assert timeline(request)[0].phase == "controlnet_preprocess"


def test_an_ip_adapter_has_an_image_encoder_which_forge_moves_like_a_model():
    request = a_request(controlnets=[{"kind": "ip_adapter"}])
    assert addons(request) == [("controlnet_preprocess", "clip_vision_h", 512, 512, 0)]
    assert parts(request, "sampling")["adapter"] <= 2 * MIB  # A1111's extension leaves its weights on the CPU
    forge = a_request(host="forge", controlnets=[{"kind": "ip_adapter"}])
    assert parts(forge, "sampling")["image_encoder"] == 1206 * MIB
    small = a_request(host="forge", controlnets=[{"kind": "ip_adapter"}], device={"total_bytes": 4 * GIB})
    assert "image_encoder" not in parts(small, "sampling")


def test_a_t2i_adapter_hands_features_to_the_unet_and_forge_sends_it_away():
    own = {"kind": "t2i_adapter"}
    weights = addon_weights_bytes(Addon("t2i_adapter_sd15", 512, 512, "fp16"))
    features = 2 * 2 * (320 * 64 * 64 + 640 * 32 * 32 + 1280 * 16 * 16 + 1280 * 8 * 8)
    held = {host: dict(timeline(a_request(host=host, controlnets=[own]))[1].held)["adapter"] for host in HOSTS}
    assert held["a1111"] == weights + features
    assert {held[host] for host in HOSTS[1:]} == {features}


def test_a_control_lora_works_like_a_controlnet_that_shares_the_unets_weights():
    unit = {"kind": "control_lora", "family": "sdxl", "bytes": 396_000_000}
    request = a_request(model={"family": "sdxl"}, controlnets=[unit], device={"total_bytes": 24 * GIB})
    work = next(work for work in timeline(request) if work.worker == "controlnet")
    assert work.part.variant == "lora"
    assert parts(request, "sampling")["controlnet"] == 378 * MIB
    unknown = a_request(
        model={"family": "sdxl"}, controlnets=[unit | {"bytes": None}], device={"total_bytes": 24 * GIB}
    )
    assert parts(unknown, "sampling")["controlnet"] == pytest.approx(774_297_152, abs=2 * MIB)


ADAPTED_PEAKS = (
    ("ip_adapter", "sd15", 1, 512, 512, 131_578_880, 44_639_232),
    ("ip_adapter", "sd15", 1, 1280, 768, 492_207_104, 44_639_232),
    ("ip_adapter", "sd15", 4, 768, 1024, 1_575_411_200, 44_639_232),
    ("ip_adapter", "sdxl", 1, 1024, 1024, 321_121_280, 698_376_192),
    ("ip_adapter", "sdxl", 4, 768, 1024, 964_404_736, 698_376_192),
    ("controllllite", "sdxl", 1, 1024, 1024, 343_271_424, 45_939_200),
    ("controllllite", "sdxl", 1, 1280, 768, 321_857_536, 45_939_200),
    ("controllllite", "sdxl", 4, 768, 1024, 1_003_329_024, 45_939_200),
)
"""Kind, family, pictures, width, height; the peak in bytes and the weights of Forge's own UNet with Forge's own adapter
in it, traced with cond and uncond together and torch's attention."""


@pytest.mark.parametrize(("kind", "family", "batch", "width", "height", "peak_bytes", "adapter_bytes"), ADAPTED_PEAKS)
def test_a_unet_with_an_adapter_peaks_where_forges_own_does(
    kind, family, batch, width, height, peak_bytes, adapter_bytes
):
    request = a_request(host="forge", model={"family": family}, width=width, height=height, batch_size=batch,
                        controlnets=[{"kind": kind, "family": family, "bytes": adapter_bytes}])  # fmt: skip
    work = next(work for work in timeline(request) if work.worker == "unet")
    computed = component_memory(work.part).floor_bytes + dict(work.held)["adapter"] - adapter_bytes
    assert computed == pytest.approx(peak_bytes, rel=0.0005)


@pytest.mark.parametrize(
    ("kind", "family", "published_bytes"),
    [("ip_adapter", "sd15", 44_639_232), ("ip_adapter", "sdxl", 698_376_192), ("controllllite", "sdxl", 45_939_200)],
)
def test_an_adapter_without_a_file_weighs_what_the_plain_published_one_does(kind, family, published_bytes):
    request = a_request(host="forge", model={"family": family}, controlnets=[{"kind": kind, "family": family}])
    assert control_bytes(request.controlnets[0], "fp16") == pytest.approx(published_bytes, rel=0.002)


def test_an_ip_adapter_stays_on_the_card_from_its_first_use_in_forge_and_never_comes_to_it_in_a1111():
    unit = {"kind": "ip_adapter", "family": "sdxl"}
    works = timeline(a_request(host="forge", model={"family": "sdxl"}, controlnets=[unit]))
    assert ["adapter" in dict(work.held) for work in works] == [False, False, True, True]
    again = timeline(a_request(host="forge", model={"family": "sdxl"}, controlnets=[unit], batch_count=2))
    assert all("adapter" in dict(work.held) for work in again)
    a1111 = timeline(a_request(model={"family": "sdxl"}, controlnets=[unit]))
    assert [dict(work.held).get("adapter", 0) // MIB for work in a1111] == [0, 0, 10, 0]


def test_an_image_encoder_is_in_fp32_in_a1111s_extension():
    unit = {"kind": "ip_adapter", "family": "sd15"}
    made = {host: timeline(a_request(host=host, controlnets=[unit]))[0].component.dtype for host in HOSTS}
    assert made["a1111"] == "fp32"
    assert {made[host] for host in HOSTS[1:]} == {"fp16"}


def test_idle_models_stay_in_a1111_and_make_room_in_forge():
    idle = [{"kind": "checkpoint", "bytes": 2 * GIB}]
    small = {"total_bytes": 5 * GIB}
    assert parts(a_request(idle_models=idle, device=small), "sampling")["idle_models"] == 2 * GIB
    assert "idle" not in parts(a_request(host="forge", idle_models=idle, device=small), "sampling")
    assert parts(a_request(host="forge", idle_models=idle, device={"total_bytes": 12 * GIB}), "sampling")["idle"]


def test_a_detailers_crops_bring_no_controlnets_in_forge():
    request = a_request(host="forge", controlnets=[{"family": "sd15"}], detailer={})
    assert [work.worker for work in timeline(request) if work.phase == "detailer"].count("controlnet") == 0


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("total", [3, 4, 6, 12])
def test_the_verdict_is_what_the_virtual_card_does(host, total):
    request = a_request(
        host=host, device={"total_bytes": total * GIB}, hires={"upscaler": "DAT x4"}, restore_faces="codeformer",
        detailer={}, batch_count=2, idle_models=[{"kind": "checkpoint", "bytes": GIB}],
        controlnets=[{"kind": "t2i_adapter", "preprocessor": "openpose_full"}, {"kind": "ip_adapter"}],
    )  # fmt: skip
    fits = estimate(request).verdict != "wont_fit"
    assert (simulate(request).outcome == "completed") == fits


def test_a_larger_picture_is_never_ruled_in_by_what_its_faces_or_preprocessors_see():
    def possible(width, height):
        return could_fit(a_request(
            width=width, height=height, restore_faces="codeformer", device={"total_bytes": 5 * GIB},
            controlnets=[{"preprocessor": "normal_bae"}],
        ))  # fmt: skip

    sides = (64, 256, 640, 1024, 1536)
    for width in sides:
        answers = [possible(width, height) for height in sides]
        assert answers == sorted(answers, reverse=True)


@pytest.mark.parametrize(
    ("host", "weights", "online", "lora_bytes"),
    [
        ("forge", "q8_0", True, 3 * 2 * 66_060_288),
        ("forge", "q8_0", False, 0),
        ("forge", "bf16", True, 0),
        ("neo", "q8_0", True, 2 * 1024 * 15360),
        ("neo", "bf16", True, 2 * 1024 * 15360),
    ],
)
def test_loras_on_the_fly_take_their_room_while_the_picture_is_made(host, weights, online, lora_bytes):
    request = a_request(host=host, model={"family": "flux1", "weights_dtype": weights}, loras=[{"bytes": 1000}],
                        forge={"online_lora": online})  # fmt: skip
    held = {work.phase: dict(work.held).get("lora", 0) for work in timeline(request)}
    assert held == {"text_encode": 0, "sampling": lora_bytes, "vae_decode": 0}
    keys = [note.key for note in estimate(request).notes]
    assert ("estimate.loras_on_the_fly" in keys) == (lora_bytes > 0)
    assert ("estimate.loras_merged" in keys) == (lora_bytes == 0)


def test_without_loras_nothing_is_put_in():
    request = a_request(host="forge", model={"family": "flux1", "weights_dtype": "q8_0"}, forge={"online_lora": True})
    assert all("lora" not in dict(work.held) for work in timeline(request))
