"""What stays of a model's weights counts as PyTorch's allocator holds it, on every host and however it is kept."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.loading import loads_of
from lib_vram.estimate.residency import place
from lib_vram.estimate.simulate import simulate_steps
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import weights_of
from lib_vram.model.inspect import Checkpoint, ComponentWeights
from lib_vram.physics.loading import known_numbers
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request, physics, trace

ROOMY = {"name": "NVIDIA GeForce RTX 3090", "total_bytes": 24 * GIB}
HOSTS = ("a1111", "forge", "neo", "reforge", "classic", "diffusers")


def sdxl(**changes):
    """A request for SDXL at 1024×1024 on a card with room for everything."""
    return a_request(**{"model": {"family": "sdxl"}, "width": 1024, "height": 1024, "device": ROOMY, **changes})


def sampling(request):
    """Return what is on the card while ``request`` samples."""
    placed = place(request, timeline(request), weights_of(request))
    return next(item for item in placed if item.work.phase == "sampling")


def unet_mib(request):
    """Return what the denoiser has on the card while it works, in MiB."""
    return dict(sampling(request).resident)["unet"] // MIB


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_has_the_unet_as_the_allocator_holds_it(host):
    assert unet_mib(sdxl(host=host)) == 5000  # 4897.0 in all, 101.2 beyond that, in whole segments


@pytest.mark.parametrize(
    ("model", "mib"),
    [({}, 5000), ({"storage_dtype": "fp8"}, 2516), ({"weights_dtype": "fp32"}, 9874)],
)  # fmt: skip
def test_every_type_has_its_own_remainders(model, mib):
    assert unet_mib(sdxl(model={"family": "sdxl", **model})) == mib


@pytest.mark.parametrize("dtype", ["nf4", "q8_0", "q4_k"])
def test_quantised_weights_take_more_than_their_sum_too(dtype):
    request = a_request(host="forge", model={"family": "flux1", "weights_dtype": dtype}, device=ROOMY)
    weights = weights_of(request)
    extra = weights.allocated("unet", weights.unet_bytes) - weights.unet_bytes
    assert 20 * MIB < extra < 0.02 * weights.unet_bytes


@pytest.mark.parametrize("conf", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_allocators_that_leave_no_remainders_count_sums(conf):
    placed = sampling(sdxl(alloc_conf=conf))
    assert dict(placed.resident)["unet"] == 4898 * MIB
    assert placed.tails_bytes == 0


def test_of_a_part_that_is_there_by_half_half_counts():
    request = sdxl(host="forge", device={"name": "NVIDIA GeForce GTX 1650", "total_bytes": 4 * GIB})
    whole, part = sampling(sdxl(host="forge")), sampling(request)
    share = dict(part.resident)["unet"] / dict(whole.resident)["unet"]
    assert 0.3 < share < 0.5
    assert part.tails_bytes / MIB == pytest.approx(155.8 * share, rel=0.02)


def test_tails_count_in_what_is_comfortable_and_in_nothing_else():
    request = sdxl(host_args=["--medvram"])
    placed = sampling(request)
    phase = next(item for item in estimate(request, physics).phases if item.name == "sampling")
    memory = physics.memory(placed.component)
    assert phase.comfortable_bytes == memory.comfortable_bytes + placed.tails_bytes
    assert (phase.floor_bytes, phase.minimum_bytes) == (memory.floor_bytes, memory.minimum_bytes)
    assert placed.tails_bytes / MIB == pytest.approx(155.8, abs=0.1)


def test_the_virtual_card_reserves_the_tails_as_far_as_it_has_room():
    request = sdxl()
    phases = {item.name: item for item in estimate(request, physics).phases}
    for run in simulate_steps(request, physics, trace):
        assert run.reserved_peak_bytes <= ROOMY["total_bytes"]
        assert run.reserved_peak_bytes >= sampling(request).tails_bytes + 5000 * MIB
        assert phases[run.name].wants_bytes >= run.reserved_peak_bytes


def test_between_what_is_needed_and_what_is_comfortable_the_tails_make_it_tight():
    phase = max(estimate(sdxl(), physics).phases, key=lambda item: item.wants_bytes)
    sizes = (phase.wants_bytes - 2 * MIB, phase.wants_bytes)
    verdicts = [estimate(sdxl(device={**ROOMY, "total_bytes": size}), physics).verdict for size in sizes]
    assert verdicts == ["tight", "fits"]


def a_file(*components):
    """Return a checkpoint with ``components`` for a file at any path."""
    return lambda path: Checkpoint("sdxl", components, ())


def test_a_file_s_own_tensors_decide_where_they_are_known():
    numbers = (30 * MIB,) * 40 + (-1000,) * 40
    unet = ComponentWeights("unet", "fp16", sum(map(abs, numbers)), 2 * sum(map(abs, numbers)), numbers=numbers)
    request = sdxl(model={"family": "sdxl", "checkpoint": "model.safetensors"})
    weights = weights_of(request, a_file(unet))
    assert weights.allocated("unet", weights.unet_bytes) - weights.unet_bytes == 40 * (2048 - 2000)
    without = weights_of(request, a_file(replace(unet, numbers=())))
    assert without.loads == weights_of(sdxl()).loads


def test_a_file_with_the_family_s_tensors_is_answered_as_the_family():
    numbers = known_numbers("sdxl-denoise")
    unet = ComponentWeights("unet", "fp16", sum(map(abs, numbers)), 2 * sum(map(abs, numbers)), numbers=numbers)
    loads = loads_of(sdxl(), [unet])
    assert dict(loads) == dict(loads_of(sdxl()))


def test_a_loaded_model_without_a_name_has_what_its_file_tells():
    request = a_request(model={"family": "loaded"})
    assert loads_of(request) == ()
    unet = ComponentWeights("unet", "fp16", 3, 6, numbers=(2, -1))
    assert [name for name, _ in loads_of(request, [unet])] == ["unet"]


def test_more_memory_never_makes_it_worse():
    order = ["wont_fit", "tight", "fits"]
    sizes = range(7 * GIB, 13 * GIB, GIB // 4)
    found = [estimate(sdxl(device={**ROOMY, "total_bytes": size}), physics).verdict for size in sizes]
    assert all(order.index(one) <= order.index(next_one) for one, next_one in pairwise(found))
    assert set(found) >= {"wont_fit", "fits"}
