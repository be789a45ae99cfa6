"""The virtual card agrees with the verdict, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.simulate import PhaseOutOfMemory, simulate, simulate_steps
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request, physics, trace


@pytest.mark.parametrize("host", ["a1111", "forge"])
def test_it_completes_at_exactly_what_the_binding_phase_needs(host):
    request = a_request(host=host, width=1024, height=1024, device={"total_bytes": 4 * GIB})
    needs = max(phase.needs_bytes for phase in estimate(request, physics).phases)
    if host == "a1111":
        ends = [
            simulate(request.replace(device=request.device.__class__(size)), physics, trace).outcome
            for size in (needs - 1, needs)
        ]
        assert ends == ["out_of_memory", "completed"]
    else:
        assert (simulate(request, physics, trace).outcome == "completed") == (needs <= 4 * GIB)


@given(
    st.sampled_from(["a1111", "forge"]),
    st.sampled_from(["sd15", "sdxl"]),
    st.sampled_from([[], ["--medvram"], ["--lowvram"]]),
    st.integers(64, 2000),
    st.integers(1, 6),
    st.integers(1 * GIB, 16 * GIB),
    st.sampled_from([None, {"scale": 2.0}, {"scale": 1.4, "upscaler": "Nearest"}]),
    st.sampled_from([[], [{"family": "sd15", "low_vram": True}, {"family": "sd15"}]]),
    st.sampled_from(["approx", "full", "taesd"]),
)
def test_it_ends_as_the_verdict_says(host, family, flags, side, batch, card, hires, controlnets, preview):
    request = a_request(
        host=host, model={"family": family}, host_args=flags, width=side, height=side, batch_size=batch,
        device={"total_bytes": card}, hires=hires, controlnets=controlnets, live_preview=preview,
    )  # fmt: skip
    result, end = estimate(request, physics), simulate(request, physics, trace)
    assert (end.outcome == "completed") == (result.verdict in ("fits", "tight"))
    if end.outcome == "completed":
        peak_bytes = max(phase.peak_bytes for phase in result.phases)
        assert 0 <= end.peak_bytes - peak_bytes <= 2 * MIB  # what the allocator does not split off counts as allocated


def test_a_failure_names_the_phase_and_says_what_torch_says():
    end = simulate(a_request(device={"total_bytes": 3000 * MIB}), physics, trace)
    assert (end.outcome, end.phase) == ("out_of_memory", "vae_decode")
    assert end.error_text == (
        "CUDA out of memory. Tried to allocate 566.00 MiB. GPU 0 has a total capacity of 2.93 GiB of which "
        "476.00 MiB is free. Including non-PyTorch memory, this process has 2.46 GiB memory in use. Of the allocated "
        "memory 2.02 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )
    assert end.to_dict()["phase"] == "vae_decode"


def test_steps_come_one_phase_at_a_time_until_the_one_that_fails():
    steps = simulate_steps(a_request(device={"total_bytes": 3000 * MIB}), physics, trace)
    assert [next(steps).name, next(steps).name] == ["text_encode", "sampling"]
    with pytest.raises(PhaseOutOfMemory) as caught:
        next(steps)
    assert caught.value.phase == "vae_decode"


def test_each_step_has_its_own_peaks_without_the_driver_s_context():
    steps = list(simulate_steps(a_request(), physics, trace))
    floor = 16 * MIB + 2200 * 512 * 512
    assert steps[-1].allocated_peak_bytes == (1654 + 242 + 166 + 2) * MIB + floor
    assert steps[-1].reserved_peak_bytes >= steps[-1].allocated_peak_bytes
    assert steps[0].allocated_peak_bytes < steps[-1].allocated_peak_bytes


def test_weights_that_do_not_fit_fail_in_the_first_phase():
    request = a_request(model={"family": "sdxl"}, device={"total_bytes": 4 * GIB})
    assert simulate(request, physics, trace).phase == "text_encode"


def test_what_cannot_be_computed_is_not_run():
    with pytest.raises(NotReady, match="flux1"):
        simulate(a_request(model={"family": "flux1"}), physics, trace)


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128", "backend:cudaMallocAsync"])
def test_allocator_settings_are_replayed(conf):
    assert simulate(a_request(alloc_conf=conf), physics, trace).outcome == "completed"
