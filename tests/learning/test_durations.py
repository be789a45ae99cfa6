from dataclasses import replace

import pytest

from lib_vram.learning.durations import LEVERS, Durations, Known, costs
from lib_vram.learning.record import kept_of
from lib_vram.request import ForgeSettings, Hires, Lora, ModelSpec, TiledDiffusion, VaeSpec
from tests.learning.makers import MACHINE, REQUEST, run


def timed(seconds, steps=20, **changes):
    request = kept_of(REQUEST.replace(**changes))
    return run(seconds=seconds, steps=steps, request=request)


def of(runs, steps=20, **changes):
    return Durations(runs).of(kept_of(REQUEST.replace(**changes)), steps)


def test_the_same_settings_take_the_median_of_their_runs():
    assert of([timed(9.0), timed(30.0), timed(10.0)]) == Known(10.0, 3)


def test_more_batches_take_as_many_times_as_long():
    assert of([timed(20.0, batch_count=2)], batch_count=5) == Known(50.0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"width": 832}, {"batch_size": 2}, {"vae": VaeSpec(tiled=True)}, {"attention": "xformers"},
        {"hires": Hires(1.5)}, {"batch_cond_uncond": False}, {"model": ModelSpec("sd15")}, {"loras": (Lora(5),)},
        {"model": ModelSpec("sdxl", weights_dtype="fp8")}, {"guidance": ("pag",)},
        {"tiled_diffusion": TiledDiffusion()},
    ],
)  # fmt: skip
def test_other_settings_say_nothing(change):
    assert of([timed(9.0)], **change) is None


def test_runs_from_before_a_field_was_there_count_as_those_without_it():
    older = timed(9.0)
    fewer = {name: value for name, value in older.request.items() if name not in ("guidance", "tiled_diffusion")}
    assert of([replace(older, request=fewer)]) == Known(9.0, 1)


def test_other_steps_say_nothing_unless_any_will_do():
    assert of([timed(9.0, steps=40)]) is None
    assert of([timed(9.0, steps=40)], steps=None) == Known(9.0, 1)


def test_the_size_of_a_lora_and_other_programs_do_not_matter():
    device = replace(REQUEST.device, used_by_others_bytes=5)
    assert of([timed(9.0, loras=(Lora(5),), device=device)], loras=(Lora(7),)) == Known(9.0, 1)


@pytest.mark.parametrize("change", [{"outcome": "stopped"}, {"outcome": "failed"}, {"is_rescued": True}])
def test_runs_that_were_cut_off_say_nothing(change):
    assert of([replace(timed(9.0), **change)]) is None


def cost_of(*runs):
    return {item.lever: item for item in costs(runs)}


def test_tiles_cost_what_they_cost_with_all_else_the_same():
    tiled = VaeSpec(tiled=True, tile_size=512)
    found = cost_of(timed(10.0), timed(10.0), timed(12.0, vae=tiled), timed(12.0, vae=tiled))
    assert list(found) == ["vae_tiled"]
    assert (found["vae_tiled"].before, found["vae_tiled"].after) == (False, True)
    assert found["vae_tiled"].share == pytest.approx(0.2)


def test_a_smaller_batch_more_often_is_compared_by_the_picture():
    many = [timed(16.0, batch_size=4) for _ in range(2)]
    found = cost_of(*many, *(timed(20.0, batch_count=4) for _ in range(2)))["batch_to_count"]
    assert (found.before, found.after) == (4, 1)
    assert (found.before_known.seconds, found.after_known.seconds) == (4.0, 5.0)


@pytest.mark.parametrize(
    ("lever", "before", "after"),
    [
        ("cond_uncond_apart", {"batch_cond_uncond": True}, {"batch_cond_uncond": False}),
        ("never_oom_vae", {}, {"forge": ForgeSettings(never_oom_vae=True)}),
        ("reserve", {}, {"forge": ForgeSettings(inference_memory_bytes=3 * 1024**3)}),
        ("hires_scale", {"hires": Hires(2.0)}, {"hires": Hires(1.5)}),
        ("live_preview", {"live_preview": "full"}, {"live_preview": "off"}),
        ("fp8_storage", {}, {"model": ModelSpec("sdxl", storage_dtype="fp8")}),
    ],
)
def test_a_change_is_shown_from_the_usual_to_what_the_fix_makes_of_it(lever, before, after):
    runs = [timed(10.0, **before), timed(10.0, **before), timed(11.0, **after), timed(11.0, **after)]
    assert lever in LEVERS
    if lever == "live_preview":
        assert set(cost_of(*runs)) == {lever}
    else:
        assert cost_of(*runs)[lever].share == pytest.approx(0.1)


def test_one_run_on_a_side_is_not_enough():
    assert cost_of(timed(10.0), timed(10.0), timed(12.0, vae=VaeSpec(tiled=True))) == {}


def test_runs_of_other_machines_are_not_compared():
    other = replace(MACHINE, driver="other")
    tiled = [replace(timed(12.0, vae=VaeSpec(tiled=True)), machine=other) for _ in range(2)]
    assert cost_of(timed(10.0), timed(10.0), *tiled) == {}
