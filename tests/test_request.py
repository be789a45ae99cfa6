import copy
import json
from typing import Any

import pytest

from lib_vram.errors import BadInput
from lib_vram.request import Request

SMALLEST: dict[str, Any] = {
    "model": {"family": "sdxl"},
    "width": 1024,
    "height": 1024,
    "device": {"total_bytes": 12884901888},
}
WHOLE: dict[str, Any] = {
    "host": "a1111", "host_args": ["--medvram-sdxl"], "alloc_conf": "",
    "device": {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 12884901888, "used_by_others_bytes": 1073741824},
    "system": {"ram_total_bytes": 34359738368, "ram_free_bytes": 20000000000, "platform": "linux"},
    "model": {"family": "sdxl", "checkpoint": None, "weights_dtype": "fp16", "storage_dtype": None, "variant": "",
              "text_encoders_bytes": 1000, "text_layer_bytes": 100},
    "vae": {"dtype": "fp16", "tiled": False, "tile_size": None, "checkpoint": None},
    "attention": "sdpa", "more_attention": [], "batch_cond_uncond": True, "live_preview": "approx",
    "mode": "txt2img", "width": 1024, "height": 1024, "batch_size": 1, "batch_count": 1, "cfg_scale": 7.0, "frames": 1,
    "hires": {"scale": 2.0, "width": 0, "height": 0, "upscaler": "Latent"},
    "controlnets": [{"kind": "controlnet", "family": "sdxl", "low_vram": False, "preprocessor": "openpose_full",
                     "processor_res": 512, "bytes": None}],
    "refiner": {"family": "sdxl_refiner", "switch_at": 0.8, "checkpoint": None, "refined_pass": "second"},
    "hires_model": {"family": "sd15", "checkpoint": None, "weights_dtype": "fp16", "storage_dtype": None,
                    "variant": "inpaint", "text_encoders_bytes": None, "text_layer_bytes": None},
    "start_picture": {"width": 768, "height": 512},
    "loras": [{"bytes": 228000000}], "detailer": {"width": 1024, "height": 1024, "model": "face_yolov8n.pt"},
    "restore_faces": "codeformer", "upscaler_tile": 192,
    "token_merging_ratio": 0.5,
    "hypertile": {"unet": True, "vae": False, "unet_tile_size": 256, "vae_tile_size": 128, "swap_size": 3, "depth": 3},
    "tiled_diffusion": {"tile_width": 768, "tile_height": 1024, "overlap": 64, "batch": 4, "first_pass_only": True,
                        "sets_size": True},
    "hr_fix": {"block": 3, "factor": 2.0, "start": 0.0, "end": 0.35}, "guidance": ["sag", "freeu"],
    "text_encoders": [{"name": "clip_g", "dtype": "fp8", "device": "cpu", "checkpoint": None}],
    "reference_images": [{"width": 1024, "height": 768}], "idle_models": [{"kind": "checkpoint", "bytes": 1000}],
    "forge": {"inference_memory_bytes": 1073741824, "never_oom_vae": False, "never_oom_unet": False,
              "online_lora": True},
}  # fmt: skip


def changed(path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(WHOLE)
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] = value
    return data


def test_the_whole_contract_request_is_understood_and_written_back_alike() -> None:
    request = Request.from_dict(WHOLE)
    assert json.loads(json.dumps(request.to_dict())) == WHOLE


def test_only_family_size_and_card_are_required() -> None:
    request = Request.from_dict(SMALLEST)
    assert (request.host, request.attention, request.batch_size, request.hires) == ("a1111", "sdpa", 1, None)


@pytest.mark.parametrize("missing", ["model", "width", "height", "device"])
def test_a_missing_required_field_is_named(missing: str) -> None:
    data = {key: value for key, value in SMALLEST.items() if key != missing}
    with pytest.raises(BadInput, match=f"^{missing}: "):
        Request.from_dict(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("width", 0),
        ("width", 100_000),
        ("width", "1024"),
        ("width", 512.5),
        ("width", float("nan")),
        ("width", float("inf")),
        ("height", True),
        ("height", None),
        ("batch_size", 0),
        ("batch_size", 10**400),
        ("cfg_scale", -1),
        ("frames", 0),
        ("host", "comfyui"),
        ("host", ["a1111"]),
        ("controlnets", [{}] * 33),
        ("loras", [{"bytes": 1}] * 1001),
        ("model.family", "sd99"),
        ("model.family", {}),
        ("device.total_bytes", 0),
        ("device.used_by_others_bytes", -1),
        ("device.name", 7),
        ("hires.scale", 0),
        ("vae.tiled", 1),
        ("vae.tile_size", 1),
        ("loras", {"bytes": 1}),
        ("host_args", "--medvram"),
        ("controlnets", "none"),
        ("upscaler_tile", -1),
        ("upscaler_tile", 4097),
        ("token_merging_ratio", 0.95),
        ("hypertile.depth", 4),
        ("restore_faces", True),
        ("model.storage_dtype", "q4_k"),
        ("text_encoders", [{}] * 9),
        ("reference_images", [{"width": 1, "height": 1}] * 17),
    ],
)
def test_an_unusable_value_is_refused_by_the_name_of_its_field(path: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        Request.from_dict(changed(path, value))
    assert caught.value.field == path
    assert str(caught.value).startswith(f"{path}: got ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["colour", "device.colour", "hires.colour"])
def test_an_unknown_field_is_refused_by_name(path: str) -> None:
    with pytest.raises(BadInput, match=f"^{path}: "):
        Request.from_dict(changed(path, 1))


def test_an_unusable_item_of_a_list_is_named_with_its_place() -> None:
    with pytest.raises(BadInput, match=r"^loras\[1\]\.bytes: "):
        Request.from_dict(changed("loras", [{"bytes": 1}, {"bytes": "big"}]))


@pytest.mark.parametrize(
    ("field", "item", "named"),
    [
        ("controlnets", {"processor_res": 8}, "processor_res"),
        ("controlnets", {"kind": "lora"}, "kind"),
        ("text_encoders", {"name": "t6"}, "name"),
        ("text_encoders", {"dtype": "fp8"}, "name"),
        ("text_encoders", {"name": "t5_xxl", "device": "npu"}, "device"),
        ("reference_images", {"width": 8, "height": 512}, "width"),
        ("idle_models", {"kind": "lora", "bytes": 1}, "kind"),
        ("idle_models", {"kind": "upscaler", "bytes": -1}, "bytes"),
    ],
)
def test_an_unusable_field_of_an_item_is_named(field: str, item: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=rf"^{field}\[0\]\.{named}: "):
        Request.from_dict(changed(field, [item]))


@pytest.mark.parametrize("data", [None, [], "request", 7])
def test_what_is_not_an_object_is_refused(data: object) -> None:
    with pytest.raises(BadInput, match="^request: "):
        Request.from_dict(data)


@pytest.mark.parametrize(
    ("hires", "size"),
    [
        ({"scale": 2.0}, (2048, 2048)),
        ({"scale": 1.5}, (1536, 1536)),
        ({"width": 1600, "height": 0}, (1600, 1600)),
        ({"width": 0, "height": 1216}, (1216, 1216)),
        ({"width": 1600, "height": 1200}, (1600, 1200)),
    ],
)
def test_the_second_pass_size_follows_scale_or_the_given_sides(hires: dict[str, Any], size: tuple[int, int]) -> None:
    assert Request.from_dict({**SMALLEST, "hires": hires}).hires_size() == size


def test_a_request_can_be_a_key_of_a_cache() -> None:
    assert hash(Request.from_dict(WHOLE)) == hash(Request.from_dict(WHOLE))
