"""reForge's memory manager, by hand."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.forge import Model
from lib_vram.estimate.launched import Launched
from lib_vram.estimate.reforge import LEAST_PART_BYTES, ReforgeMemory, Rules, denoise_estimate_bytes, rules_of
from lib_vram.physics.component import Component
from lib_vram.plan.search import make_plan
from lib_vram.request import Request

GIB, MIB = 1024**3, 1024**2
MINIMUM = int(0.8 * GIB) + 400 * MIB


def a_request(**fields):
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 12 * GIB}
    base = {"host": "reforge", "model": {"family": "sd15"}, "width": 512, "height": 512, "device": device}
    return Request.from_dict(base | fields)


def a_memory(empty_bytes, **fields):
    rules = Rules(**({"minimum_bytes": GIB, "reserved_bytes": 0, "weights_ratio": 0.0, "fully_swapped": False}
                     | fields))  # fmt: skip
    return ReforgeMemory(empty_bytes, rules)


def a_model(name, size_bytes):
    return Model(name, size_bytes, size_bytes // 20)


def loaded(memory):
    return {item.model.name: item.on_device_bytes for item in memory.loaded}


@pytest.mark.parametrize(
    ("arguments", "minimum"),
    [((), MINIMUM), (("--reserve-vram", "1"), int(0.8 * GIB) + GIB), (("--reserve-vram=0",), int(0.8 * GIB))],
)
def test_the_reserve_is_08_gib_and_what_is_reserved_for_others(arguments, minimum):
    request = a_request(host_args=list(arguments), forge={"inference_memory_bytes": 0})
    assert rules_of(request).minimum_bytes == minimum


def test_one_runs_own_reserve_counts_where_it_is_larger():
    assert rules_of(a_request(forge={"inference_memory_bytes": 4 * GIB})).minimum_bytes == 4 * GIB


def test_a_model_that_fits_above_the_reserve_is_loaded_whole():
    memory = a_memory(4 * GIB)
    memory.load((a_model("unet", 2 * GIB),))
    assert loaded(memory) == {"unet": 2 * GIB}


def test_a_larger_need_leaves_less_for_the_weights_but_never_under_128_mib():
    memory = a_memory(4 * GIB)
    memory.load((a_model("unet", 2 * GIB),), required_bytes=3 * GIB)
    assert loaded(memory) == {"unet": GIB}
    memory = a_memory(4 * GIB)
    memory.load((a_model("unet", 2 * GIB),), required_bytes=9 * GIB)
    assert loaded(memory) == {"unet": LEAST_PART_BYTES}


def test_a_resident_model_is_not_reduced():
    memory = a_memory(4 * GIB)
    unet = a_model("unet", 2 * GIB)
    memory.load((unet,))
    memory.load((unet,), required_bytes=3 * GIB)
    assert loaded(memory) == {"unet": 2 * GIB}


def test_a_model_that_is_there_in_part_is_completed_when_there_is_room():
    memory = a_memory(4 * GIB)
    unet = a_model("unet", 2 * GIB)
    memory.load((unet,), required_bytes=3 * GIB)
    memory.load((unet,))
    assert loaded(memory) == {"unet": 2 * GIB}


def test_others_give_up_only_as_much_as_is_wanted():
    memory = a_memory(4 * GIB)
    memory.load((a_model("unet", 2 * GIB),))
    memory.load((a_model("vae", GIB // 2),), required_bytes=2 * GIB)
    missing = int(1.3 * GIB / 2 + 2 * GIB - 2 * GIB)
    assert loaded(memory) == {"vae": GIB // 2, "unet": 2 * GIB - missing}


def test_outside_nvidia_weights_eat_into_the_reserve():
    memory = a_memory(4 * GIB, weights_ratio=0.4)
    memory.load((a_model("unet", 3 * GIB),), required_bytes=4 * GIB)
    assert loaded(memory) == {"unet": int(1.6 * GIB)}


@pytest.mark.parametrize(
    ("switch", "resident"), [({"fully_swapped": True}, 0), ({"kept": Launched(whole=True)}, 9 * GIB)]
)
def test_the_flags_for_none_and_for_all_of_the_weights(switch, resident):
    memory = a_memory(4 * GIB, **switch)
    memory.load((a_model("unet", 9 * GIB),))
    assert loaded(memory) == {"unet": resident}


@pytest.mark.parametrize(
    ("family", "attention", "dtype", "expected"),
    [
        ("sd15", "sdpa", "fp16", 2 * 4096 * 2 * 0.01 * MIB), ("sdxl", "sdpa", "fp16", 2 * 4096 * 2 * 0.01 * 0.8 * MIB),
        ("sd15", "sdpa", "fp32", 2 * 4096 * 4 * 0.01 * MIB), ("sd15", "sub_quad", "fp16", 2 * 4096 * 0.15 * MIB),
        ("sdxl", "split", "fp32", 2 * 4096 * 0.15 * 0.8 * MIB),
    ],
)  # fmt: skip
def test_its_figure_for_the_unet(family, attention, dtype, expected):
    component = Component(family=family, part="denoise", width=512, height=512, dtype=dtype, attention=attention)
    assert denoise_estimate_bytes(component, 2) == pytest.approx(expected)


def test_never_oom_for_the_vae_is_inert_and_our_tiles_are_not():
    plain = estimate(a_request(width=1024, height=1024))
    switched = estimate(a_request(width=1024, height=1024, forge={"never_oom_vae": True}))
    tiled = estimate(a_request(width=1024, height=1024, vae={"tiled": True, "tile_size": 512}))
    peaks = [{phase.name: phase.peak_bytes for phase in item.phases}["vae_decode"] for item in (plain, switched, tiled)]
    assert peaks[0] == peaks[1] > peaks[2]


def test_a_plan_tiles_with_our_own_tiles():
    device = {"name": "NVIDIA GeForce RTX 3060", "total_bytes": 7 * GIB // 2, "used_by_others_bytes": GIB}
    plan = make_plan(a_request(width=1024, height=1024, device=device))
    assert plan.fits and [step.id for step in plan.steps] == ["vae_tiled"]
    assert plan.request.vae.tiled and not plan.request.forge.never_oom_vae
