"""Several generations in one process: what earlier ones leave behind."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lib_vram.errors import BadInput
from lib_vram.estimate.life import Life, simulate_life
from lib_vram.estimate.simulate import Simulation, simulate
from lib_vram.physics.allocator import CachingAllocator
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request, physics, trace


def test_one_generation_ends_as_it_does_alone():
    for total in (3, 6, 12):
        request = a_request(device={"total_bytes": total * GIB}, width=1024)
        life = simulate_life([request])
        assert life.runs[0].outcome == simulate(request).outcome
        assert life.fits_alone == (life.runs[0].outcome == "completed")
        assert not life.in_pieces


def test_a_peak_counts_what_is_on_the_card_with_the_driver_s_context():
    request = a_request(device={"total_bytes": 12 * GIB})
    alone, run = simulate(request), simulate_life([request]).runs[0]
    assert run.peak_bytes == pytest.approx(alone.peak_bytes, rel=0.01)


def test_the_same_generation_again_ends_alike():
    request = a_request(host="forge", device={"total_bytes": 6 * GIB}, width=768)
    runs = simulate_life([request] * 3).runs
    assert {run.outcome for run in runs} == {"completed"}
    assert max(run.peak_bytes for run in runs) <= min(run.peak_bytes for run in runs) * 1.05


@dataclass(frozen=True)
class leaves_pieces:
    """Takes 64 blocks of 12 MiB and gives all back, so that what is loaded meanwhile would lie between them."""

    component: object

    def replay(self, allocator: CachingAllocator) -> None:
        """Take and give back."""
        for block in [allocator.malloc(12 * MIB) for _ in range(64)]:
            allocator.free(block)


def test_a_failed_generation_does_not_end_the_process():
    large = a_request(device={"total_bytes": 4 * GIB}, width=2048, height=2048)
    small = a_request(device={"total_bytes": 4 * GIB})
    runs = simulate_life([large, small, small]).runs
    assert [run.outcome for run in runs] == ["out_of_memory", "completed", "completed"]
    assert "CUDA out of memory" in runs[0].error_text
    assert runs[0].phase is not None


def test_what_each_left_is_given_back_where_it_is_whole():
    request = a_request(device={"total_bytes": 4 * GIB})
    life = simulate_life([request, request], physics, leaves_pieces)
    assert [run.outcome for run in life.runs] == ["completed", "completed"]


@pytest.mark.parametrize(
    ("outcome", "fits_alone", "in_pieces"),
    [("completed", True, False), ("out_of_memory", True, True), ("out_of_memory", False, False)],
)
def test_what_fits_alone_and_fails_after_others_fails_for_pieces(outcome, fits_alone, in_pieces):
    first, last = Simulation("completed", None, 1, ""), Simulation(outcome, "sampling", 2, "text")
    life = Life((first, last), fits_alone)
    assert life.in_pieces == in_pieces
    assert life.to_dict() == {
        **last.to_dict(), "runs": [first.to_dict(), last.to_dict()], "fits_alone": fits_alone, "in_pieces": in_pieces,
    }  # fmt: skip


def test_no_requests_and_those_of_several_hosts_are_refused():
    with pytest.raises(BadInput, match="no requests"):
        simulate_life([])
    with pytest.raises(BadInput, match="^host: "):
        simulate_life([a_request(), a_request(host="forge")])


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:64"])
def test_every_setting_of_the_allocator_can_live_on(conf):
    requests = [a_request(alloc_conf=conf, width=width, device={"total_bytes": 6 * GIB}) for width in (512, 640, 768)]
    assert {run.outcome for run in simulate_life(requests).runs} == {"completed"}


def test_trace_and_physics_can_be_stood_in_for():
    request = a_request(device={"total_bytes": 6 * GIB})
    assert simulate_life([request], physics, trace).runs[0].outcome == "completed"
