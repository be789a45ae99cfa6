"""What only Forge has."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.host.forge import sampling_apart
from lib_vram.machine.card import Card
from lib_vram.plan.result import Plan
from lib_vram.request import ForgeSettings
from tests.fakehost.processing import page_run

GIB = 1024**3


@pytest.fixture
def host_name():
    return "forge"


@pytest.fixture
def host(fake):
    return callbacks.guard().host


def with_never_oom(fake, unet, vae, **fields):
    return fake.make(own=[unet, vae], own_title="Never OOM Integrated", **fields)


@pytest.mark.parametrize(("unet", "vae"), [(False, False), (True, False), (False, True)])
def test_never_ooms_switches_are_read_from_the_form_and_the_run(fake, host, unet, vae):
    wanted = ForgeSettings(GIB, never_oom_vae=vae, never_oom_unet=unet)
    form = {"never_oom_unet": unet, "never_oom_vae": vae}
    assert host.request_from_form("txt2img", form).forge == wanted
    assert host.request_from_processing(with_never_oom(fake, unet, vae)).forge == wanted


def test_the_reserve_is_what_gpu_weights_leaves(host):
    assert host.request_from_form("txt2img", {}).forge.inference_memory_bytes == GIB
    request = host.request_from_form("txt2img", {"gpu_weights_mb": 10240})
    assert request.forge.inference_memory_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("choice", "on_the_fly"), [("Automatic", False), ("Automatic (fp16 LoRA)", True), ("bnb-nf4 (fp16 LoRA)", True)]
)
def test_loras_are_added_on_the_fly_where_diffusion_in_low_bits_says_so(fake, host, choice, on_the_fly):
    fake.opts.data["forge_unet_storage_dtype"] = choice
    assert host.request_from_form("txt2img", {}).forge.online_lora is on_the_fly


def test_a_runs_own_reserve_wins(fake, host):
    p = fake.make(override_settings={"forge_inference_memory": 3072})
    assert host.request_from_processing(p).forge.inference_memory_bytes == 3 * GIB


def test_never_oom_is_switched_on_through_its_own_arguments(fake, host):
    """It writes the switch in its ``process``, after our hook: a value set directly would be overwritten."""
    p = fake.make()
    original = host.request_from_processing(p)
    host.prepare_run(p, original.replace(forge=ForgeSettings(GIB, never_oom_vae=True)))
    fake.runner.run_hook("process", p)
    assert fake.modules["backend.memory_management"].VAE_ALWAYS_TILED is True
    page_run(fake.make())
    assert fake.record.decodes == ["whole"]


def test_the_same_object_run_again_has_its_own_arguments_again(fake, host):
    p = with_never_oom(fake, False, False)
    own, original = p.script_args, host.request_from_processing(p)
    host.prepare_run(p, original.replace(forge=ForgeSettings(GIB, never_oom_vae=True, never_oom_unet=True)))
    assert host.request_from_processing(p).forge.never_oom_vae
    host.end_run(p)
    host.restore(p)
    assert p.script_args == own
    assert host.request_from_processing(p) == original


def test_an_argument_that_somebody_has_changed_since_stays_theirs(fake, host):
    p = with_never_oom(fake, False, False)
    original = host.request_from_processing(p)
    host.prepare_run(p, original.replace(forge=ForgeSettings(GIB, never_oom_vae=True, never_oom_unet=True)))
    p.script_args = type(p.script_args)([0 if value is True else value for value in p.script_args])
    theirs = p.script_args
    host.restore(p)
    assert p.script_args is theirs


@pytest.mark.parametrize(("side", "tiled"), [(120, False), (128, True)])
def test_pictures_that_forge_cannot_decode_in_tiles_are_decoded_whole(fake, host, side, tiled):
    p = fake.make(width=512, height=side, own=[{"tiled": True}])
    assert host.request_from_processing(p).forge.never_oom_vae is tiled
    page_run(p)
    assert fake.record.decodes == ["tiled" if tiled else "whole"]


def test_never_oom_stays_on_where_the_user_has_it_on(fake, host):
    page_run(with_never_oom(fake, False, True))
    assert fake.record.decodes == ["tiled"]


def test_without_never_oom_the_switch_is_set_and_taken_back(fake, host):
    memory = fake.modules["backend.memory_management"]
    fake.runner.alwayson_scripts = [
        item for item in fake.runner.alwayson_scripts if item.title() != "Never OOM Integrated"
    ]
    page_run(fake.make(own=[{"tiled": True}]))
    assert fake.record.decodes == ["tiled"] and memory.VAE_ALWAYS_TILED is False


def test_the_reserve_of_one_run_is_an_override_that_does_not_stay(fake, host):
    p = fake.make()
    original = host.request_from_processing(p)
    host.prepare_run(p, original.replace(forge=ForgeSettings(2 * GIB)))
    assert p.override_settings == {"forge_inference_memory": 2048}
    host.restore(p)
    assert p.override_settings == {}


@pytest.mark.parametrize("flag", ["freeze_settings", "freeze_settings_in_sections", "freeze_specific_settings"])
@pytest.mark.parametrize("fails", [False, True])
def test_with_frozen_settings_the_reserve_is_set_itself_for_one_run(fake, host, monkeypatch, flag, fails):
    monkeypatch.setattr(fake.modules["modules.shared"], "cmd_opts", SimpleNamespace(**{flag: "x"}), raising=False)
    processing = fake.modules["modules.processing"]
    monkeypatch.setattr(processing, "need_global_unload", False, raising=False)
    memory, seen = fake.modules["backend.memory_management"], []

    def sample(seeds):
        page = host.request_from_form("txt2img", {}).forge.inference_memory_bytes
        seen.append((memory.current_inference_memory, page, processing.need_global_unload))
        processing.need_global_unload = False  # as Forge does once the models are gone
        if fails:
            raise RuntimeError("out of memory")
        return type(p).sample(p, seeds)

    p = fake.make(own=[{"mode": "off", "reserve_mb": 2048}])
    p.sample = sample
    with contextlib.suppress(RuntimeError):
        page_run(p)
    host.restore()
    assert p.override_settings == {} and seen == [(2 * GIB, GIB, True)]
    assert memory.current_inference_memory == GIB and processing.need_global_unload


def test_a_reserve_that_is_as_it_was_is_not_touched_because_models_would_reload(fake, host):
    p = fake.make()
    host.prepare_run(p, host.request_from_processing(p))
    assert p.override_settings == {}


def test_both_halves_give_what_one_call_gave(fake, host):
    from lib_vram.host.forge import one_by_one

    calls = []

    def together(model, cond, uncond, x):
        calls.append((cond, uncond))
        return ("cond result" if cond else None), ("uncond result" if uncond else None)

    apart = one_by_one(together)
    assert apart("model", ["c"], ["u"], "x") == ("cond result", "uncond result")
    assert apart("model", ["c"], None, "x") == ("cond result", None)
    assert calls == [(["c"], None), ([], ["u"]), (["c"], None)]


def test_the_patch_of_the_sampler_ends_with_the_sampling_even_when_it_fails(fake, host):
    function = fake.modules["backend.sampling.sampling_function"]
    before = function.calc_cond_uncond_batch
    p = fake.make(own=[{"apart": True}])
    seen = []

    def sample(seeds):
        seen.append(function.calc_cond_uncond_batch is before)
        raise MemoryError

    p.sample = sample
    with pytest.raises(MemoryError):
        page_run(p)
    assert seen == [False] and function.calc_cond_uncond_batch is before


@pytest.mark.parametrize(
    ("choice", "stored", "dtype"),
    [
        ("Automatic", "fp16", "fp16"), ("Automatic", "fp32", "fp16"), ("Automatic", "nf4", "nf4"),
        ("Automatic (fp16 LoRA)", "q8_0", "q8_0"), ("bnb-nf4", "fp16", "nf4"), ("float8-e4m3fn", "fp16", "fp8"),
    ],
)  # fmt: skip
def test_the_weights_type_follows_low_bits_and_the_file(fake, host, monkeypatch, choice, stored, dtype):
    fake.opts.data["forge_unet_storage_dtype"] = choice
    part = SimpleNamespace(name="unet", dtype=stored)
    monkeypatch.setattr("lib_vram.host.forge.inspect_file", lambda path: SimpleNamespace(components=(part,)))
    assert host.weights_dtype("model.safetensors", None) == dtype


def test_attention_and_vae_type_are_what_forge_chose(fake, host):
    request = host.request_from_form("txt2img", {})
    assert (request.attention, request.vae.dtype) == ("sdpa", "bf16")

    def attention_sub_quad(): ...

    fake.modules["backend.attention"].attention_function = attention_sub_quad
    assert host.request_from_form("txt2img", {}).attention == "sub_quad"


def test_a_stand_in_card_gets_what_forge_would_choose_there(fake, host, monkeypatch):
    """On the CPU Forge computes in fp32 with sub-quadratic attention, which says nothing about the card."""
    virtual = Card("NVIDIA GeForce RTX 3060", 6 * GIB, 2 * GIB, 4 * GIB, "virtual")
    monkeypatch.setattr("lib_vram.host.webui.current_card", lambda: virtual)
    without_cuda = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", without_cuda)
    fake.modules["backend.memory_management"].vae_dtype = lambda: "torch.float32"
    request = host.request_from_form("txt2img", {})
    assert (request.attention, request.vae.dtype, request.model.weights_dtype) == ("sdpa", "bf16", "fp16")


def test_never_oom_and_gpu_weights_are_written_by_their_own_fields(host):
    original = host.request_from_form("txt2img", {"gpu_weights_mb": 11264})
    changed = original.replace(forge=ForgeSettings(2 * GIB, never_oom_vae=True))
    writes = {item.field: (item.previous, item.value) for item in host.field_writes(
        Plan(True, (), changed, Estimate("fits", GIB)), original)}  # fmt: skip
    assert writes == {"never_oom_vae": (False, True), "gpu_weights_mb": (11264, 10240)}


def test_a_page_without_gpu_weights_gets_the_reserve_in_our_own_control(fake, host):
    original = host.request_from_form("txt2img", {})
    changed = original.replace(forge=ForgeSettings(2 * GIB + 1))
    writes = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.value) for item in writes] == [("reserve_mb", 2049)]
    assert host.request_from_form("txt2img", {"reserve_mb": 2049}).forge.inference_memory_bytes == 2049 * 1024**2
    p = fake.make(own=[{"mode": "off", "reserve_mb": 2049}])
    page_run(p)
    assert fake.record.options[-1]["forge_inference_memory"] == 2049
    assert fake.opts.forge_inference_memory == 1024


def test_a_version_without_the_function_for_both_halves_samples_as_it_does_by_itself(fake, monkeypatch):
    monkeypatch.delattr(fake.modules["backend.sampling.sampling_function"], "calc_cond_uncond_batch")
    sample = sampling_apart(lambda *seeds: seeds, None)
    assert sample(1, 2) == (1, 2)
