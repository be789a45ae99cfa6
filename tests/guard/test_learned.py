"""The guard with what earlier runs have taught, on the Lab's virtual card."""

from __future__ import annotations

import pytest

from lib_vram.guard import guard as module
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.lab import rescue, run
from lib_vram.units import MIB

OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 12.00 GiB of which 0 bytes is free."
)
FORM = {
    "lab_total_gib": 12, "lab_others_gib": 1, "lab_mode": "Ask", "checkpoint": "sd_xl_base_1.0.safetensors",
    "width": 1024, "height": 1024, "batch_size": 1, "batch_count": 1, "prompt": "a boat",
}  # fmt: skip


@pytest.fixture
def guard(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SECONDS_A_PHASE", 0)
    made = Guard(LabHost())
    made.learned.open(tmp_path)
    yield made
    made.learned.recorder.close()


def generate(guard, argument="", **changes):
    states = list(run.generate(guard, "txt2img", {**FORM, **changes}, argument, "en"))
    guard.learned.recorder.settle()
    return states[-1]


def check(guard, **changes):
    return guard.check_form("txt2img", {**FORM, **changes})


def out_of_memory_in(monkeypatch, name, more=""):
    """Let the virtual card fail in the phase ``name`` although it was computed to fit, as a heavier machine would."""
    from lib_vram.errors import DeviceOutOfMemory
    from lib_vram.estimate.simulate import PhaseOutOfMemory

    original = rescue.simulate_steps

    def steps(request):
        for phase in original(request):
            if phase.name == name:
                text = f"{OUT_OF_MEMORY}{more}"
                fault = DeviceOutOfMemory(requested_bytes=1, limit_bytes=1, allocated_bytes=1, reserved_bytes=1)
                raise PhaseOutOfMemory(fault, name, 1, text)
            yield phase

    monkeypatch.setattr(rescue, "simulate_steps", steps)


def test_a_guard_that_was_not_opened_keeps_nothing_and_corrects_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "SECONDS_A_PHASE", 0)
    guard = Guard(LabHost())
    list(run.generate(guard, "txt2img", FORM, "", "en"))
    request = guard.host.request_from_form("txt2img", FORM)
    assert guard.estimate(request) is module.estimate(request)
    assert guard.learned.store is None


def test_three_runs_tighten_the_interval_and_say_so(guard):
    before = check(guard).estimate
    for _ in range(3):
        generate(guard)
    after = check(guard).estimate
    assert after.high_bytes - after.low_bytes < 0.3 * (before.high_bytes - before.low_bytes)
    assert after.notes[0].key == "learning.note_runs"
    assert before.verdict == after.verdict == "fits"


def test_a_restart_remembers(guard, tmp_path):
    for _ in range(3):
        generate(guard)
    again = Guard(LabHost())
    again.learned.open(tmp_path)
    assert check(again).estimate == check(guard).estimate


def test_another_flag_is_another_machine(guard):
    for _ in range(3):
        generate(guard)
    assert check(guard, lab_flags="--medvram").estimate.notes[0].key != "learning.note_runs"


def test_what_failed_once_is_warned_of_and_planned_for(guard, monkeypatch):
    wanted = {"batch_size": 10}
    assert check(guard, **wanted).estimate.verdict in ("fits", "tight")
    with monkeypatch.context() as broken:
        out_of_memory_in(broken, "sampling")
        assert "OutOfMemoryError" in generate(guard, "run", **wanted).log_html
    after = check(guard, **wanted)
    assert after.estimate.verdict == "wont_fit"
    assert after.plan.fits
    assert after.plan.estimate.verdict != "wont_fit"
    assert after.plan.request.device == after.request.device
    assert after.plan.request.images == after.request.images
    assert after.plan.request != after.request


def test_the_fix_in_the_hook_follows_what_was_learned(guard, monkeypatch):
    with monkeypatch.context() as broken:
        out_of_memory_in(broken, "sampling")
        generate(guard, "run", batch_size=10)
    last = generate(guard, "fix", batch_size=10)
    assert len(last.images) == 10
    assert "VRAM Guard: batch 10x1" in last.infotext_html


def test_a_failure_because_of_another_program_teaches_nothing(guard, monkeypatch):
    before = check(guard).estimate.verdict
    with monkeypatch.context() as broken:
        others_hold_half = " Including non-PyTorch memory, this process has 6.00 GiB memory in use."
        out_of_memory_in(broken, "sampling", others_hold_half)
        generate(guard, "run")
    assert check(guard).estimate.verdict == before


def test_what_was_kept_is_the_run_after_the_fix(guard):
    generate(guard, "fix", batch_size=16)
    (kept,) = guard.learned.store.runs()
    assert kept.request["batch_size"] * kept.request["batch_count"] == 16
    assert kept.request["batch_size"] < 16
    assert kept.outcome == "done"


def test_a_refused_run_is_not_kept(guard):
    generate(guard, "refuse", batch_size=16)
    assert guard.learned.store.runs() == ()


def test_a_fault_of_what_was_learned_stops_nothing(guard, monkeypatch):
    monkeypatch.setattr(guard.learned.recorder, "lessons", lambda request: 1 / 0)
    monkeypatch.setattr(guard.learned.recorder, "runs", lambda *_, **__: 1 / 0)
    assert len(generate(guard).images) == 1
    assert check(guard).estimate.verdict == "fits"


def test_what_is_kept_of_the_virtual_card_is_what_it_measured(guard):
    generate(guard)
    (kept,) = guard.learned.store.runs()
    assert [item.name for item in kept.phases] == ["text_encode", "sampling", "vae_decode"]
    for item in kept.phases:
        assert abs(item.peak.allocated_bytes - item.predicted.allocated_bytes) < 4 * MIB
    assert kept.machine.driver == "virtual"


def rescued_in_sampling(guard, monkeypatch, text="", **changes):
    """Let a run be rescued in sampling, as on a machine that needs more there than is computed."""
    original = rescue.simulate_steps

    def steps(request):
        for phase in original(request):
            if phase.name == "sampling":
                guard.session.rescued("sampling", "batch 4x1 -> 2x2", text)
            yield phase

    with monkeypatch.context() as broken:
        broken.setattr(rescue, "simulate_steps", steps)
        generate(guard, **changes)


def test_a_rescue_is_kept_and_its_run_teaches_that_it_ran_out(guard, monkeypatch):
    rescued_in_sampling(guard, monkeypatch, batch_size=4)
    (kept,) = guard.learned.store.rescues()
    assert (kept.phase, kept.action, kept.family, kept.is_rescued) == (
        "sampling", "batch 4x1 -> 2x2", "sdxl", True
    )  # fmt: skip
    assert guard.learned.store.runs()[0].is_rescued
    assert check(guard, batch_size=4).estimate.verdict == "wont_fit"


def test_a_rescue_that_no_need_explains_raises_nothing_and_a_second_one_warns(guard, monkeypatch):
    before = check(guard, width=256, height=256).estimate
    seen = []
    for _ in range(2):
        rescued_in_sampling(guard, monkeypatch, width=256, height=256)
        after = check(guard, width=256, height=256).estimate
        seen.append((after.verdict, after.notes[0].key, after.high_bytes <= before.high_bytes + 64 * MIB))
    assert seen == [("fits", "learning.note_doubt", True), ("tight", "learning.note_doubts", True)]


@pytest.mark.parametrize(("free", "verdict"), [("12.00 MiB", "wont_fit"), ("5.00 GiB", "fits")])
def test_the_text_of_the_error_that_a_run_was_rescued_from_says_whether_the_card_was_full(
    guard, monkeypatch, free, verdict
):
    text = (
        f"CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 12.00 GiB of which {free} is "
        f"free."
    )
    rescued_in_sampling(guard, monkeypatch, text, batch_size=4)
    assert check(guard, batch_size=4).estimate.verdict == verdict
    assert text not in guard.learned.store.path.read_bytes().decode("latin-1")
