"""The computer's RAM: what lies there while a model loads and while pictures are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.weights import weights_of
from lib_vram.plan import ram
from lib_vram.plan.ram import HOST_BYTES, SYSTEM_BYTES, need_bytes, noted, ram_need, ram_note
from lib_vram.plan.search import make_plan
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics

SDXL = {"model": {"family": "sdxl"}}


def parts(request):
    weights = weights_of(request)
    return weights.unet_bytes, weights.text_encoders_bytes, weights.vae_bytes


@pytest.mark.parametrize(
    ("flags", "kept"),
    [([], (0, 0, 0)), (["--medvram"], (0, 1, 1)), (["--medvram-sdxl"], (0, 1, 1)), (["--lowvram"], (1, 1, 1))],
)
def test_a1111_keeps_in_ram_what_its_flags_take_off_the_card(flags, kept):
    request = a_request(**SDXL, host_args=flags)
    expected = sum(size for size, stays in zip(parts(request), kept, strict=True) if stays)
    assert ram_need(request, physics).running_bytes == HOST_BYTES + expected


def test_loading_takes_all_weights_and_a_ckpt_its_file_beside_them(tmp_path):
    request = a_request(**SDXL)
    everything = sum(parts(request))
    assert ram_need(request, physics).loading_bytes == HOST_BYTES + everything
    pickled = a_request(model={"family": "sdxl", "checkpoint": str(tmp_path / "model.ckpt")})
    assert ram_need(pickled, physics).loading_bytes == HOST_BYTES + 2 * everything
    mapped = a_request(model={"family": "sdxl", "checkpoint": str(tmp_path / "model.safetensors")})
    assert ram_need(mapped, physics).loading_bytes == HOST_BYTES + everything


def test_lowram_loads_past_the_ram():
    assert ram_need(a_request(**SDXL, host_args=["--lowram"]), physics).loading_bytes == HOST_BYTES


def test_forge_keeps_the_part_of_the_model_that_is_swapped():
    roomy = a_request(host="forge", **SDXL, device={"total_bytes": 24 * GIB})
    unet, text_encoders, vae = parts(roomy)
    assert ram_need(roomy, physics).running_bytes == HOST_BYTES + text_encoders + vae
    swapped = a_request(host="forge", **SDXL, forge={"never_oom_unet": True})
    running = ram_need(swapped, physics).running_bytes - HOST_BYTES - text_encoders - vae
    assert 0.9 * unet < running <= unet


def test_a_text_encoder_that_works_on_the_cpu_is_in_ram_all_the_same():
    flux = {"host": "neo", "model": {"family": "flux1", "weights_dtype": "fp8"}, "device": {"total_bytes": 24 * GIB}}
    on_cpu = a_request(**flux, text_encoders=[{"name": "t5_xxl", "device": "cpu"}])
    assert ram_need(on_cpu).loading_bytes == ram_need(a_request(**flux)).loading_bytes
    in_fp8 = a_request(**flux, text_encoders=[{"name": "t5_xxl", "dtype": "fp8"}])
    assert ram_need(in_fp8).running_bytes < ram_need(a_request(**flux)).running_bytes - 4 * GIB


def test_a_lora_keeps_the_weights_that_it_changed():
    plain, with_lora = a_request(**SDXL), a_request(**SDXL, loras=[{"bytes": 200_000_000}])
    more = ram_need(with_lora, physics).running_bytes - ram_need(plain, physics).running_bytes
    assert more == 200_000_000 + parts(plain)[0]


@pytest.mark.parametrize(
    ("gib", "key"), [(8, "advice.ram_running"), (14, "advice.ram_loading"), (24, None), (None, None)]
)
def test_a_machine_with_too_little_ram_is_told_when_it_would_swap(gib, key):
    system = {} if gib is None else {"ram_total_bytes": gib * GIB}
    request = a_request(
        model={"family": "sdxl", "checkpoint": "missing.ckpt"}, host_args=["--lowvram"], system=system
    )  # fmt: skip
    note = ram_note(request, physics)
    assert (note.key if note else None) == key


@pytest.mark.parametrize("spare_bytes", [-1, 0])
def test_a_machine_whose_whole_ram_is_less_than_stays_in_use_never_has_enough(spare_bytes):
    request = a_request(**SDXL, host_args=["--lowvram"])
    total_bytes = ram_need(request, physics).running_bytes + spare_bytes
    there = a_request(**SDXL, host_args=["--lowvram"], system={"ram_total_bytes": total_bytes})
    assert ram.never_enough(there, physics) == (spare_bytes < 0)
    assert not ram.never_enough(request, physics)


def test_the_line_is_drawn_at_what_the_system_leaves():
    request = a_request(**SDXL)
    need = need_bytes(request, physics)
    at_the_line = a_request(**SDXL, system={"ram_total_bytes": need + SYSTEM_BYTES})
    below = a_request(**SDXL, system={"ram_total_bytes": need + SYSTEM_BYTES - 1})
    assert ram_note(at_the_line, physics) is None
    assert str(ram_note(below, physics)).startswith("Loading the model takes 8.0 GiB")


def test_the_note_comes_first_and_once():
    request = a_request(**SDXL, system={"ram_total_bytes": 4 * GIB})
    result = noted(estimate(request, physics), request, physics)
    assert result.notes[0] == ram_note(request, physics)
    assert noted(result, request, physics) == result
    roomy = a_request(**SDXL)
    assert noted(estimate(roomy, physics), roomy, physics) == estimate(roomy, physics)


def test_a_plan_for_a_machine_that_would_swap_is_marked():
    small = a_request(host="forge", model={"family": "flux1"}, device={"total_bytes": 4 * GIB}, width=1536, height=1536)
    small = small.replace(system=replace(small.system, ram_total_bytes=16 * GIB))
    plan = make_plan(small)
    assert plan.fits
    assert plan.steps
    assert plan.estimate.notes[0].key == "advice.ram_running"
