"""A run from hook to hook, with torch's counters as the hooks find them."""

from __future__ import annotations

import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib_vram.learning import recorder as module
from lib_vram.learning.counters import Counters
from lib_vram.learning.peaks import Peak
from lib_vram.learning.record import Rescue
from lib_vram.learning.recorder import Recorder
from lib_vram.learning.store import Store, record_rescue
from lib_vram.machine.card import Card, Holder
from lib_vram.units import GIB, MIB
from tests.learning.makers import MACHINE, REQUEST, estimate, phase, record
from tests.learning.makers import run as a_run

EXPECTED = estimate(phase("text_encode", floor=50 * MIB), phase("sampling", floor=300 * MIB), phase("vae_decode"))
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WEIGHTS = 5000 * MIB


class Torch:
    """torch's counters: what is allocated now, and the peak since the host's last reset."""

    def __init__(self):
        self.now = self.peak = WEIGHTS
        self.asked = 0

    def works(self, bytes_more):
        self.peak = max(self.peak, self.now + bytes_more)

    def read(self, index):
        self.asked += 1
        return Counters(self.now, self.now + GIB, self.peak, self.peak + GIB)


class Run:
    """What the hosts call p."""


@pytest.fixture
def torch():
    return Torch()


@pytest.fixture
def recorder(tmp_path, torch):
    made = Recorder(Store(tmp_path), lambda request: MACHINE, lambda request: EXPECTED, lambda: None, torch.read)
    yield made
    made.close()


def generate(recorder, torch, run=None, request=REQUEST, decode=2100 * MIB):
    run = run or Run()
    recorder.opened(request)
    recorder.phase("load")
    recorder.runs(run, request, steps=20)
    torch.works(40 * MIB)
    recorder.phase("sampling")
    torch.works(310 * MIB)
    recorder.phase("vae_decode")
    torch.works(decode)
    return run


def kept(recorder):
    recorder.settle()
    return recorder.store.runs()


def test_every_phase_is_kept_with_what_was_computed_for_it(recorder, torch):
    recorder.ended(generate(recorder, torch))
    (run,) = kept(recorder)
    found = {item.name: (item.peak.allocated_bytes, item.peak.is_exact) for item in run.phases}
    assert found == {
        "text_encode": (WEIGHTS + 40 * MIB, True), "sampling": (WEIGHTS + 310 * MIB, True),
        "vae_decode": (WEIGHTS + 2100 * MIB, True),
    }  # fmt: skip
    assert run.phases[2].predicted.allocated_bytes == WEIGHTS + 2000 * MIB
    assert (run.outcome, run.verdict, run.steps, run.available_bytes) == ("done", "fits", 20, 11 * GIB)


def test_what_is_learned_is_there_for_the_next_estimate(recorder, torch):
    assert recorder.lessons(REQUEST).runs == 0
    recorder.ended(generate(recorder, torch))
    recorder.settle()
    assert recorder.lessons(REQUEST).runs == 1


def test_a_second_run_below_the_first_ones_peak_is_kept_and_teaches_nothing_about_it(recorder, torch):
    for _ in range(2):
        recorder.ended(generate(recorder, torch))
    recorder.settle()
    _, second = recorder.store.runs()
    assert [item.peak.is_exact for item in second.phases] == [False] * 3
    (seen,) = {len(found) for found in recorder.lessons(REQUEST).observations.values()}
    assert seen == 1


def test_the_request_that_runs_is_the_one_after_a_fix(recorder, torch):
    run = Run()
    recorder.opened(REQUEST.replace(batch_size=8))
    recorder.runs(run, REQUEST.replace(batch_size=2))
    recorder.ended(run)
    assert kept(recorder)[0].request["batch_size"] == 2


def test_several_batches_of_a_run_are_one_phase_with_the_larger_peak(recorder, torch):
    run = generate(recorder, torch)
    recorder.phase("sampling")
    recorder.phase("vae_decode")
    torch.works(2200 * MIB)
    recorder.ended(run)
    decode = kept(recorder)[0].phases[-1]
    assert (decode.name, decode.peak.allocated_bytes) == ("vae_decode", WEIGHTS + 2200 * MIB)


def test_a_run_inside_is_the_detailers_part_of_the_outer_one(recorder, torch):
    outer, inner = generate(recorder, torch), Run()
    recorder.runs(inner, REQUEST.replace(width=512))
    recorder.phase("sampling")
    torch.works(3000 * MIB)
    recorder.ended(inner)
    recorder.ended(outer)
    (run,) = kept(recorder)
    assert {item.name: item.peak.allocated_bytes for item in run.phases}["detailer"] == WEIGHTS + 3000 * MIB
    assert run.request["width"] == REQUEST.width


def test_a_failed_run_is_kept_with_where_and_how_much_was_missing(recorder, torch):
    generate(recorder, torch)
    recorder.failed(OUT_OF_MEMORY)
    (run,) = kept(recorder)
    assert (run.outcome, run.fault.phase, run.error) == ("failed", "vae_decode", "gpu_memory")
    assert recorder.lessons(REQUEST).lacks


@pytest.mark.parametrize("before", ["opened", "nothing"])
def test_a_run_that_was_refused_is_not_kept(recorder, before):
    if before == "opened":
        recorder.opened(REQUEST)
    recorder.dropped()
    recorder.ended(Run())
    assert kept(recorder) == ()


def test_a_run_of_which_nothing_is_known_is_not_kept(recorder):
    run = Run()
    recorder.opened(None)
    recorder.runs(run, REQUEST)
    recorder.ended(run)
    assert kept(recorder) == ()


def test_a_run_that_never_ended_is_given_up_for_the_next(recorder, torch):
    generate(recorder, torch)
    recorder.ended(generate(recorder, torch))
    assert [item.outcome for item in kept(recorder)] == ["done"]


def test_a_stopped_run_is_kept_and_teaches_nothing(recorder, torch):
    recorder.ended(generate(recorder, torch), "stopped")
    assert kept(recorder)[0].outcome == "stopped"
    assert recorder.lessons(REQUEST).observations == {}


def test_a_rescued_run_is_kept_and_teaches_only_that_it_ran_out(recorder, torch):
    module.use(recorder)
    run = generate(recorder, torch)
    record_rescue("vae_decode", "vae_tiled", is_rescued=True, images=1)
    recorder.ended(run)
    module.use(None)
    assert kept(recorder)[0].is_rescued
    (rescue,) = recorder.store.rescues()
    assert (rescue.family, rescue.action) == ("sdxl", "vae_tiled")
    assert recorder.lessons(REQUEST).observations == {}
    assert recorder.lessons(REQUEST).lacks


def test_a_rescue_after_another_program_took_memory_teaches_nothing(tmp_path, torch, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr(module, "DEVICE_SECONDS", 0.0)
    card = Card("A", 12 * GIB, GIB, 5 * GIB, "nvml")
    recorder = Recorder(Store(tmp_path), lambda request: MACHINE, lambda request: EXPECTED, lambda: card, torch.read)
    run = generate(recorder, torch)
    before, end = torch.asked, time.monotonic() + 5
    while torch.asked < before + 3 and time.monotonic() < end:
        time.sleep(0.002)
    recorder.keep_rescue(Rescue(1.0, "a1111", "vae_decode", "again", True))
    recorder.ended(run)
    (made,) = kept(recorder)
    assert (made.is_rescued, made.fault) == (True, None)
    recorder.close()


def test_the_virtual_card_measures_by_itself(recorder):
    run = Run()
    recorder.opened(REQUEST)
    recorder.runs(run, REQUEST)
    recorder.measured("sampling", Peak(WEIGHTS, WEIGHTS, WEIGHTS, True, True), 460 * MIB)
    recorder.phase("sampling")
    recorder.ended(run)
    (made,) = kept(recorder)
    assert [(item.name, item.peak.allocated_bytes) for item in made.phases] == [("sampling", WEIGHTS)]
    assert made.context_bytes == 460 * MIB


def test_between_the_hooks_the_thread_reads_torch_and_the_card(tmp_path, torch, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.002)
    monkeypatch.setattr(module, "DEVICE_SECONDS", 0.0)
    monkeypatch.setattr(module.os, "getpid", lambda: 77)
    card = Card("A", 12 * GIB, 4 * GIB, GIB, "nvml", holders=(Holder(77, "python", WEIGHTS + GIB + 400 * MIB),))
    recorder = Recorder(Store(tmp_path), lambda request: MACHINE, lambda request: EXPECTED, lambda: card, torch.read)
    torch.peak = 9 * GIB  # of an earlier run: the counter will not grow in this one
    run = Run()
    recorder.opened(REQUEST)
    recorder.runs(run, REQUEST)
    recorder.phase("sampling")
    torch.now = WEIGHTS + 100 * MIB
    before = torch.asked
    end = time.monotonic() + 5
    while torch.asked < before + 5 and time.monotonic() < end:
        time.sleep(0.002)
    torch.now = WEIGHTS
    recorder.ended(run)
    sampling = kept(recorder)[0].phases[-1]
    assert (sampling.peak.allocated_bytes, sampling.peak.is_exact) == (WEIGHTS + 100 * MIB, False)
    assert sampling.peak.device_bytes == 8 * GIB
    assert kept(recorder)[0].context_bytes in (400 * MIB, 300 * MIB)
    recorder.close()


def test_a_hook_takes_far_less_than_five_milliseconds(recorder, torch):
    begun = time.perf_counter()
    for _ in range(50):
        recorder.ended(generate(recorder, torch))
    assert (time.perf_counter() - begun) / 50 < 0.005


def test_a_disk_that_does_not_keep_up_holds_nothing_back(recorder, torch, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(recorder.store, "add", lambda run: gate.wait(5))
    for _ in range(module.MOST_WAITING + 20):
        recorder.ended(generate(recorder, torch))
    gate.set()
    recorder.settle()
    assert not recorder._queue.unfinished_tasks


def test_a_run_that_cannot_be_kept_does_not_keep_later_ones_from_it(recorder, torch, monkeypatch, caplog):
    add, faults = recorder.store.add, [ValueError("one that cannot be written")]
    monkeypatch.setattr(
        recorder.store, "add", lambda run: add(run) if not faults else (_ for _ in ()).throw(faults.pop())
    )
    for _ in range(2):
        recorder.ended(generate(recorder, torch))
    assert len(kept(recorder)) == 1
    assert "could not keep" in caplog.text


def test_nothing_is_made_before_the_first_run(tmp_path):
    folder = tmp_path / "history"
    made = Recorder(Store(folder), lambda request: MACHINE, lambda request: EXPECTED, lambda: None, lambda index: None)
    made.lessons(REQUEST)
    made.close()
    assert not folder.exists()
    assert not [
        thread for thread in threading.enumerate() if thread.name == "vram-guard-learning" and thread is made._thread
    ]


def test_what_waits_is_written_before_the_process_ends(recorder, torch):
    recorder.ended(generate(recorder, torch))
    recorder.close()
    assert len(recorder.store.runs()) == 1


def test_erasing_forgets_the_lessons_too(recorder, torch):
    recorder.ended(generate(recorder, torch))
    recorder.settle()
    assert recorder.forget()
    assert recorder.lessons(REQUEST).runs == 0


def test_a_rescue_without_a_run_is_kept(recorder):
    recorder.keep_rescue(Rescue(1.0, "forge", "sampling", "again", False))
    recorder.settle()
    assert len(recorder.store.rescues()) == 1


def test_without_a_card_the_time_is_kept_and_no_peak(tmp_path):
    nothing = Recorder(Store(Path(tmp_path)), lambda request: MACHINE, lambda request: EXPECTED, lambda: None,
                       lambda index: None)  # fmt: skip
    run = SimpleNamespace()
    nothing.opened(REQUEST)
    nothing.runs(run, REQUEST)
    nothing.phase("sampling")
    nothing.ended(run)
    (made,) = kept(nothing)
    assert [item.peak for item in made.phases] == [Peak(), Peak()]
    nothing.close()


def test_what_is_known_is_read_from_the_file_once_and_not_at_every_move_of_a_slider(recorder, torch, monkeypatch):
    run = generate(recorder, torch)
    time.sleep(0.002)  # a run of no time at all is no measure, and milliseconds are kept
    recorder.ended(run)
    recorder.settle()
    monkeypatch.setattr(recorder.store, "runs", lambda *_: 1 / 0)
    assert recorder.lessons(REQUEST).runs == 1
    assert recorder.seconds(REQUEST, 20).runs == 1
    assert recorder.seconds(REQUEST, None).runs == 1
    assert recorder.seconds(REQUEST, 30) is None
    assert recorder.seconds(REQUEST.replace(width=512), 20) is None


def test_a_reading_that_fails_in_the_middle_of_a_run_leaves_the_thread_alive(recorder, monkeypatch):
    monkeypatch.setattr(recorder, "_sample", lambda at: 1 / 0)
    assert recorder._sampled(0.0) > 0


OTHERWISE = {
    "host": "forge", "host_version": "1.11", "guard_version": "0.2", "torch": "2.6", "driver": "560.1",
    "card": "NVIDIA GeForce RTX 4060", "total_bytes": 8 * GIB, "flags": ("--medvram",),
    "alloc_conf": "expandable_segments:True",
}  # fmt: skip


@pytest.mark.parametrize("name", [item.name for item in fields(MACHINE)])
def test_what_was_learned_counts_no_more_once_anything_of_the_machine_is_another(tmp_path, torch, name):
    now = MACHINE
    made = Recorder(Store(tmp_path), lambda request: now, lambda request: EXPECTED, lambda: None, torch.read)
    for _ in range(3):
        made.store.add(a_run(record(phase("sampling"), off=500 * MIB)))
    assert made.lessons(REQUEST).runs == 3
    now = replace(MACHINE, **{name: OTHERWISE[name]})
    assert made.lessons(REQUEST).observations == {}
    now = MACHINE
    assert made.lessons(REQUEST).runs == 3
    made.close()


def test_a_clock_that_is_set_back_in_mid_run_makes_no_time_negative(recorder, torch, monkeypatch):
    monkeypatch.setattr(module.time, "time", iter([2000.0, 1000.0, 3.0, 2.0]).__next__)
    for _ in range(2):
        recorder.ended(generate(recorder, torch))
        recorder.settle()
    runs = recorder.store.runs()
    assert [run.at for run in runs] == [2000.0, 1000.0]
    assert all(run.seconds >= 0 and all(item.seconds >= 0 for item in run.phases) for run in runs)
    assert recorder.lessons(REQUEST).runs == 2


def test_questions_about_ever_other_machines_keep_no_more_than_a_few_in_memory(recorder):
    for number in range(module.MOST_MACHINES + 10):
        recorder._of(f"machine {number}")
    assert len(recorder._known) == module.MOST_MACHINES


def test_runs_of_one_start_are_known_as_such(recorder, torch, tmp_path):
    for _ in range(2):
        recorder.ended(generate(recorder, torch))
    first, second = kept(recorder)
    assert 0 < first.start == second.start <= first.at
