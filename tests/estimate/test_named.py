"""The hosts' names of upscalers, detectors and preprocessors."""

from __future__ import annotations

import pytest

from lib_vram.estimate.named import detector_network, preprocessor_networks, runs_a_network, upscaler_network


@pytest.mark.parametrize("name", ["Latent", "Latent (bicubic antialiased)", "None", "Lanczos", "Nearest", ""])
def test_plain_resizing_runs_no_network(name):
    assert not runs_a_network(name)
    assert upscaler_network(name, "a1111") is None


@pytest.mark.parametrize(
    ("name", "kind", "by_rule"),
    [("ESRGAN_4x", "esrgan", False), ("R-ESRGAN 4x+", "esrgan", False), ("4x-UltraSharp", "esrgan", False),
     ("4x_NMKD-Siax_200k", "esrgan", False), ("R-ESRGAN General 4xV3", "compact", False),
     ("R-ESRGAN AnimeVideo", "compact", False), ("SwinIR 4x", "swinir", False), ("SwinIR_4x", "swinir", False),
     ("DAT x2", "dat", False), ("4xNomosUni_dat_otf", "esrgan", False), ("HAT_SRx4", "hat", False),
     ("ScuNET PSNR", "scunet", False), ("4xRealWebPhoto_ATD", "esrgan", True), ("something new", "esrgan", True)],
)  # fmt: skip
def test_an_upscalers_name_tells_its_network(name, kind, by_rule):
    network = upscaler_network(name, "a1111")
    assert (network.kind, network.by_rule) == (kind, by_rule)


def test_ldsr_is_known_to_compute_and_not_what_it_needs():
    assert runs_a_network("LDSR")
    assert upscaler_network("LDSR", "a1111") is None


def test_only_r_esrgan_is_loaded_in_half_precision_and_by_neo_nothing_is():
    assert [upscaler_network(name, "forge").half for name in ("R-ESRGAN 4x+", "4x-UltraSharp", "DAT x4")] == [
        True, False, False,
    ]  # fmt: skip
    assert not upscaler_network("R-ESRGAN 4x+", "neo").half


def test_the_smaller_forms_of_r_esrgan_have_their_own_weights():
    assert upscaler_network("R-ESRGAN 4x+ Anime6B", "a1111").parameters == 4_467_779
    assert (upscaler_network("R-ESRGAN 2x+", "a1111").shuffle, upscaler_network("R-ESRGAN 2x+", "a1111").scale) == (
        2,
        2,
    )


@pytest.mark.parametrize(
    ("model", "kind"),
    [("face_yolov8n.pt", "yolo_n"), ("face_yolov8n_v2.pt", "yolo_n"), ("hand_yolov8s.pt", "yolo_s"),
     ("person_yolov8m-seg.pt", "yolo_m"), ("face_yolov9c.pt", "yolo_m"), ("yolov8x-worldv2.pt", "yolo_x"),
     ("eyes_yolo11s.pt", "yolo_s"), ("other.pt", "yolo_m")],
)  # fmt: skip
def test_a_detectors_file_tells_its_size(model, kind):
    assert detector_network(model).kind == kind


def test_mediapipe_detects_on_the_cpu():
    assert detector_network("mediapipe_face_full") is None


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("none", []), ("None", []), ("canny", []), ("invert (from white bg & black line)", []), ("tile_resample", []),
     ("reference_only", []), ("inpaint_only", []), ("inpaint_global_harmonious", []), ("dw_openpose_full", []),
     ("lineart_standard (from white bg & black line)", []), ("mediapipe_face", []), ("shuffle", []),
     ("openpose", ["openpose_body"]), ("openpose_hand", ["openpose_body", "openpose_hand"]),
     ("openpose_full", ["openpose_body", "openpose_hand", "openpose_face"]), ("openpose_faceonly", ["openpose_body",
      "openpose_face"]), ("softedge_hed", ["hed"]),
     ("softedge_pidinet", ["pidinet"]), ("scribble_pidinet", ["pidinet"]),
     ("softedge_teed", ["teed"]), ("lineart_realistic", ["lineart"]), ("lineart_coarse", ["lineart"]),
     ("lineart_anime", ["lineart_anime"]), ("mlsd", ["mlsd"]), ("normal_bae", ["normal_bae"]),
     ("depth_leres++", ["leres"]), ("depth_anything_v2", ["depth_anything"]),
     ("depth_midas", ["midas"]), ("normal_midas", ["midas"]), ("seg_ufade20k", ["uniformer"]),
     ("lineart_anime_denoise", ["manga_line"]), ("mobile_sam", ["mobile_sam"]), ("normal_dsine", ["normal_bae"]),
     ("ip-adapter_clip_sd15", ["clip_vision_h"]), ("ip-adapter_clip_sdxl", ["clip_vision_g"]),
     ("ip-adapter_clip_sdxl_plus_vith", ["clip_vision_h"]), ("CLIP-ViT-H (IPAdapter)", ["clip_vision_h"]),
     ("CLIP-ViT-bigG (IPAdapter)", ["clip_vision_g"]), ("InsightFace+CLIP-H (IPAdapter)", ["clip_vision_h"]),
     ("t2ia_style_clipvision", ["clip_vision_l"])],
)  # fmt: skip
def test_a_preprocessors_name_tells_its_networks(name, kinds):
    assert [network.kind for network in preprocessor_networks(name)] == kinds


@pytest.mark.parametrize("name", ["depth_zoe", "seg_ofade20k", "normal_dsine", "something_new"])
def test_a_preprocessor_without_figures_is_stood_in_for(name):
    assert all(network.by_rule for network in preprocessor_networks(name))
