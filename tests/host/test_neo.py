"""What only Forge Neo has."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.errors import Refused
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.result import Estimate
from lib_vram.host import webui as host_webui
from lib_vram.machine.card import Card
from lib_vram.plan.result import Plan
from lib_vram.request import ForgeSettings
from tests.fakehost.neo import RESERVED, OutOfMemoryError
from tests.fakehost.processing import Txt2Img, api_run, page_run

GIB, MIB = 1024**3, 1024**2
MINIMUM = int(0.8 * GIB) + RESERVED


@pytest.fixture
def host_name():
    return "neo"


@pytest.fixture
def host(fake):
    return callbacks.guard().host


def inspected(monkeypatch, **found):
    answer = SimpleNamespace(**{"family": None, "components": (), "problems": ()} | found)
    for name in ("lib_vram.host.webui", "lib_vram.host.neo"):
        monkeypatch.setattr(f"{name}.inspect_file", lambda path: answer)


def keeping(request, wanted_bytes):
    return request.replace(forge=ForgeSettings(wanted_bytes))


# sizes


@pytest.mark.parametrize(("asked", "made"), [((100, 150), (128, 128)), ((512, 768), (512, 768)), ((96, 95), (128, 64))])
def test_sizes_are_rounded_to_64_after_our_hook_and_the_estimate_knows(fake, host, asked, made):
    p = fake.make(width=asked[0], height=asked[1])
    request = host.request_from_processing(p)
    assert (request.width, request.height) == asked
    exact = request.replace(width=made[0], height=made[1])
    assert [item.to_dict() for item in estimate(request).phases] == [item.to_dict() for item in estimate(exact).phases]
    page_run(p)
    assert (p.width, p.height) == made


# the checkpoint


def test_the_checkpoint_that_will_be_loaded_counts_not_the_one_in_memory(fake, host, monkeypatch):
    models = fake.modules["modules.sd_models"]
    models.model_data.sd_model = SimpleNamespace(
        sd_checkpoint_info=SimpleNamespace(filename="/models/other.safetensors")
    )
    models.model_data.forge_loading_parameters = {
        "checkpoint_info": SimpleNamespace(filename="/models/next.safetensors")
    }
    seen = []
    found = SimpleNamespace(family="sdxl", components=(), problems=())
    for name in ("lib_vram.host.webui", "lib_vram.host.neo"):
        monkeypatch.setattr(f"{name}.inspect_file", lambda path: seen.append(path) or found)
    request = host.request_from_processing(fake.make())
    assert request.model.family == "sdxl" and request.model.checkpoint.endswith("next.safetensors")
    assert {path[-16:] for path in seen} == {"next.safetensors"} and fake.record.models_loaded == 0


def test_a_run_with_another_checkpoint_of_its_own_is_asked_about_that_one(fake, host):
    p = fake.make(override_settings={"sd_model_checkpoint": "model.safetensors"})
    fake.modules["modules.sd_models"].model_data.forge_loading_parameters = {}
    assert host.request_from_processing(p).model.checkpoint.endswith("model.safetensors")


def test_the_stand_in_before_the_first_model_is_no_model(host):
    assert host.loaded_model() is None


def test_a_family_that_is_not_known_is_unknown_and_never_blocks(fake, host, monkeypatch):
    inspected(monkeypatch)
    check = callbacks.guard().check_form("txt2img", {"width": 4096, "height": 4096})
    assert check.estimate.verdict == "unknown"
    status, pictures = api_run(fake.make(width=4096, height=4096, own=[{"mode": "refuse"}]))
    assert (status, len(pictures)) == (200, 1)


def loaded(name, *parents, **unet_config):
    """Return the configuration of a loaded model: a class of Neo's list, by its name and its parents' names."""
    bases = tuple(type(parent, (), {}) for parent in parents)
    return type(name, bases, {"unet_config": unet_config})()


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (loaded("Flux2K9B", "Flux"), "flux2_klein_9b"), (loaded("WAN21_T2V", dim=1536), "wan21_1b"),
        (loaded("WAN21_I2V", "WAN21_T2V", dim=5120), "wan21_14b"), (loaded("Krea2"), None),
    ],
)  # fmt: skip
def test_a_loaded_model_is_known_by_its_class_in_neos_list(fake, host, config, family):
    fake.load_model()
    fake.modules["modules.sd_models"].model_data.sd_model.model_config = config
    assert host._loaded_family(host.checkpoint_path(None)) == family


def test_a_model_of_another_service_is_said_to_be_elsewhere(fake, host):
    """Such a generation skips every hook, so there is only the page to say it on."""
    fake.opts.data["forge_model_mode"] = "api"
    check = callbacks.guard().check_form("txt2img", {})
    assert [str(note) for note in check.estimate.notes] == [
        "the model runs on another service: nothing is computed on this card"
    ]


# video


@pytest.mark.parametrize(("frames", "computed"), [(1, 1), (4, 1), (5, 5), (81, 81), (84, 81)])
def test_wans_frames_come_in_the_batch_size(fake, host, monkeypatch, frames, computed):
    inspected(monkeypatch, family="wan21_14b")
    request = host.request_from_processing(fake.make(batch_size=frames))
    assert (request.batch_size, request.frames) == (1, computed)
    fake.is_wan = True
    p = fake.make(batch_size=frames)
    fake.settle(p)
    assert p.batch_size == computed


def test_a_plan_never_writes_wans_frames(fake, host, monkeypatch):
    inspected(monkeypatch, family="wan21_1b")
    p = fake.make(batch_size=81, n_iter=2)
    original = host.request_from_processing(p)
    host.apply(p, Plan(True, (), original.replace(width=256, height=256), Estimate("fits", GIB)), original)
    assert (p.batch_size, p.n_iter, p.width, p.height) == (81, 2, 256, 256)


# hires


@pytest.mark.parametrize(
    ("chosen", "upscaler"), [("Latent", "None"), ("Latent (nearest)", "None"), (None, "None"), ("Lanczos", "Lanczos")]
)
def test_there_are_no_latent_upscalers(fake, host, chosen, upscaler):
    p = fake.make(enable_hr=True, hr_upscaler=chosen)
    assert host.request_from_processing(p).hires.upscaler == upscaler


def test_a_latent_upscaler_that_an_extension_brings_back_is_believed(fake, host):
    fake.modules["modules.shared"].latent_upscale_modes = {"Latent": {"mode": "bilinear"}}
    assert host.request_from_processing(fake.make(enable_hr=True, hr_upscaler="Latent")).hires.upscaler == "Latent"


# the reserve


def test_the_reserve_is_what_neo_keeps_not_what_its_option_says(fake, host):
    """*GPU Weights* as one run's override changes the option and not the reserve."""
    p = fake.make(override_settings={"setting_allocated_vram": 0.5})
    assert host.request_from_processing(p).forge.inference_memory_bytes == MINIMUM
    fake.modules["backend.memory_management"].minimum_inference_memory = lambda: 3.5 * GIB
    assert host.request_from_form("txt2img", {}).forge.inference_memory_bytes == int(3.5 * GIB)


def test_a_reserve_from_the_command_line_is_passed_on_with_its_figure(fake, host):
    fake.args.reserve_vram = 2.5
    assert host.request_from_form("txt2img", {}).host_args == ("--reserve-vram=2.5",)


OWN = 0.8 * GIB + RESERVED


@pytest.mark.parametrize(("asked", "kept"), [(4 * GIB, 4 * GIB), (GIB, int(OWN))])
def test_memory_is_kept_free_for_one_run_and_again_for_hires(fake, host, asked, kept):
    p = fake.make(enable_hr=True, hr_upscaler="None")
    host.prepare_run(p, keeping(host.request_from_processing(p), asked))
    p.sample([1])
    assert [int(size) for size in fake.kept] == [kept, kept]
    host.restore(p)
    fake.kept.clear()
    page_run(fake.make())
    assert fake.kept == [OWN]


def test_no_more_is_kept_than_neo_keeps_by_itself(fake, host):
    p = fake.make()
    host.prepare_run(p, host.request_from_processing(p))
    p.sample([1])
    assert fake.kept == [OWN] and host.runs.find(p) is None


def test_nothing_is_kept_once_the_run_has_ended(fake, host):
    p = fake.make()
    host.prepare_run(p, keeping(host.request_from_processing(p), 4 * GIB))
    host.end_run(p)
    p.sample([1])
    assert fake.kept == [OWN]


def test_a_form_that_is_looked_at_during_such_a_run_has_neos_own_figure(fake, host):
    p = fake.make()
    host.prepare_run(p, keeping(host.request_from_processing(p), 4 * GIB))
    assert host.request_from_form("txt2img", {}).forge.inference_memory_bytes == int(OWN)
    form = {"reserve_mb": 3072}
    assert host.request_from_form("txt2img", form).forge.inference_memory_bytes == 3 * GIB


# tiles


def always_tiled(fake):
    return fake.modules["backend.memory_management"].VAE_ALWAYS_TILED


def test_tiles_are_switched_on_after_every_scripts_process(fake, host):
    """Another script that writes the switch in its ``process`` would undo it otherwise."""
    memory = fake.modules["backend.memory_management"]

    class Resetting:
        args_from = args_to = 0

        def title(self):
            return "resetting"

        def process(self, p):
            memory.VAE_ALWAYS_TILED = False

    fake.runner.alwayson_scripts.append(Resetting())
    page_run(fake.make(own=[{"tiled": True}]))
    assert fake.record.decodes == ["tiled"]


@pytest.mark.parametrize("fault", [None, OutOfMemoryError("no room"), KeyboardInterrupt()])
def test_tiles_are_taken_back_after_success_a_fault_and_an_interrupt(fake, host, fault):
    p = fake.make(own=[{"tiled": True}])
    seen = []

    def sample(seeds):
        seen.append(always_tiled(fake))
        if fault is not None:
            raise fault
        return seeds

    p.sample = sample
    if fault is None:
        page_run(p)
    else:
        with pytest.raises(type(fault)):
            page_run(p)
    assert (seen, always_tiled(fake)) == ([True], False)


def test_neos_own_choice_of_tiles_stays(fake, host):
    fake.modules["backend.memory_management"].VAE_ALWAYS_TILED = True
    p = fake.make()
    assert host.request_from_processing(p).forge.never_oom_vae is True
    page_run(fake.make(own=[{"tiled": True}]))
    assert always_tiled(fake) is True


def test_a_page_that_asks_while_our_run_decodes_in_tiles_gets_its_own_answer(fake, host):
    p = fake.make(own=[{"tiled": True}])
    answers = []
    p.sample = lambda seeds: answers.append(host.request_from_form("txt2img", {}).forge.never_oom_vae) or seeds
    page_run(p)
    assert answers == [False]


def test_tiles_are_a_switch_of_ours_on_the_page(host):
    original = host.request_from_form("txt2img", {})
    changed = original.replace(forge=ForgeSettings(MINIMUM, never_oom_vae=True), batch_cond_uncond=False)
    writes = host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    assert [(item.field, item.previous, item.value) for item in writes] == [
        ("vae_tiled", False, True), ("cond_uncond_apart", False, True),
    ]  # fmt: skip


# types and attention


@pytest.mark.parametrize(
    ("choice", "flag", "family", "stored", "dtype"),
    [
        ("Automatic", None, "sdxl", "fp32", "fp16"), ("Automatic", None, "sdxl", "bf16", "fp16"),
        ("Automatic", None, "flux1", "bf16", "bf16"), ("Automatic", None, "flux1", "fp16", "fp16"),
        ("Automatic", None, "zimage", "fp32", "bf16"), ("Automatic (fp16 LoRA)", None, "flux1", "q8_0", "q8_0"),
        ("bnb-nf4", None, "sdxl", "fp16", "nf4"), ("float8-e4m3fn", None, "sdxl", "fp16", "fp8"),
        ("Automatic", "fp32_unet", "sdxl", "fp16", "fp32"), ("Automatic", "bf16_unet", "sdxl", "fp16", "bf16"),
    ],
)  # fmt: skip
def test_the_weights_type_follows_low_bits_flags_and_the_family(
    fake, host, monkeypatch, choice, flag, family, stored, dtype
):
    fake.opts.data["forge_unet_storage_dtype"] = choice
    if flag:
        setattr(fake.args, flag, True)
    inspected(monkeypatch, family=family, components=(SimpleNamespace(name="transformer", dtype=stored),))
    assert host.weights_dtype("model.safetensors", None) == dtype


@pytest.mark.parametrize(("function", "attention"), [("attention_sage", "sage"), ("attention_xformers", "xformers")])
def test_attention_is_the_one_that_neo_chose(fake, host, function, attention):
    fake.modules["backend.attention"].attention_function = SimpleNamespace(__name__=function)
    assert host.request_from_form("txt2img", {}).attention == attention


def test_a_stand_in_card_gets_what_neo_would_choose_there(fake, host, monkeypatch):
    virtual = Card("NVIDIA GeForce RTX 3060", 6 * GIB, 2 * GIB, 4 * GIB, "virtual")
    monkeypatch.setattr(host_webui, "current_card", lambda: virtual)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    fake.modules["backend.memory_management"].vae_dtype = lambda: "torch.float32"
    fake.modules["backend.attention"].attention_function = SimpleNamespace(__name__="attention_basic")
    request = host.request_from_form("txt2img", {})
    assert (request.attention, request.vae.dtype, request.model.weights_dtype) == ("sdpa", "bf16", "fp16")


# failures


def failing(fake, fault):
    p = fake.make()

    def sample(seeds):
        raise fault

    p.sample = sample
    return p


def test_the_page_says_what_ran_out_and_where_instead_of_oom_and_neo_still_unloads(fake, host):
    result, shown = fake.page(failing(fake, OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")))
    assert result is None and fake.unloads == 1
    assert shown.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "VRAM Guard: this happened" in shown and "512×512, batch size 1" in shown


def test_a_fault_that_is_not_about_memory_keeps_neos_own_text(fake, host):
    assert fake.page(failing(fake, ValueError("no such sampler")))[1] == "ValueError: no such sampler"
    assert fake.unloads == 0


def test_a_version_without_that_step_keeps_its_word(fake, host):
    del fake.modules["modules.ui"].cleanup
    with pytest.raises(AttributeError):
        fake.page(failing(fake, OutOfMemoryError("CUDA out of memory.")))
    assert fake.modules["modules_forge.main_thread"].last_exception == "OOM"


def test_nothing_of_ours_says_the_words_that_end_neos_thread(fake, host, monkeypatch):
    """Neo takes any fault with "out of memory" in its text for one of the device, and on the CPU dies of that."""
    small = Card("NVIDIA GeForce RTX 3060", GIB, GIB // 2, GIB // 2, "virtual")
    monkeypatch.setattr(host_webui, "current_card", lambda: small)
    for language in ("None", "pt_BR", "es_ES"):
        fake.opts.data["localization"] = language
        _, shown = fake.page(fake.make(width=4096, height=4096, own=[{"mode": "refuse"}]))
        assert shown.startswith(f"{Refused.__name__}: ") and not fake.is_dead


def test_the_unloaded_extension_leaves_neos_functions_as_they_were(fake, host):
    thread, processing = fake.modules["modules_forge.main_thread"], fake.modules["modules.processing"]
    ours = (thread.run_and_wait_result, processing.process_images_inner)
    fake.unload_scripts()
    theirs = (thread.run_and_wait_result, processing.process_images_inner)
    assert all(one is not other and not hasattr(other, "__wrapped__") for one, other in zip(ours, theirs, strict=True))


def test_reload_ui_wraps_neos_functions_once(fake, host):
    for _ in range(2):
        fake.unload_scripts()
        fake.load_scripts()
    wrapped = fake.modules["modules_forge.main_thread"].run_and_wait_result
    assert not hasattr(wrapped.__wrapped__, "__wrapped__")


def test_our_warnings_reach_the_log_although_neo_shows_errors_alone(fake, host):
    assert logging.getLogger("vram_guard").isEnabledFor(logging.WARNING)


def test_neo_says_its_version(host):
    assert host.version() == "neo-2.26"


def test_run_in_a_run_keeps_the_outer_ones_tiles(fake, host):
    outer = fake.make(own=[{"tiled": True}])
    decoded = []

    def sample(seeds):
        page_run(fake.make(Txt2Img))
        decoded.append(always_tiled(fake))
        return seeds

    outer.sample = sample
    page_run(outer)
    assert (decoded, always_tiled(fake)) == ([True], False)
