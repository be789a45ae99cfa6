"""Reading A1111 and Forge, and writing a plan back into them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.errors import BadInput, NotReady
from lib_vram.estimate.result import Estimate
from lib_vram.plan.result import Plan
from lib_vram.request import ControlUnit, Detailer, Hires, HyperTile, Lora, Refiner
from tests.fakehost.processing import page_run

GIB = 1024**3


@pytest.fixture
def host(fake):
    """The adapter of the fake host."""
    return callbacks.guard().host


def plan_to(original, **changes):
    return Plan(True, (), original.replace(**changes), Estimate("fits", GIB))


def writes_of(host, original, **changes):
    return {
        write.field: (write.previous, write.value)
        for write in host.field_writes(plan_to(original, **changes), original)
    }


def test_an_empty_form_is_the_hosts_default_generation(fake, host):
    request = host.request_from_form("txt2img", {})
    assert (request.host, request.model.family, request.mode) == (fake.name, "sd15", "txt2img")
    assert (request.width, request.height, request.images) == (512, 512, 1)
    assert request.device.name == "NVIDIA GeForce RTX 3060"
    assert request.device.used_by_others_bytes == GIB
    assert request.model.checkpoint.endswith("model.safetensors")


def test_the_form_and_the_processing_object_make_the_same_request(fake, host):
    form = {
        "width": 768, "height": 640, "batch_size": 2, "batch_count": 3, "cfg_scale": 5.5, "prompt": "a cat",
        "enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "ESRGAN_4x", "enable_refiner": True,
        "refiner_checkpoint": "model.safetensors", "refiner_switch_at": 0.7, "cond_uncond_apart": True,
        "controlnets": [{"enabled": True, "model": "canny", "low_vram": True}, {"enabled": False, "model": "depth"}],
    }  # fmt: skip
    p = fake.make(
        width=768, height=640, batch_size=2, n_iter=3, cfg_scale=5.5, prompt="a cat", enable_hr=True, hr_scale=1.5,
        hr_upscaler="ESRGAN_4x", refiner_checkpoint="model.safetensors", refiner_switch_at=0.7, own=[{"apart": True}],
    )  # fmt: skip
    unit = SimpleNamespace(enabled=True, model="canny", module="None", low_vram=True)
    p.script_args = p.script_args[:-2] + (unit, SimpleNamespace(enabled=False, model="depth", module="None"))
    from_form, from_p = host.request_from_form("txt2img", form), host.request_from_processing(p)
    assert from_form.replace(system=from_p.system) == from_p
    assert from_p.hires == Hires(1.5, 0, 0, "ESRGAN_4x")
    assert from_p.refiner == Refiner("sd15", 0.7, from_p.model.checkpoint)
    assert from_p.controlnets == (ControlUnit("controlnet", "sd15", True),)
    assert not from_p.batch_cond_uncond


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ({"model": "control_v11p_sd15_canny [d14c]", "enabled": True}, "controlnet"),
        ({"model": "control_v11p_sd15_canny"}, "controlnet"),
        ({"model": "ip-adapter-plus_sd15"}, "ip_adapter"),
        ({"model": "t2iadapter_color_sd14v1"}, "t2i_adapter"),
        ({"model": "kohya_controllllite_xl_depth"}, "controllllite"),
        ({"model": "control-lora-canny-rank256"}, "control_lora"),
        ({"model": "sai_xl_depth_128lora"}, "control_lora"),
        ({"model": "None", "module": "canny"}, None),
        ({"model": "canny", "enabled": False}, None),
    ],
)
def test_control_units_of_the_api_are_read(fake, host, unit, kind):
    p = fake.make(own=[unit], own_title="ControlNet")
    assert [item.kind for item in host.request_from_processing(p).controlnets] == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ({"module": "openpose_full", "processor_res": 768}, ("openpose_full", 768)),
        ({"module": "softedge_hed", "processor_res": -1}, ("softedge_hed", None)),
        ({"module": "depth_midas", "pixel_perfect": True, "processor_res": 64}, ("depth_midas", 512)),
        ({"module": "None"}, ("none", None)),
    ],
)
def test_a_units_preprocessor_and_its_resolution_are_read(fake, host, unit, expected):
    p = fake.make(own=[{"model": "canny", "enabled": True, **unit}], own_title="ControlNet")
    read = host.request_from_processing(p).controlnets[0]
    assert (read.preprocessor, read.processor_res) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([True, False, {"ad_model": "face_yolov8n.pt"}], Detailer(512, 512, "face_yolov8n.pt")),
        ([True, False, {"ad_model": "a.pt"}, {"ad_model": "b.pt", "ad_use_inpaint_width_height": True,
          "ad_inpaint_width": 768, "ad_inpaint_height": 1024}], Detailer(768, 1024, "b.pt")),
        ([True, False, {"ad_model": "None"}, {"ad_model": "a.pt", "ad_tab_enable": False}], None),
        ([False, False, {"ad_model": "face_yolov8n.pt"}], None),
        ([{"ad_model": "hand_yolov8s.pt"}], Detailer(512, 512, "hand_yolov8s.pt")),
    ],
)  # fmt: skip
def test_what_adetailer_will_do_is_read(fake, host, arguments, expected):
    p = fake.make()
    script = SimpleNamespace(title=lambda: "ADetailer", args_from=len(p.script_args), args_to=None)
    p.scripts = SimpleNamespace(alwayson_scripts=[*p.scripts.alwayson_scripts, script])
    p.script_args += tuple(arguments)
    assert host.request_from_processing(p).detailer == expected


def test_faces_are_restored_by_the_model_of_the_settings(fake, host):
    fake.opts.data["face_restoration_model"] = "GFPGAN"
    assert host.request_from_processing(fake.make()).restore_faces is None
    assert host.request_from_processing(fake.make(restore_faces=True)).restore_faces == "gfpgan"
    assert host.request_from_form("txt2img", {"restore_faces": True}).restore_faces == "gfpgan"
    fake.opts.data["face_restoration"] = True
    assert host.request_from_processing(fake.make()).restore_faces == "gfpgan"
    fake.opts.data["face_restoration_model"] = "RestoreFormer"
    assert host.request_from_processing(fake.make()).restore_faces is None


def test_merging_and_hypertile_are_read_from_the_settings(fake, host):
    assert host.request_from_processing(fake.make()).hypertile is None
    fake.opts.data |= {"token_merging_ratio": 0.5, "token_merging_ratio_hr": 0.3, "token_merging_ratio_img2img": 0.0}
    fake.opts.data |= {"hypertile_enable_vae": True, "hypertile_max_tile_vae": 256, "hypertile_swap_size_unet": 1}
    request = host.request_from_processing(fake.make())
    assert request.token_merging_ratio == 0.3
    assert host.request_from_form("img2img", {}).token_merging_ratio == 0.5
    assert request.hypertile == HyperTile(unet=False, vae=True, vae_tile_size=256, swap_size=1)


def test_loras_of_prompts_and_styles_count_once_with_their_files_sizes(fake, host, tmp_path, monkeypatch):
    file = tmp_path / "style.safetensors"
    file.write_bytes(b"x" * 4096)
    networks = SimpleNamespace(
        available_networks={"style": SimpleNamespace(filename=str(file))}, available_network_aliases={}
    )
    monkeypatch.setitem(sys.modules, "networks", networks)
    form = {"prompt": "a <lora:style:0.8> <lora:missing:1>", "styles": ["<lora:style:1>"]}
    assert host.request_from_form("txt2img", form).loras == (Lora(4096),)


def test_img2img_sizes_may_come_from_the_picture_and_a_factor(host):
    form = {"width": 512, "height": 512, "resize_scale": 1.5, "image_width": 801, "image_height": 600}
    request = host.request_from_form("img2img", form)
    assert (request.width, request.height, request.mode) == (1201, 900, "img2img")
    assert writes_of(host, request, width=800, height=600) == {"resize_scale": (1.4994, 0.99)}


def test_a_factor_without_a_picture_leaves_the_sliders_in_charge(host):
    assert host.request_from_form("img2img", {"width": 640, "resize_scale": 2}).width == 640


@pytest.mark.parametrize(("images", "batch_size", "seen"), [(1, 4, 4), (4, 4, 4), (3, 4, 3), (5, 4, 4)])
def test_several_start_pictures_set_the_batch_size_as_the_host_does(fake, host, images, batch_size, seen):
    p = fake.img2img([f"picture {index}" for index in range(images)], batch_size=batch_size)
    assert host.request_from_processing(p).batch_size == seen


@pytest.mark.parametrize(
    ("field", "value"),
    [("width", "wide"), ("width", True), ("cfg_scale", "nan"), ("batch_size", []), ("height", "inf")],
)
def test_a_field_that_is_no_number_is_named(host, field, value):
    with pytest.raises(BadInput, match=field):
        host.request_from_form("txt2img", {field: value})


def test_texts_with_numbers_are_numbers(host):
    assert host.request_from_form("txt2img", {"width": "640", "height": ""}).width == 640


def test_an_unknown_family_is_not_guessed(host, monkeypatch):
    monkeypatch.setattr("lib_vram.host.webui.inspect_file", lambda path: SimpleNamespace(family=None, components=()))
    with pytest.raises(NotReady, match=r"model\.family: got 'model\.safetensors'"):
        host.request_from_form("txt2img", {})


def test_the_loaded_model_says_its_family_where_the_file_does_not(fake, host, monkeypatch):
    monkeypatch.setattr("lib_vram.host.webui.inspect_file", lambda path: SimpleNamespace(family=None, components=()))
    models = fake.modules["modules.sd_models"]
    info = models.checkpoints_list["model.safetensors"]
    models.model_data.sd_model = SimpleNamespace(sd_checkpoint_info=info, is_sdxl=True)
    assert host.request_from_form("txt2img", {}).model.family == "sdxl"


def test_a_loaded_model_that_has_no_name_is_computed_from_its_trace_in_hosts_that_gain_models(fake, host, monkeypatch):
    monkeypatch.setattr("lib_vram.host.webui.inspect_file", lambda path: SimpleNamespace(family=None, components=()))
    models = fake.modules["modules.sd_models"]
    info = models.checkpoints_list["model.safetensors"]
    models.model_data.sd_model = SimpleNamespace(sd_checkpoint_info=info)
    if host.name in ("forge", "neo"):
        assert host.request_from_form("txt2img", {}).model.family == "loaded"
    else:
        with pytest.raises(NotReady, match="family"):
            host.request_from_form("txt2img", {})


def test_reading_never_loads_a_model(fake, host):
    host.request_from_form("txt2img", {"checkpoint": "model.safetensors"})
    host.request_from_processing(fake.make())
    assert fake.record.models_loaded == 0


@pytest.mark.parametrize(
    ("enabled", "kind", "preview"),
    [(False, "Full", "off"), (True, "Full", "full"), (True, "TAESD", "taesd"), (True, "Approx cheap", "approx")],
)
def test_the_live_preview_is_read(fake, host, enabled, kind, preview):
    fake.opts.data |= {"live_previews_enable": enabled, "show_progress_type": kind}
    assert host.request_from_form("txt2img", {}).live_preview == preview


def test_only_flags_about_memory_are_passed_on(fake, host, monkeypatch):
    flags = ["--medvram", "--always-gpu", "--no-half-vae", "--vae-in-fp32", "--fp32-vae", "--api", "--port", "7861"]
    monkeypatch.setattr(sys, "argv", ["launch.py", *flags])
    expected = {
        "a1111": ("--medvram", "--no-half-vae"),
        "forge": ("--always-gpu", "--vae-in-fp32"),
        "neo": ("--fp32-vae",),
        "reforge": ("--always-gpu", "--vae-in-fp32"),
        "classic": ("--always-gpu", "--vae-in-fp32"),
    }
    assert host.request_from_form("txt2img", {}).host_args == expected[fake.name]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_the_allocators_settings_are_read(host, monkeypatch, name):
    monkeypatch.setenv(name, "expandable_segments:True")
    assert host.request_from_form("txt2img", {}).alloc_conf == "expandable_segments:True"


def test_the_old_hires_option_makes_the_size_the_final_one(fake, host):
    fake.opts.data["use_old_hires_fix_width_height"] = True
    original = host.request_from_form("txt2img", {"width": 1024, "height": 1536, "enable_hr": True})
    assert (original.width, original.height) == (448, 640)
    assert original.hires_size() == (1024, 1536)
    changed = writes_of(host, original, hires=Hires(2.0, 896, 1344, "Latent"))
    assert changed == {"width": (1024, 896), "height": (1536, 1344)}


def test_the_old_hires_option_does_not_overrule_a_fix(fake, host):
    fake.opts.data["use_old_hires_fix_width_height"] = True
    p = fake.make(width=1024, height=1536, enable_hr=True)
    original = host.request_from_processing(p)
    host.apply(p, plan_to(original, hires=Hires(2.0, 896, 1344, "Latent")), original)
    assert (p.width, p.height, p.hr_resize_x, p.hr_resize_y) == (448, 640, 896, 1344)
    assert p.applied_old_hires_behavior_to == (448, 640)


def test_the_page_gets_the_fields_that_changed_and_no_others(host):
    original = host.request_from_form("txt2img", {"batch_size": 4, "enable_hr": True, "hr_scale": 2})
    assert writes_of(host, original) == {}
    changed = writes_of(host, original, batch_size=1, batch_count=4, batch_cond_uncond=False, hires=Hires(1.5))
    assert changed == {
        "batch_size": (4, 1), "batch_count": (1, 4), "hr_scale": (2.0, 1.5), "cond_uncond_apart": (False, True)
    }  # fmt: skip
    assert writes_of(host, original, hires=None) == {"enable_hr": (True, False)}
    assert writes_of(host, original, width=448, height=448) == {"width": (512, 448), "height": (512, 448)}


def test_a_plan_is_written_into_the_run(fake, host):
    p = fake.make(width=1024, height=768, batch_size=2, enable_hr=True)
    original = host.request_from_processing(p)
    host.apply(p, plan_to(original, width=896, height=672, batch_size=1, batch_count=2, hires=Hires(1.5)), original)
    assert (p.width, p.height, p.batch_size, p.n_iter, p.hr_scale) == (896, 672, 1, 2, 1.5)
    host.restore(p)
    assert (p.width, p.height, p.batch_size, p.n_iter, p.hr_scale) == (1024, 768, 2, 1, 2.0)


@pytest.mark.parametrize(("size", "count"), [(1, 4), (2, 2), (3, 2)])
def test_each_start_picture_keeps_its_result_when_the_batch_is_split(fake, host, size, count):
    images = ["first", "second", "third", "fourth"]
    p = fake.img2img(images, batch_size=4)
    original = host.request_from_processing(p)
    host.apply(p, plan_to(original, batch_size=size, batch_count=count), original)
    p.scripts = None
    pictures = page_run(p)
    assert [picture.source for picture in pictures] == (images * 2)[: size * count]
    assert [picture.seed for picture in pictures] == list(range(1, size * count + 1))


def test_one_start_picture_is_repeated_by_the_host_itself(fake, host):
    p = fake.img2img(["only"], batch_size=4)
    original = host.request_from_processing(p)
    host.apply(p, plan_to(original, batch_size=1, batch_count=4), original)
    p.scripts = None
    assert "init" not in vars(p)
    assert [picture.source for picture in page_run(p)] == ["only"] * 4


@pytest.mark.parametrize("end", ["run", "failed run", "reuse", "unload"])
def test_cond_and_uncond_go_apart_for_one_run_and_together_afterwards(fake, host, end):
    p = fake.make(batch_size=2, own=[{"apart": True}])
    if end == "failed run":
        p.init = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            page_run(p)
    elif end == "unload":
        host.prepare_run(p, host.request_from_processing(p))
        fake.unload_scripts()
    else:
        page_run(p)
        assert fake.record.unet_batches == [2, 2]
    fake.record.unet_batches.clear()
    again = p if end == "reuse" else fake.make(batch_size=2)
    again.script_args = fake.make().script_args
    vars(again).pop("init", None)
    page_run(again)
    assert fake.record.unet_batches == [4]


def test_the_run_argument_works_without_a_card(fake, host, monkeypatch):
    monkeypatch.setattr("lib_vram.host.webui.current_card", lambda: None)
    page_run(fake.make(batch_size=2, own=[{"apart": True, "tiled": True, "tile_size": 512}]))
    assert fake.record.unet_batches == [2, 2]
    assert all(decode.startswith("tiled") for decode in fake.record.decodes)


def test_tiled_decoding_lasts_one_run(fake, host):
    page_run(fake.make(own=[{"tiled": True, "tile_size": 512}]))
    page_run(fake.make())
    assert fake.record.decodes == (["tiled 512", "whole"] if "tile_size" in host.own_controls else ["tiled", "whole"])


def test_arguments_of_other_scripts_are_changed_on_a_copy(fake, host):
    p = fake.make(own=[{"tiled": True}])
    given = p.script_args
    host.prepare_run(p, host.request_from_processing(p))
    assert given == fake.make(own=[{"tiled": True}]).script_args


def test_a_finished_run_is_not_kept_alive(fake, host):
    import gc
    import weakref

    p = fake.make(batch_size=2, own=[{"apart": True, "tiled": True}])
    page_run(p)
    gone = weakref.ref(p)
    del p
    gc.collect()
    assert gone() is None


def test_settings_that_cannot_be_are_the_default(fake, host):
    fake.opts.data |= {"vram_guard_mode": "sometimes", "localization": "pt_BR"}
    assert (host.settings().mode, host.settings().language) == ("ask", "pt")


def test_reading_a_form_takes_less_than_five_milliseconds(host):
    import time

    form = {"width": 768, "height": 768, "prompt": "a <lora:x:1>", "enable_hr": True}
    host.request_from_form("txt2img", form)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        host.request_from_form("txt2img", form)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005
