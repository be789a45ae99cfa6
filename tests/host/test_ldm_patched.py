"""What reForge and Forge Classic have in common."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host import webui as host_webui
from lib_vram.machine.card import Card
from lib_vram.request import ForgeSettings
from tests.fakehost.ldm_patched import OutOfMemoryError
from tests.fakehost.processing import Txt2Img, api_run, page_run

GIB = 1024**3
TEXT = "CUDA out of memory. Tried to allocate 2.25 GiB."


@pytest.fixture(params=["reforge", "classic"])
def host_name(request):
    return request.param


@pytest.fixture
def host(fake):
    return callbacks.guard().host


def keeping(host, fake, p, reserve_bytes):
    """Prepare the run of ``p`` with another reserve."""
    request = host.request_from_processing(p)
    host.prepare_run(p, request.replace(forge=ForgeSettings(reserve_bytes)))


# the reserve


def test_the_reserve_is_what_the_manager_keeps_free(fake, host):
    assert host.request_from_form("txt2img", {}).forge.inference_memory_bytes == fake.own_reserve_bytes


def test_one_runs_reserve_holds_in_every_phase_and_ends_with_the_run(fake, host):
    p = fake.make()
    keeping(host, fake, p, 3 * GIB)
    assert fake.memory.minimum_inference_memory() == 3 * GIB
    assert host.request_from_form("txt2img", {}).forge.inference_memory_bytes == fake.own_reserve_bytes
    p.close()
    assert fake.memory.minimum_inference_memory() == fake.own_reserve_bytes


def test_models_loaded_beside_another_reserve_are_sent_away_before_it_changes(fake, host):
    """Neither host takes weights back from a model that is there; Classic never completes one that is there in part."""
    for reserve_bytes, unloads in (
        (fake.own_reserve_bytes, 0),
        (3 * GIB, 1),
        (3 * GIB, 1),
        (fake.own_reserve_bytes, 2),
    ):
        p = fake.make()
        keeping(host, fake, p, reserve_bytes)
        p.close()
        assert fake.unloads == unloads


# types and attention


@pytest.mark.parametrize(
    ("card", "dtype"), [("NVIDIA GeForce RTX 3060", "bf16"), ("NVIDIA GeForce GTX 1080", "fp32"), ("Tesla T4", "fp32")]
)
def test_a_stand_in_card_gets_what_the_host_would_choose_there(fake, host, monkeypatch, card, dtype):
    virtual = Card(card, 6 * GIB, 2 * GIB, 4 * GIB, "virtual")
    monkeypatch.setattr(host_webui, "current_card", lambda: virtual)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))

    def attention_sub_quad(): ...

    fake.modules["ldm_patched.ldm.modules.attention"].optimized_attention = attention_sub_quad
    request = host.request_from_form("txt2img", {})
    assert (request.attention, request.vae.dtype, request.model.weights_dtype) == ("sdpa", dtype, "fp16")


@pytest.mark.parametrize(
    ("flag", "weights", "vae"),
    [
        ("unet_in_fp8_e4m3fn", "fp8", "bf16"), ("all_in_fp32", "fp32", "bf16"), ("unet_in_bf16", "bf16", "bf16"),
        ("vae_in_fp32", "fp16", "fp32"), ("vae_in_fp16", "fp16", "fp16"),
    ],
)  # fmt: skip
def test_types_follow_the_flags(fake, host, flag, weights, vae):
    setattr(fake.args, flag, True)
    request = host.request_from_form("txt2img", {})
    assert (request.model.weights_dtype, request.vae.dtype) == (weights, vae)


# failures


def failing(fake, fault, place="sample", **fields):
    """Return a run that raises ``fault`` where its UNet or its VAE works."""
    p = fake.make(Txt2Img, **fields)

    def apply_model(*arguments):
        raise fault

    def decode_first_stage(*arguments):
        raise fault

    if place == "sample":
        p.sample = apply_model
    else:
        fake.decode = decode_first_stage
    return p


def test_without_us_the_page_says_that_none_is_not_iterable(fake, host):
    fake.unload_scripts()
    assert fake.page(failing(fake, OutOfMemoryError(TEXT))) == "TypeError: 'NoneType' object is not iterable"


@pytest.mark.parametrize(("place", "phase"), [("sample", "sampling"), ("decode", "VAE decode")])
def test_the_page_shows_what_ran_out_where_and_at_which_size(fake, host, place, phase):
    shown = fake.page(failing(fake, OutOfMemoryError(TEXT), place, width=768, height=512, batch_size=2))
    where = f"VRAM Guard: this happened in {phase}, at 768×512, batch size 2."
    assert shown == f"OutOfMemoryError: {TEXT}\n{where}"


def test_the_log_keeps_it_too(fake, host, caplog):
    fake.page(failing(fake, OutOfMemoryError(TEXT)))
    said = [item.getMessage() for item in caplog.records if item.levelname == "ERROR"]
    assert len(said) == 1 and said[0].startswith("VRAM Guard: this happened in sampling") and TEXT in said[0]
    assert len(fake.record.log) == 1  # the host's own


def test_the_tab_explains_the_failure_that_the_host_has_kept_no_record_of(fake, host):
    p = failing(fake, OutOfMemoryError(TEXT))
    fake.page(p)
    failure = callbacks.guard().session.last_failure
    assert failure is not None
    assert TEXT in failure.text and "Traceback" in failure.text


def test_a_failure_inside_runs_inside_each_other_is_told_once(fake, host):
    told = []
    host.on_failure = lambda text, p: told.append(p)
    p = failing(fake, ValueError("no such sampler"))
    fake.page(p)
    assert told == [p]


def test_the_api_answers_with_the_cause_and_the_place(fake, host):
    status, answer = api_run(failing(fake, OutOfMemoryError(TEXT)))
    assert status == 500 and answer["error"] == "OutOfMemoryError"
    assert answer["errors"] == f"{TEXT}\nVRAM Guard: this happened in sampling, at 512×512, batch size 1."


def test_other_faults_travel_as_they_are(fake, host):
    assert fake.page(failing(fake, ValueError("no such sampler"))) == "ValueError: no such sampler"


def test_a_refusal_reaches_the_page_in_words(fake, host, monkeypatch):
    from lib_vram.guard.refusal import refuse

    p = fake.make()
    monkeypatch.setattr(
        callbacks.guard(), "before_process", lambda p, _: refuse(p, "VRAM Guard refused this generation.")
    )
    assert fake.page(p) == "Refused: VRAM Guard refused this generation."


def test_what_the_host_drops_elsewhere_stays_dropped(fake, host):
    """A change of the checkpoint in the settings runs on the same thread and shows nothing."""
    shown = fake.page(failing(fake, OutOfMemoryError(TEXT)), module="modules.sd_models")
    assert shown == "TypeError: 'NoneType' object is not iterable"


def test_the_frames_of_a_failed_step_do_not_keep_their_tensors(fake, host):
    import weakref

    class Tensor:
        pass

    seen = []
    p = fake.make()

    def apply_model(*arguments):
        latent = Tensor()
        seen.append(weakref.ref(latent))
        raise OutOfMemoryError(TEXT)

    p.sample = apply_model
    thread = fake.modules["modules_forge.main_thread"]

    def txt2img_function():
        return page_run(p)

    txt2img_function.__module__ = "modules.txt2img"
    with pytest.raises(OutOfMemoryError):
        thread.run_and_wait_result(txt2img_function)
    assert seen[0]() is None


def layers_over(function):
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count


def test_reload_ui_wraps_once_and_unloading_leaves_nothing(fake, host):
    thread, processing = fake.modules["modules_forge.main_thread"], fake.modules["modules.processing"]
    wrapped = (thread.run_and_wait_result, processing.process_images_inner)
    bare = tuple(inspect.unwrap(function) for function in wrapped)
    layers = layers_over(processing.process_images_inner)
    for _ in range(2):
        fake.unload_scripts()
        fake.load_scripts()
    assert thread.run_and_wait_result.__wrapped__ is bare[0]
    assert layers_over(processing.process_images_inner) == layers
    fake.unload_scripts()
    assert (thread.run_and_wait_result, processing.process_images_inner) == bare


def test_a_fault_in_the_telling_leaves_the_cause_as_it_was(fake, host, monkeypatch):
    monkeypatch.setattr("lib_vram.host.swallowed.phase_name", lambda *_: 1 / 0)
    assert fake.page(failing(fake, OutOfMemoryError(TEXT))) == f"OutOfMemoryError: {TEXT}"
