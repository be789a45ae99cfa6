"""Verdicts, the binding phase and the figures that come out of residents and activations."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import BadInput
from lib_vram.estimate.estimator import could_fit, estimate, runs
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.timeline import timeline
from lib_vram.request import Request
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request, floor_bytes, physics

RESIDENT = (460 + 1654 + 242 + 166) * MIB


def on_card(total_bytes: int, **changes):
    return estimate(a_request(device={"total_bytes": total_bytes}, **changes), physics)


def test_a_phase_is_its_residents_and_its_activations():
    phase = estimate(a_request(), physics).phases[-1]
    floor = 16 * MIB + 2200 * 512 * 512
    assert (phase.name, phase.resident_bytes, phase.floor_bytes) == ("vae_decode", RESIDENT + 2 * MIB, floor)
    assert phase.peak_bytes == RESIDENT + 2 * MIB + floor
    assert dict(phase.resident_parts)["unet"] == 1654 * MIB


def test_phases_come_in_the_order_in_which_they_happen():
    request = a_request(mode="txt2img", hires={"scale": 2.0, "upscaler": "Lanczos"})
    names = [phase.name for phase in estimate(request, physics).phases]
    assert names == ["text_encode", "sampling", "hires_upscale", "hires_sampling", "vae_decode"]


def test_the_verdict_turns_exactly_at_minimum_and_comfortable():
    phase = estimate(a_request(), physics).binding
    needs, wants = phase.needs_bytes, phase.wants_bytes
    verdicts = [on_card(size).verdict for size in (needs - 1, needs, wants - 1, wants)]
    assert verdicts == ["wont_fit", "tight", "tight", "fits"]


def test_the_binding_phase_has_the_least_room():
    assert on_card(8 * GIB).binding_phase == "vae_decode"
    assert on_card(8 * GIB, batch_size=8).binding_phase == "sampling"


def test_peak_and_interval_are_the_binding_phase_s():
    result = on_card(8 * GIB)
    phase = result.binding
    assert result.peak_bytes == phase.peak_bytes
    assert result.low_bytes == phase.resident_bytes + phase.floor_bytes * 9 // 10 - (460 - 307) * MIB
    assert result.high_bytes == phase.resident_bytes + phase.floor_bytes * 11 // 10 + (614 - 460) * MIB


def test_what_others_hold_is_taken_off():
    request = a_request(device={"total_bytes": 8 * GIB, "used_by_others_bytes": 3 * GIB})
    assert estimate(request, physics).available_bytes == 5 * GIB


@pytest.mark.parametrize("family", ["flux1", "zimage", "wan21_14b"])
def test_families_that_the_host_has_no_code_for_are_unknown_and_not_guessed(family):
    result = estimate(a_request(model={"family": family}), COMPUTED)
    assert (result.verdict, result.peak_bytes) == ("unknown", 0)
    assert str(result.notes[0]) == f"Models of the family {family} cannot be computed yet."


def test_a_refiner_that_the_host_has_no_code_for_keeps_the_verdict_open():
    result = on_card(8 * GIB, refiner={"family": "flux1"})
    assert result.verdict == "unknown"
    assert "flux1" in str(result.notes[0])


def test_a_refiner_samples_in_place_of_the_first_model_before_the_decode():
    names = [phase.name for phase in on_card(24 * GIB, refiner={}).phases]
    assert names.index("refiner_sampling") == names.index("vae_decode") - 1
    alone = estimate(a_request(model={"family": "sdxl_refiner"}, device={"total_bytes": 24 * GIB}), physics)
    both = {phase.name: phase for phase in on_card(24 * GIB, refiner={}).phases}
    assert both["refiner_sampling"].peak_bytes == alone.phases[1].peak_bytes


def test_the_refiner_works_at_the_size_of_the_second_pass():
    small, large = (on_card(24 * GIB, refiner={}, hires=hires) for hires in (None, {"scale": 2.0}))
    floors = [next(p.floor_bytes for p in item.phases if p.name == "refiner_sampling") for item in (small, large)]
    assert floors[1] > floors[0]


def test_adapters_of_other_families_keep_the_verdict_open():
    result = on_card(8 * GIB, controlnets=[{"kind": "controllllite", "family": "sd15"}])
    assert result.verdict == "unknown"
    assert str(result.notes[0]) == "Control models of the kind controllllite cannot be computed yet."


def test_a_controlnet_of_a_family_without_one_keeps_the_verdict_open():
    result = estimate(a_request(controlnets=[{"family": "chroma"}]), COMPUTED)
    assert result.verdict == "unknown"
    assert str(result.notes[0]) == "The part controlnet of chroma cannot be computed yet."


def test_low_vram_controlnets_make_two_phases_of_work_in_one():
    phase = next(
        phase
        for phase in on_card(8 * GIB, controlnets=[{"family": "sd15", "low_vram": True}]).phases
        if phase.name == "sampling"
    )
    assert "controlnet" in dict(phase.resident_parts)
    assert phase.needs_bytes > phase.resident_bytes


def test_a_full_preview_adds_a_decode_to_sampling():
    plain, full = on_card(8 * GIB), on_card(8 * GIB, live_preview="full")
    decode = plain.phases[-1].minimum_bytes
    assert full.phases[1].resident_bytes == plain.phases[1].resident_bytes + decode


def test_a_bad_allocator_setting_is_bad_input():
    with pytest.raises(BadInput, match="alloc_conf"):
        estimate(a_request(alloc_conf="nonsense"), physics)


def test_that_the_drivers_pool_is_computed_by_a_rule_is_said():
    notes = [str(note) for note in estimate(a_request(alloc_conf="backend:cudaMallocAsync"), physics).notes]
    assert any("backend:cudaMallocAsync" in note for note in notes)


def test_the_same_request_is_answered_from_memory():
    request = a_request(width=640)
    assert estimate(request, physics) is estimate(Request.from_dict(request.to_dict()), physics)
    start = time.perf_counter()
    for _ in range(100):
        estimate(request, physics)
    assert (time.perf_counter() - start) / 100 < 0.001


def requests() -> st.SearchStrategy[Request]:
    return st.builds(
        lambda **changes: a_request(**changes),
        host=st.sampled_from(["a1111", "forge"]),
        host_args=st.sampled_from([[], ["--medvram"], ["--lowvram"], ["--no-half-vae"]]),
        model=st.sampled_from([{"family": "sd15"}, {"family": "sdxl"}]),
        mode=st.sampled_from(["txt2img", "img2img"]),
        width=st.integers(64, 3000),
        height=st.integers(64, 3000),
        batch_size=st.integers(1, 8),
        device=st.integers(1, 16).map(lambda size: {"total_bytes": size * GIB}),
        hires=st.sampled_from([None, {"scale": 2.0}, {"scale": 1.5, "upscaler": "R-ESRGAN 4x+"}]),
        controlnets=st.sampled_from([[], [{"family": "sd15", "low_vram": True}], [{"family": "sdxl"}]]),
        live_preview=st.sampled_from(["approx", "full"]),
    )


@given(requests())
def test_the_quick_answer_is_the_verdict(request_):
    assert runs(request_, {}, physics) == (estimate(request_, physics).verdict in ("fits", "tight"))


@given(requests())
def test_what_could_not_fit_does_not(request_):
    if not could_fit(request_, physics):
        assert estimate(request_, physics).verdict == "wont_fit"


@given(requests(), st.integers(1, 200))
def test_more_pixels_never_need_less_activations(request_, more):
    """Forge splits cond and uncond by itself, so what it is asked to run is compared, not what it then runs."""
    larger = request_.replace(width=request_.width + more)
    for before, after in zip(timeline(request_), timeline(larger), strict=True):
        assert floor_bytes(after.component) >= floor_bytes(before.component)


@given(requests(), st.integers(1, 200))
def test_on_a1111_more_pixels_never_need_less(request_, more):
    request_ = request_.replace(host="a1111")
    larger = request_.replace(height=request_.height + more)
    before, after = estimate(request_, physics), estimate(larger, physics)
    assert after.binding.needs_bytes >= before.binding.needs_bytes


@given(requests())
def test_could_fit_stays_false_for_more_pixels(request_):
    if not could_fit(request_, physics):
        assert not could_fit(request_.replace(width=request_.width + 64), physics)


@pytest.mark.parametrize(("runs", "verdict"), [(True, "tight"), (False, "wont_fit")])
def test_near_the_minimum_a_replay_in_just_that_room_decides(runs, verdict):
    request = a_request(width=1024, height=1024, device={"total_bytes": 5 * GIB})
    binding = estimate(request, physics).binding
    room = 5 * GIB - binding.resident_bytes

    def near(component):
        found = physics.memory(component)
        if component.part != "vae_decode":
            return found
        minimum = room + MIB if runs else room - MIB
        return dataclasses.replace(found, floor_bytes=MIB, low_bytes=MIB, minimum_bytes=minimum,
                                   comfortable_bytes=room + 4 * MIB)  # fmt: skip

    uneven = Physics(near, lambda component: near(component).floor_bytes, lambda component, limit: runs)
    result = estimate(request, uneven)
    assert result.verdict == verdict
    phase = next(phase for phase in result.phases if phase.name == "vae_decode")
    assert (phase.needs_bytes <= result.available_bytes) == runs
