"""What only A1111 has."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.host import levers_idle, units
from lib_vram.machine.card import Card
from lib_vram.plan.result import Plan
from lib_vram.request import IdleModel, VaeSpec
from tests.fakehost.processing import Img2Img, page_run
from tests.fakehost.webui import Module

GIB, MIB = 1024**3, 1024**2


@pytest.fixture
def host_name():
    return "a1111"


@pytest.fixture
def host(fake):
    return callbacks.guard().host


class TiledVae:
    """Multidiffusion's script."""

    def title(self):
        return "Tiled VAE"


def test_the_accordions_tiles_are_in_the_request(host):
    assert host.request_from_form("txt2img", {}).vae == VaeSpec("fp16")
    form = {"vae_tiled": True, "vae_tile_size": 512}
    assert host.request_from_form("txt2img", form).vae == VaeSpec("fp16", True, 512)


@pytest.mark.parametrize(
    ("dtype", "name"), [("torch.float32", "fp32"), ("torch.bfloat16", "bf16"), ("torch.float16", "fp16")]
)
def test_the_vaes_type_is_the_one_in_use_also_after_the_switch_for_nans(fake, host, dtype, name):
    fake.modules["modules.devices"].dtype_vae = dtype
    assert host.request_from_form("txt2img", {}).vae.dtype == name


def test_the_weights_type_follows_flags_and_options(fake, host):
    assert host.weights_dtype(None, None) == "fp16"
    fake.cmd_opts.no_half = True
    assert host.weights_dtype(None, None) == "fp32"
    fake.opts.data["fp8_storage"] = "Enable"
    assert host.weights_dtype(None, None) == "fp8"


@pytest.mark.parametrize(("family", "dtype"), [("sdxl", "fp8"), ("sdxl_refiner", "fp8"), ("sd15", "fp16")])
def test_fp8_for_sdxl_is_for_sdxl(fake, host, monkeypatch, family, dtype):
    fake.opts.data["fp8_storage"] = "Enable for SDXL"
    monkeypatch.setattr(host, "family_of", lambda path: family)
    assert host.weights_dtype(None, None) == dtype


@pytest.mark.parametrize(
    ("name", "attention"),
    [
        ("xformers", "xformers"),
        ("sdp-no-mem", "sdpa"),
        ("sub-quadratic", "sub_quad"),
        ("Doggettx", "split"),
        ("V1", "split"),
    ],
)
def test_the_attention_is_the_optimizer_in_use(fake, host, name, attention):
    fake.modules["modules.sd_hijack"].current_optimizer = SimpleNamespace(name=name)
    assert host.request_from_form("txt2img", {}).attention == attention


@pytest.mark.parametrize(("listed", "more"), [(["xformers", "sdp"], ("xformers",)), (["sdp", "Doggettx"], ())])
def test_xformers_can_be_changed_to_where_the_host_lists_it(fake, host, listed, more):
    optimizers = [SimpleNamespace(name=name, title=lambda name=name: name, cmd_opt=None) for name in listed]
    fake.modules["modules.sd_hijack"].optimizers = optimizers
    assert host.request_from_form("txt2img", {}).more_attention == more


def test_before_a_model_is_loaded_the_choice_to_come_is_taken(fake, host):
    hijack = fake.modules["modules.sd_hijack"]
    hijack.current_optimizer = None
    card = Card("GPU", 8 * GIB, None, None, "nvml")
    assert host.attention(card) == "split"
    fake.cmd_opts.opt_sdp_attention = True
    assert host.attention(card) == "sdpa"
    fake.opts.data["cross_attention_optimization"] = "None"
    assert host.attention(card) == "math"


def test_batching_that_is_off_in_the_settings_stays_off(fake, host):
    fake.opts.data["batch_cond_uncond"] = False
    assert not host.request_from_form("txt2img", {}).batch_cond_uncond
    page_run(fake.make(batch_size=2))
    assert fake.record.unet_batches == [2, 2] and fake.opts.batch_cond_uncond is False


def test_a_call_that_keeps_its_overrides_does_not_keep_ours(fake, host):
    p = fake.make(batch_size=2, own=[{"apart": True}], override_settings_restore_afterwards=False)
    page_run(p)
    assert fake.record.unet_batches == [2, 2]
    assert fake.opts.batch_cond_uncond is True


class RegionalPrompter:
    """Puts the option back in its ``process``, whether it is used or not."""

    def __init__(self, fake):
        self.fake = fake

    def title(self):
        return "Regional Prompter"

    def process(self, p, *_):
        self.fake.opts.data["batch_cond_uncond"] = True


def test_the_halves_stay_apart_beside_regional_prompter(fake, host):
    fake.runner.add(RegionalPrompter(fake), [])
    page_run(fake.make(batch_size=2, own=[{"apart": True}]))
    assert fake.record.unet_batches == [2, 2]
    assert fake.opts.batch_cond_uncond is True
    page_run(fake.make(batch_size=2))
    assert fake.record.unet_batches == [2, 2, 4]


def test_the_calls_own_overrides_are_as_before_after_the_run(fake, host):
    overrides = {"CLIP_stop_at_last_layers": 2}
    page_run(fake.make(own=[{"apart": True}], override_settings=overrides))
    assert overrides == {"CLIP_stop_at_last_layers": 2}


def test_an_installed_tiled_vae_that_is_on_in_the_page_counts_with_its_own_tile(host):
    form = {"tiled_vae_tile": 64, "vae_tile_size": 768}
    assert host.request_from_form("txt2img", form).vae == VaeSpec("fp16", True, 512)
    assert not host.request_from_form("txt2img", {"vae_tile_size": 768}).vae.tiled


def test_an_installed_tiled_vae_counts_and_ours_steps_aside(fake, host):
    fake.runner.add(TiledVae(), [True, 960, 64, False, True, True, False])
    p = fake.make(own=[{"tiled": True, "tile_size": 512}])
    assert host.request_from_processing(p).vae == VaeSpec("fp16", True, 512)
    page_run(p)
    assert fake.record.decodes == ["whole"]


@pytest.mark.parametrize(
    ("fields", "tile"),
    [
        ({}, 512),
        ({"enable_hr": True, "hr_upscaler": "Latent"}, 512),
        ({"enable_hr": True, "hr_upscaler": "Lanczos"}, 960),
    ],
)
def test_the_larger_of_its_tiles_counts_where_a_picture_is_encoded(fake, host, fields, tile):
    fake.runner.add(TiledVae(), [True, 960, 64, False, True, True, False])
    assert host.request_from_processing(fake.make(**fields)).vae == VaeSpec("fp16", True, tile)


def test_a_start_picture_is_encoded_in_its_tiles(fake, host):
    fake.runner.add(TiledVae(), [True, 1536, 64, False, True, True, False])
    p = fake.make(Img2Img, init_images=["a picture"])
    assert host.request_from_processing(p).vae == VaeSpec("fp16", True, 1536)


def test_a_fix_that_needs_smaller_tiles_gives_them_to_the_installed_tiled_vae(fake, host):
    fake.runner.add(TiledVae(), [True, 960, 64, False, True, True, False])
    p = fake.make()
    request = host.request_from_processing(p)
    host.prepare_run(p, request.replace(vae=VaeSpec("fp16", True, 320)))
    assert units.arguments_of(p, "tiled vae") == (True, 320, 40, False, True, True, False)
    assert fake.runner.defaults[-7:] == [True, 960, 64, False, True, True, False]


def test_the_model_that_is_loaded_by_then_decodes_in_tiles(fake, host):
    """The checkpoint may change between the hook and the decode: nothing is put on the old one."""
    old = fake.model
    p = fake.make(own=[{"tiled": True}])
    sample = p.sample

    def sample_after_loading_another(seeds):
        fake.model = SimpleNamespace(first_stage_model=SimpleNamespace(decoder=SimpleNamespace()))
        return sample(seeds)

    p.sample = sample_after_loading_another
    page_run(p)
    assert fake.record.decodes == ["tiled 768"]
    assert not hasattr(old.first_stage_model.decoder, "vram_guard_tile_size")
    assert not hasattr(fake.model.first_stage_model.decoder, "vram_guard_tile_size")


def test_the_hosts_own_function_is_back_after_the_run(fake, host):
    common = fake.modules["modules.sd_samplers_common"]
    before = common.samples_to_images_tensor
    page_run(fake.make(own=[{"tiled": True}]))
    assert common.samples_to_images_tensor is before


def test_a_failed_run_leaves_the_hosts_own_function_back(fake, host):
    common = fake.modules["modules.sd_samplers_common"]
    before = common.samples_to_images_tensor
    p = fake.make(own=[{"tiled": True}])
    p.sample = lambda seeds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        page_run(p)
    assert common.samples_to_images_tensor is before


def test_tiles_are_written_into_our_accordion(host):
    original = host.request_from_form("txt2img", {})
    plan = Plan(True, (), original.replace(vae=VaeSpec("fp16", True, 768)), Estimate("fits", GIB))
    writes = {write.field: write.value for write in host.field_writes(plan, original)}
    assert writes == {"vae_tiled": True, "vae_tile_size": 768}


@pytest.mark.parametrize(
    ("smaller", "writes"),
    [
        (512, {"tiled_vae_tile": 64}),
        (448, {"tiled_vae_tile": 48}),
        (320, {"tiled_vae": False, "vae_tiled": True, "vae_tile_size": 320}),
    ],
)
def test_a_smaller_tile_is_written_into_the_installed_tiled_vae_as_far_as_its_slider_goes(host, smaller, writes):
    original = host.request_from_form("txt2img", {"tiled_vae_tile": 96})
    plan = Plan(True, (), original.replace(vae=VaeSpec("fp16", True, smaller)), Estimate("fits", GIB))
    assert {write.field: write.value for write in host.field_writes(plan, original)} == writes
    host.request_from_form("txt2img", {"vae_tiled": True, "vae_tile_size": 768})
    own = {write.field: write.value for write in host.field_writes(plan, original)}
    assert own == {"vae_tile_size": smaller}


# attention, other models, ControlNet


def ended_how(name):
    from tests.host.test_levers import ENDS

    return ENDS[name]


@pytest.mark.parametrize("end", ["success", "failure", "interrupt"])
def test_another_attention_is_applied_for_one_run_and_then_the_settings_one_again(fake, host, end):
    hijack = fake.modules["modules.sd_hijack"]
    fake.modules["modules.sd_models"].model_data.sd_model = fake.model
    before = hijack.current_optimizer
    ended_how(end)(fake.make(own=[{"mode": "off", "attention": "sub_quad"}]))
    assert fake.attentions == ["sub-quadratic"]
    assert hijack.current_optimizer is before and fake.opts.cross_attention_optimization == "Automatic"


def test_an_attention_that_this_machine_lacks_is_not_applied(fake, host):
    page_run(fake.make(own=[{"mode": "off", "attention": "xformers"}]))
    assert fake.attentions == ["sdp"] and fake.opts.cross_attention_optimization == "Automatic"


def test_a_plan_with_another_attention_is_written_into_our_control(fake, host):
    original = host.request_from_form("txt2img", {})
    changed = original.replace(attention="sub_quad")
    written = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.value) for item in written] == [("attention", "sub_quad")]
    assert host.request_from_form("txt2img", {"attention": "sub_quad"}).attention == "sub_quad"


def checkpoint(fake, name, **fields):
    return Module(2 * GIB, sd_checkpoint_info=SimpleNamespace(filename=name), **fields)


@pytest.mark.parametrize(("keeps_one", "idle"), [(False, 1), (True, 0)])
def test_other_checkpoints_are_idle_where_the_settings_keep_them_on_the_card(fake, host, keeps_one, idle):
    models = fake.modules["modules.sd_models"]
    fake.opts.data["sd_checkpoints_keep_in_cpu"] = keeps_one
    models.send_model_to_cpu = lambda model: model.to("cpu")
    used, other = checkpoint(fake, host.checkpoint_path(None)), checkpoint(fake, "other.safetensors")
    models.model_data = SimpleNamespace(sd_model=used, loaded_sd_models=[used, other])
    assert host.request_from_form("txt2img", {}).idle_models == (IdleModel("checkpoint", 2 * GIB),) * idle
    page_run(fake.make(own=[{"mode": "off", "unload_idle": True}]))
    assert (used.is_on_card, other.is_on_card) == (True, keeps_one)


def test_a_kept_checkpoint_that_the_run_needs_is_not_idle_however_its_path_is_written(fake, host):
    fake.opts.data["sd_checkpoints_keep_in_cpu"] = False
    path = host.checkpoint_path(None)
    folder, name = os.path.split(path)
    kept = checkpoint(fake, f"{folder}/./{name}")
    models = fake.modules["modules.sd_models"]
    models.model_data = SimpleNamespace(sd_model=checkpoint(fake, "other.safetensors"), loaded_sd_models=[kept])
    models.send_model_to_cpu = lambda model: model.to("cpu")
    assert list(levers_idle.of_a1111(host.asked_by_form("txt2img", {}), [path])) == []


def test_control_models_that_no_unit_uses_are_idle_and_come_back_by_themselves(fake, host):
    script = next(item for item in fake.runner.alwayson_scripts if item.title() == "ControlNet")
    used, idle, own = Module(700 * MIB), Module(720 * MIB), Module(10 * MIB, disable_memory_management=True)
    script.model_cache |= {
        name: SimpleNamespace(model=model) for name, model in (("canny [0a1b2c3d]", used), ("depth", idle), ("ip", own))
    }
    form = {"controlnets": [{"enabled": True, "model": "canny"}]}
    assert host.request_from_form("txt2img", form).idle_models == (IdleModel("controlnet", 720 * MIB),)
    unit = {"enabled": True, "model": "canny", "low_vram": False}
    p = fake.make(own=[{"mode": "off", "unload_idle": True}])
    units.with_arguments(p, "controlnet", {0: unit})
    page_run(p)
    assert (used.is_on_card, idle.is_on_card, own.is_on_card) == (True, False, True)
    assert set(script.model_cache) == {"canny [0a1b2c3d]", "depth", "ip"}


def test_an_interrogator_that_stayed_is_idle(fake, host):
    fake.modules["modules.shared"].interrogator = SimpleNamespace(blip_model=Module(800 * MIB), clip_model=None)
    assert host.request_from_form("txt2img", {}).idle_models == (IdleModel("interrogator", 800 * MIB),)


def test_low_vram_of_units_is_ticked_on_copies(fake, host):
    class Unit:
        def __init__(self):
            self.enabled, self.model, self.low_vram = True, "canny", False

        def __getitem__(self, name):
            return getattr(self, name)

    kept, asked = Unit(), {"model": "depth", "low_vram": False}
    p = fake.make()
    units.with_arguments(p, "controlnet", {0: kept, 1: asked})
    original = host.request_from_processing(p)
    low = tuple(dataclasses.replace(unit, low_vram=True) for unit in original.controlnets)
    changed = original.replace(controlnets=low)
    written = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.value) for item in written] == [
        ("controlnet_low_vram:0", True), ("controlnet_low_vram:1", True),
    ]  # fmt: skip
    host.prepare_run(p, changed)
    fake.runner.run_hook("process", p)
    script = next(item for item in fake.runner.alwayson_scripts if item.title() == "ControlNet")
    assert script.low_vram == [True, True]
    assert not kept.low_vram and not asked["low_vram"]
