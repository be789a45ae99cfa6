"""What a failure teaches, and the change that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.diagnosis.numbers import Numbers
from lib_vram.errors import BadInput, DeviceOutOfMemory, Refused
from lib_vram.guard import rescue, rescue_rungs
from lib_vram.guard.rescue import Lesson, lesson_of
from lib_vram.guard.rescue_rungs import next_rung
from lib_vram.message import render
from lib_vram.request import Request

GIB = 1024**3


class OutOfMemoryError(RuntimeError):
    """What torch raises, by its name."""


TORCH = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 12.00 GiB of which 1.00 GiB is "
    "free. Including non-PyTorch memory, this process has 9.00 GiB memory in use. Of the allocated memory 8.00 GiB is "
    "allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)
NOT_MEMORY = (
    ValueError("size mismatch"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("A tensor with NaNs was produced in VAE."),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8589934592 bytes."),
    KeyError("memory"),
    Refused("sampling needs 9.0 GiB, CUDA out of memory"),
)
MEMORY = (
    OutOfMemoryError(TORCH),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("Could not allocate tensor with 4294967296 bytes. There is not enough GPU video memory available!"),
    RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB, max allowed: 9.00 GB)"),
    RuntimeError("HIP out of memory. Tried to allocate 1.00 GiB"),
    DeviceOutOfMemory(requested_bytes=1, limit_bytes=2, allocated_bytes=2, reserved_bytes=2),
)


def request(**changes):
    data = {
        "host": "a1111", "device": {"total_bytes": 12 * GIB, "used_by_others_bytes": GIB}, "model": {"family": "sdxl"},
        "width": 1024, "height": 1024,
    }  # fmt: skip
    return Request.from_dict(data | changes)


@pytest.mark.parametrize("error", MEMORY, ids=str)
def test_a_failure_for_want_of_the_cards_memory_is_known_however_it_is_worded(error):
    assert lesson_of(error, "sampling") is not None


@pytest.mark.parametrize("error", NOT_MEMORY, ids=str)
def test_no_other_error_teaches_anything(error):
    assert lesson_of(error, "sampling") is None


def test_an_error_is_known_by_what_it_was_raised_from():
    error = RuntimeError("the sampler failed")
    error.__cause__ = OutOfMemoryError(TORCH)
    assert lesson_of(error, "sampling") == lesson_of(OutOfMemoryError(TORCH), "sampling")


def test_the_room_is_what_the_process_has_and_what_was_free():
    lesson = lesson_of(OutOfMemoryError(TORCH), "vae_decode")
    assert (lesson.phase, lesson.room_bytes) == ("vae_decode", 10 * GIB)
    assert Lesson("sampling").room_bytes is None


@pytest.mark.parametrize(
    ("host", "phase", "tried", "changes", "line"),
    [
        ("a1111", "sampling", 1, {"batch_size": 4}, "batch 4x1 -> 2x2"),
        ("a1111", "sampling", 1, {"batch_size": 1, "batch_cond_uncond": False}, ""),
        ("a1111", "text_encode", 1, {"batch_size": 4}, ""),
        ("a1111", "vae_encode", 1, {"batch_size": 4}, ""),
        ("a1111", "hires_sampling", 1, {"hires": {"scale": 2.0}, "batch_cond_uncond": False}, ""),
        ("forge", "vae_decode", 1, {"batch_size": 4}, "VAE tiled"),
        ("neo", "vae_decode", 1, {}, "VAE tiled"),
    ],
)
def test_the_rung_changes_only_what_the_failed_step_can_be_done_again_with(host, phase, tried, changes, line):
    assert next_rung(request(host=host, **changes), Lesson(phase), tried).line == line


def test_the_second_pass_becomes_smaller_only_in_the_last_try():
    wanted = request(hires={"scale": 2.0}, batch_cond_uncond=False)
    assert [next_rung(wanted, Lesson("hires_sampling"), tried).request.hires.scale < 2.0 for tried in (1, 2)] == [
        False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("host", ["forge", "neo", "reforge", "classic"])
def test_hosts_that_move_weights_keep_more_free_for_computing(host):
    wanted = request(host=host)
    rung = next_rung(wanted, Lesson("sampling"), 1)
    assert rung.request.forge.inference_memory_bytes > wanted.forge.inference_memory_bytes
    assert rung.steps


def test_pictures_that_belong_together_stay_in_one_batch():
    rung = next_rung(request(batch_size=4), Lesson("sampling"), 1, may_split=False)
    assert (rung.request.batch_size, rung.request.batch_cond_uncond) == (4, False)


def test_nothing_is_changed_where_nothing_is_known():
    assert next_rung(None, Lesson("sampling"), 1) == rescue.Rung()


def test_a_model_that_cannot_be_computed_gets_the_leanest_step(monkeypatch):
    def unknown(*_):
        raise BadInput("model.family", got="x", takes="another")

    monkeypatch.setattr(rescue_rungs, "estimate", unknown)
    rung = next_rung(request(batch_size=4), Lesson("sampling"), 1)
    assert rung.line == "batch 4x1 -> 1x4; cond and uncond apart"


@given(
    host=st.sampled_from(("a1111", "forge", "neo", "reforge", "classic")),
    phase=st.sampled_from(("sampling", "hires_sampling", "vae_decode", "text_encode")),
    tried=st.integers(1, 2), batch=st.integers(1, 4), free=st.integers(1, 12),
)  # fmt: skip
def test_size_and_number_of_pictures_never_change(host, phase, tried, batch, free):
    before = request(host=host, batch_size=batch, hires={"scale": 1.5})
    numbers = Numbers(free_bytes=0, process_bytes=free * GIB)
    after = next_rung(before, Lesson(phase, numbers), tried).request
    assert (after.width, after.height, after.images, after.device) == (1024, 1024, batch, before.device)
    assert after.batch_size <= batch


def test_what_people_are_told_is_one_sentence_in_their_language():
    rung = next_rung(request(batch_size=4), Lesson("sampling"), 1)
    assert rescue.rescued_text("sampling", rung.steps, "en") == (
        "VRAM Guard rescued this run: sampling ran out of memory and was done again with a change: "
        f"{render(rung.steps[0])}."
    )
    assert rescue.rescued_text("text_encode", (), "pt").startswith("O VRAM Guard salvou esta geração")


def test_the_infotext_holds_each_rescue_once_beside_what_stands_there():
    parameters = {"VRAM Guard": "batch 4x1 -> 2x2"}
    for _ in range(2):
        rescue.record(parameters, "sampling", "batch 2x2 -> 1x4")
    assert parameters == {"VRAM Guard": "batch 4x1 -> 2x2; rescued in sampling; batch 2x2 -> 1x4"}
