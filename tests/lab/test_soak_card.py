"""The soak's machine differs from what is computed, and torch's words on it say no more than torch would."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lib_vram.diagnosis.diagnosis import diagnose
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.simulate import PhaseOutOfMemory
from lib_vram.host.lab import LabHost
from lib_vram.learning.faults import fault_of
from tools import soak_card
from tools.soak_card import Broken, Deviation, Machine

FORM = {"lab_total_gib": 12, "checkpoint": "sd_xl_base_1.0.safetensors", "width": 1024, "height": 1024}


@pytest.fixture
def request_():
    return LabHost().request_from_form("txt2img", FORM)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(soak_card, "NOISE", 0)
    made = Machine(random.Random(1))
    made.held_bytes = 0
    return made


def deviate(machine, request, phase, share, more_bytes=0):
    machine._deviations[(request.host, request.model.family, request.model.weights_dtype, phase)] = Deviation(
        share, more_bytes
    )


def failed(machine, request):
    with pytest.raises(PhaseOutOfMemory) as caught:
        list(machine.steps(request))
    return caught.value


def with_room(request, room_bytes):
    return request.replace(device=replace(request.device, used_by_others_bytes=request.device.total_bytes - room_bytes))


@pytest.mark.parametrize("share", [-0.05, 0.3])
def test_a_phase_takes_its_share_of_the_activations_more(machine, request_, share):
    computed = next(phase for phase in estimate(request_).phases if phase.name == "sampling")
    peaks = []
    for at in (0.0, share):
        deviate(machine, request_, "sampling", at)
        peaks += [phase.allocated_peak_bytes for phase in machine.steps(request_) if phase.name == "sampling"]
    assert peaks[1] - peaks[0] == int(share * computed.floor_bytes)


def test_it_runs_out_where_it_was_computed_to_run(machine, request_):
    expected = estimate(request_)
    tight = with_room(request_, expected.binding.needs_bytes)
    for phase in expected.phases:
        deviate(machine, request_, phase.name, 0.0)
    assert len(list(machine.steps(tight))) == 3
    deviate(machine, request_, expected.binding.name, 0.3)
    assert failed(machine, tight).phase == expected.binding.name


def test_the_words_of_the_failure_name_no_more_than_the_block_that_found_no_place(machine, request_):
    expected = estimate(request_)
    tight = with_room(request_, expected.binding.needs_bytes)
    deviate(machine, request_, expected.binding.name, 0.4)
    fault, kind = fault_of(failed(machine, tight).error_text, estimate(tight), (), None)
    assert kind == "gpu_memory"
    true_bytes = expected.binding.needs_bytes + int(0.4 * expected.binding.floor_bytes)
    assert estimate(tight).available_bytes < fault.demand_bytes < true_bytes


@pytest.mark.parametrize("event", ["squeeze", "pieces"])
def test_what_strikes_once_is_over_at_the_next_try(machine, request_, event):
    machine.event = event
    text = failed(machine, request_).error_text
    assert diagnose(text).cause == {"squeeze": "other_processes", "pieces": "fragmentation"}[event]
    assert len(list(machine.steps(request_))) == 3


def test_another_fault_is_none_of_memory(machine, request_):
    machine.event = "error"
    with pytest.raises(Broken):
        list(machine.steps(request_))


def test_another_driver_is_another_machine(machine, request_):
    list(machine.steps(request_))
    before = dict(machine._deviations)
    machine.renew()
    list(machine.steps(request_))
    assert before and machine._deviations != before
