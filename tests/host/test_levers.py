"""What one run asks of the host for less memory: in force while it samples, and as it was after it, however it ends."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate
from lib_vram.host import levers_storage
from lib_vram.plan.levers import has_lever
from lib_vram.plan.result import Plan
from lib_vram.request import IdleModel, SystemSpec
from tests.fakehost.processing import api_run, grid_cells, page_run
from tests.fakehost.webui import Module

GIB, MIB = 1024**3, 1024**2
FP8_HOSTS = ("a1111", "forge", "neo")


@pytest.fixture(autouse=True)
def fp8_is_there(monkeypatch):
    monkeypatch.setattr(levers_storage, "can_store_fp8", lambda: True)


@pytest.fixture
def host(fake):
    return callbacks.guard().host


def own(**argument):
    """Return the argument of a run that nobody estimates."""
    return [{"mode": "off", **argument}]


def fails(p):
    def sample(*_):
        type(p).sample(p, [1])
        raise MemoryError("CUDA out of memory")

    p.sample = sample


ENDS = {
    "success": page_run,
    "failure": lambda p: (fails(p), api_run(p)),
    "interrupt": lambda p: (
        setattr(p.host.modules["modules.shared"], "state", SimpleNamespace(interrupted=False)),
        setattr(p, "sample", lambda seeds: (_interrupt(p), type(p).sample(p, seeds))[1]),
        page_run(p),
    ),
}


def _interrupt(p):
    p.host.modules["modules.shared"].state.interrupted = True


@pytest.fixture(params=list(ENDS))
def run(request):
    """A run that ends well, fails while it samples, or is interrupted."""
    return ENDS[request.param]


def state(fake):
    """Return everything of the host that a lever could have left otherwise."""
    memory = fake.modules.get("backend.memory_management") or fake.modules.get("ldm_patched.modules.model_management")
    functions = [getattr(memory, name, None) for name in ("minimum_inference_memory", "extra_reserved_memory")]
    hijack = fake.modules.get("modules.sd_hijack")
    return dict(fake.opts.data), functions, getattr(hijack, "current_optimizer", None), getattr(fake, "told", None)


# live preview


@pytest.mark.parametrize(
    ("shown", "asked", "then"), [("TAESD", "approx", "cheap"), ("TAESD", "off", "off"), ("Approx NN", "approx", "same")]
)
def test_the_live_preview_is_less_for_one_run(fake, host, run, shown, asked, then):
    fake.opts.data["show_progress_type"] = shown
    before = state(fake)
    run(fake.make(own=own(live_preview=asked)))
    seen = fake.record.options[0]
    cheap = "RGB" if fake.name == "neo" else "Approx cheap"
    assert seen["live_previews_enable"] is (then != "off")
    assert seen["show_progress_type"] == {"cheap": cheap, "off": shown, "same": shown}[then]
    assert state(fake) == before


def test_a_preview_that_is_off_is_not_switched_on(fake, host):
    fake.opts.data["live_previews_enable"] = False
    p = fake.make(own=own(live_preview="approx"))
    assert host.request_from_processing(p).live_preview == "off"
    page_run(p)
    assert fake.record.options[0]["live_previews_enable"] is False


def test_a_plan_that_shows_less_is_written_into_our_control(fake, host):
    fake.opts.data["show_progress_type"] = "TAESD"
    original = host.request_from_form("txt2img", {})
    changed = original.replace(live_preview="approx")
    assert original.live_preview == "taesd"
    assert writes(host, original, changed) == {"live_preview": "approx"}
    assert host.request_from_form("txt2img", {"live_preview": "approx"}).live_preview == "approx"


def writes(host, original, changed):
    """Return what a plan that leads to ``changed`` writes into the page, by field."""
    return {
        item.field: item.value for item in host.field_writes(Plan(True, (), changed, Estimate("fits", GIB)), original)
    }


def test_a_form_that_is_looked_at_in_the_middle_of_a_run_has_the_users_settings(fake, host):
    fake.opts.data["show_progress_type"] = "TAESD"
    p = fake.make(own=own(live_preview="off", fp8_weights=True, attention="sub_quad", reserve_mb=5000))

    def look():
        return dataclasses.replace(host.request_from_form("txt2img", {}), system=SystemSpec())

    before, during = look(), []
    p.sample = lambda seeds: (during.append(look()), type(p).sample(p, seeds))[1]
    page_run(p)
    assert during == [before]


# models that the run does not use


@pytest.fixture
def restorer(fake):
    """A face restorer that has worked and stayed on the card."""
    made = SimpleNamespace(net=Module(350 * MIB))
    fake.modules["modules.shared"].face_restorers.append(made)
    fake.modules["modules.devices"] = fake.modules.get("modules.devices") or fake.module("modules.devices")
    fake.modules["modules.devices"].torch_gc = lambda: None
    return made


def test_a_face_restorer_on_the_card_is_idle_unless_faces_are_restored(fake, host, restorer):
    assert host.request_from_form("txt2img", {}).idle_models == (IdleModel("face_restore", 350 * MIB),)
    assert host.request_from_processing(fake.make(restore_faces=True)).idle_models == ()


def test_idle_models_are_sent_away_before_the_run_computes_and_only_when_asked(fake, host, restorer, run):
    page_run(fake.make(own=own()))
    assert fake.record.idle == [1]
    run(fake.make(own=own(unload_idle=True)))
    assert fake.record.idle[1:] == [0] and not restorer.net.is_on_card


def test_a_plan_that_unloads_is_done_and_written_into_our_control(fake, host, restorer):
    p = fake.make()
    original = host.request_from_processing(p)
    changed = original.replace(idle_models=())
    assert writes(host, original, changed) == {"unload_idle": True}
    assert host.request_from_form("txt2img", {"unload_idle": True}).idle_models == ()
    host.prepare_run(p, changed)
    assert not restorer.net.is_on_card


def test_a_restorers_helper_is_not_made_by_being_asked_for(fake, host):
    class Restorer:
        net = None

        @property
        def face_helper(self):
            raise AssertionError("this downloads")

    fake.modules["modules.shared"].face_restorers.append(Restorer())
    assert host.request_from_form("txt2img", {}).idle_models == ()


@pytest.fixture
def kept_upscaler(fake, restorer):
    """The upscaler of SwinIR, which keeps the model that it has worked with."""
    scaler = SimpleNamespace(_cached_model=SimpleNamespace(model=Module(60 * MIB)), _cached_model_config=("file", 192))
    found = [SimpleNamespace(name="Lanczos", scaler=SimpleNamespace()), SimpleNamespace(name="SwinIR", scaler=scaler)]
    shared = fake.modules["modules.shared"]
    shared.face_restorers.clear()
    shared.sd_upscalers = [*getattr(shared, "sd_upscalers", ()), *found]
    return scaler


def test_a_kept_upscaler_is_idle_unless_the_second_pass_uses_it(host, kept_upscaler):
    assert host.request_from_form("txt2img", {}).idle_models == (IdleModel("upscaler", 60 * MIB),)
    hires = {"enable_hr": True, "hr_scale": 2, "hr_upscaler": "SwinIR"}
    assert host.request_from_form("txt2img", hires).idle_models == ()


def test_a_kept_upscaler_is_forgotten_so_that_it_is_read_anew_at_its_next_use(fake, host, kept_upscaler, run):
    run(fake.make(own=own(unload_idle=True)))
    assert (kept_upscaler._cached_model, kept_upscaler._cached_model_config) == (None, None)


@pytest.fixture
def managed(fake):
    """A control model that the memory manager of Forge's line has loaded beside the checkpoint in use."""
    name = "backend.memory_management" if fake.name in ("forge", "neo") else "ldm_patched.modules.model_management"
    if fake.name == "a1111":
        pytest.skip("A1111 has no memory manager")
    models, memory = fake.modules["modules.sd_models"], fake.modules[name]
    unet, other = Module(GIB), type("ControlNet", (Module,), {})(700 * MIB)
    info = models.checkpoints_list["model.safetensors"]
    patchers = [SimpleNamespace(model=model) for model in (unet, other)]
    fake.load_model()
    models.model_data.sd_model = SimpleNamespace(
        sd_checkpoint_info=info,
        forge_objects=SimpleNamespace(
            unet=SimpleNamespace(model=unet, model_dtype=lambda: "torch.float16"),
            vae=SimpleNamespace(vae_dtype="torch.bfloat16"),
        ),
    )
    memory.current_loaded_models += [SimpleNamespace(model=patcher, device="cuda:0") for patcher in patchers]
    return SimpleNamespace(unet=unet, other=other, memory=memory)


def test_what_the_memory_manager_keeps_beside_the_checkpoint_is_idle_while_no_unit_is_on(host, managed):
    assert host.request_from_form("txt2img", {}).idle_models == (IdleModel("controlnet", 700 * MIB),)
    units = [{"enabled": True, "model": "canny"}]
    assert host.request_from_form("txt2img", {"controlnets": units}).idle_models == ()


def test_it_is_sent_away_through_the_manager_and_the_checkpoint_stays(fake, host, managed):
    p = fake.make(own=own(unload_idle=True))
    host.prepare_run(p, host.request_from_processing(p))
    assert not managed.other.is_on_card and managed.unet.is_on_card
    assert [loaded.model.model for loaded in managed.memory.current_loaded_models] == [managed.unet]


def test_before_another_checkpoint_is_loaded_nothing_counts_as_idle(fake, host, managed):
    fake.modules["modules.sd_models"].model_data.sd_model.sd_checkpoint_info = SimpleNamespace(filename="other")
    assert host.request_from_form("txt2img", {}).idle_models == ()


# upscalers


@pytest.mark.parametrize(
    ("upscaler", "tile"), [("ESRGAN_4x", 192), ("DAT x4", 256), ("Lanczos", None), ("Latent", None)]
)
def test_the_tile_of_the_chosen_upscaler_is_in_the_request(fake, host, upscaler, tile):
    form = {"enable_hr": True, "hr_scale": 2, "hr_upscaler": upscaler}
    assert host.request_from_form("txt2img", form).upscaler_tile == tile


def test_upscalers_work_in_smaller_tiles_for_one_run(fake, host, run):
    fake.opts.data |= {"ESRGAN_tile": 0, "DAT_tile": 64}
    before = state(fake)
    run(fake.make(own=own(upscaler_tile=128)))
    assert (fake.record.options[0]["ESRGAN_tile"], fake.record.options[0]["DAT_tile"]) == (128, 64)
    assert state(fake) == before


def test_a_plan_with_a_smaller_tile_is_done_and_written_into_our_control(fake, host):
    form = {"enable_hr": True, "hr_scale": 2, "hr_upscaler": "ESRGAN_4x"}
    original = host.request_from_form("txt2img", form)
    changed = original.replace(upscaler_tile=96)
    assert writes(host, original, changed) == {"upscaler_tile": 96}
    assert host.request_from_form("txt2img", form | {"upscaler_tile": 96}).upscaler_tile == 96
    p = fake.make(enable_hr=True, hr_upscaler="ESRGAN_4x")
    host.prepare_run(p, host.request_from_processing(p).replace(upscaler_tile=96))
    assert p.override_settings == {"ESRGAN_tile": 96, "DAT_tile": 96}


# weights in fp8


def test_weights_are_stored_in_fp8_for_one_run_where_the_host_can(fake, host, run):
    before = state(fake)
    run(fake.make(own=own(fp8_weights=True)))
    assert fake.record.weights == (["fp8"] if fake.name in FP8_HOSTS else ["fp16"])
    assert state(fake) == before
    fake.modules["modules.shared"].state = None
    page_run(fake.make(own=own()))
    assert fake.record.weights[-1] == "fp16" and len(fake.record.weights) == 2


def test_a_second_run_in_fp8_does_not_read_the_model_again(fake, host):
    if fake.name not in ("a1111", "forge"):
        pytest.skip("counted on these two")
    for _ in range(2):
        page_run(fake.make(own=own(fp8_weights=True)))
    assert fake.record.weights == ["fp8", "fp8"] and fake.record.models_loaded == 1


def test_a_plan_in_fp8_is_written_into_our_control(fake, host):
    if not has_lever(host.name, "fp8_storage"):
        assert "fp8_weights" not in host.own_controls
        return
    original = host.request_from_form("txt2img", {})
    changed = original.replace(model=dataclasses.replace(original.model, storage_dtype="fp8"))
    assert writes(host, original, changed) == {"fp8_weights": True}
    assert host.request_from_form("txt2img", {"fp8_weights": True}).model == changed.model


def test_without_the_type_nothing_is_stored_in_it(fake, host, monkeypatch):
    monkeypatch.setattr(levers_storage, "can_store_fp8", lambda: False)
    p = fake.make(own=own(fp8_weights=True))
    assert host.request_from_processing(p).model.storage_dtype is None
    page_run(p)
    assert fake.record.weights == ["fp16"]


# the reserve


def test_the_reserve_of_one_run_is_as_asked_and_then_the_hosts_again(fake, host, run):
    if fake.name == "a1111":
        assert "reserve_mb" not in host.own_controls
        return
    before = state(fake)
    p = fake.make(own=own(reserve_mb=5000))
    assert host.request_from_processing(p).forge.inference_memory_bytes == 5000 * MIB
    run(p)
    if fake.name == "forge":
        assert fake.record.options[0]["forge_inference_memory"] == 5000
    else:
        kept = fake.kept if fake.name == "neo" else fake.reserves
        assert [int(size) for size in kept] == [5000 * MIB]
    assert state(fake) == before


# runs inside runs, copies, grids, reload


EVERYTHING = {
    "live_preview": "off", "fp8_weights": True, "attention": "sub_quad", "upscaler_tile": 64, "unload_idle": True,
    "reserve_mb": 5000,
}  # fmt: skip


def test_a_run_inside_a_run_leaves_the_outer_ones_levers_on(fake, host):
    outer = fake.make(own=own(**EVERYTHING))
    seen = []

    def sample(seeds):
        page_run(fake.make(own=own()))
        seen.append((fake.opts.live_previews_enable, fake.opts.ESRGAN_tile))
        return type(outer).sample(outer, seeds)

    before = state(fake)
    outer.sample = sample
    page_run(outer)
    assert seen == [(False, 64)] and state(fake) == before


def test_a_run_inside_a_run_with_the_same_levers_leaves_them_on_too(fake, host):
    outer = fake.make(own=own(**EVERYTHING))
    seen = []

    def sample(seeds):
        page_run(fake.make(own=own(**EVERYTHING)))
        seen.append((fake.opts.live_previews_enable, fake.opts.ESRGAN_tile))
        return type(outer).sample(outer, seeds)

    before = state(fake)
    outer.sample = sample
    page_run(outer)
    assert seen == [(False, 64)] and state(fake) == before


def test_each_cell_of_a_grid_has_its_levers_and_nothing_stays_after_the_next_run(fake, host):
    before = state(fake)
    p = fake.make(own=own(**EVERYTHING))
    grid_cells(p, [{"width": 512}, {"width": 576}])
    assert [options["live_previews_enable"] for options in fake.record.options] == [False, False]
    p.close()
    page_run(fake.make(own=own()))
    assert state(fake) == before


def test_reload_in_the_middle_of_a_run_takes_the_levers_back(fake, host):
    before = state(fake)
    p = fake.make(own=own(**EVERYTHING))
    fake.runner.run_hook("before_process", p)
    fake.unload_scripts()
    assert state(fake) == before and p.override_settings == {}


@pytest.mark.parametrize(
    ("lever", "control"),
    [
        ("free_idle_models", "unload_idle"), ("live_preview", "live_preview"), ("attention", "attention"),
        ("fp8_storage", "fp8_weights"), ("upscaler_tile", "upscaler_tile"), ("reserve", "reserve_mb"),
    ],
)  # fmt: skip
def test_what_a_plan_may_offer_has_a_control_in_the_accordion(fake, host, lever, control):
    assert has_lever(fake.name, lever) is (control in host.own_controls)
