"""Restart advice: what it says a flag does is what an estimate under that flag says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.simulate import simulate
from lib_vram.message import LANGUAGES, area
from lib_vram.plan.advice import RANKS, advise, changes_for, needs_bytes
from lib_vram.request import Request
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics

FLAGS = {
    "a1111": [
        "--no-half",
        "--no-half-vae",
        "--medvram",
        "--medvram-sdxl",
        "--lowvram",
        "--opt-split-attention",
        "--api",
    ],
    "forge": [
        "--all-in-fp32", "--vae-in-fp32", "--attention-split", "--always-high-vram", "--always-gpu",
        "--always-low-vram", "--always-offload-from-vram", "--cuda-malloc", "--api",
    ],
    "neo": [
        "--force-fp32", "--fp32-vae", "--highvram", "--gpu-only", "--novram", "--lowvram", "--disable-smart-memory",
        "--expandable-segments", "--api",
    ],
    "reforge": [
        "--always-high-vram", "--always-no-vram", "--unet-in-fp8-e4m3fn", "--fp32-unet", "--attention-quad",
        "--disable-smart-memory",
    ],
    "classic": ["--always-high-vram", "--always-gpu", "--always-no-vram", "--unet-in-bf16", "--vae-in-fp32"],
}  # fmt: skip


def sdxl(host="a1111", gib=8, **changes):
    device = {"total_bytes": gib * GIB, "used_by_others_bytes": GIB}
    return a_request(
        **{"host": host, "model": {"family": "sdxl"}, "width": 1024, "height": 1024, "device": device, **changes}
    )


def names(request, **options):
    return [item.name for item in advise(request, **options)]


def test_sdxl_on_8_gib_is_helped_by_medvram_sdxl_first():
    first = advise(sdxl())[0]
    assert (first.name, first.before.verdict, first.after.verdict) == ("+ --medvram-sdxl", "wont_fit", "fits")
    assert first.lines.bat == ("set COMMANDLINE_ARGS=--medvram-sdxl",)
    assert needs_bytes(first.after) < needs_bytes(first.before)


def test_what_is_slow_is_advised_only_where_nothing_quicker_is_enough():
    assert "+ --lowvram" not in names(sdxl(gib=8))
    assert names(sdxl(gib=5))[0] == "+ --lowvram"
    assert names(sdxl("neo", 6, host_args=["--highvram"])) == ["− --highvram"]


@pytest.mark.parametrize(
    ("host", "flag"),
    [
        ("forge", "--always-high-vram"), ("forge", "--always-gpu"), ("reforge", "--always-high-vram"),
        ("classic", "--always-gpu"), ("neo", "--gpu-only"),
    ],
)  # fmt: skip
def test_a_flag_that_keeps_models_is_taken_away_where_they_are_too_large(host, flag):
    found = advise(sdxl(host, 6, host_args=[flag]), physics=physics)
    assert found[0].name == f"− {flag}" and found[0].after.verdict in ("fits", "tight")


@pytest.mark.parametrize(
    ("host", "flag"),
    [
        ("forge", "--always-no-vram"), ("forge", "--always-low-vram"), ("classic", "--always-offload-from-vram"),
        ("reforge", "--disable-smart-memory"), ("neo", "--lowvram"), ("neo", "--disable-smart-memory"),
    ],
)  # fmt: skip
def test_a_flag_that_moves_models_is_taken_away_where_all_fits_without(host, flag):
    found = advise(sdxl(host, 24, host_args=[flag]), physics=physics)
    assert [item.name for item in found] == [f"− {flag}"] and found[0].changes[0].kind == "quicker"


def test_the_drivers_own_pool_has_no_settings_to_advise():
    request = sdxl("forge", 6, host_args=["--cuda-malloc"])
    assert all(change.conf is None for change in changes_for(request))


def test_other_models_get_the_flag_that_is_not_for_sdxl():
    request = a_request(width=1536, height=1536, device={"total_bytes": 4 * GIB})
    flags = {flag for change in changes_for(request) for flag in change.add}
    assert "--medvram" in flags
    assert "--medvram-sdxl" not in flags


def test_half_precision_is_advised_where_a_flag_forbids_it_and_all_other_flags_stay():
    request = sdxl(
        gib=12, host_args=["--no-half", "--precision", "full"], vae={"dtype": "fp32"},
        model={"family": "sdxl", "weights_dtype": "fp32"},
    )  # fmt: skip
    first = advise(request, ["--api", "--no-half", "--precision", "full", "--listen"])[0]
    assert first.name == "− --no-half, − --precision"
    assert first.lines.sh == ('export COMMANDLINE_ARGS="--api --listen"',)
    assert (first.before.verdict, first.after.verdict) == ("wont_fit", "fits")


def test_an_older_choice_of_attention_does_not_stand_in_the_way_of_a_new_one():
    request = a_request(width=2048, height=2048, attention="math", device={"total_bytes": 8 * GIB})
    sdp = next(item for item in advise(request, ["--opt-split-attention", "--api"]) if "sdp" in item.name)
    assert sdp.lines.sh == ('export COMMANDLINE_ARGS="--api --opt-sdp-attention"',)


def test_two_changes_are_tried_where_one_is_not_enough():
    request = sdxl(
        host_args=["--no-half"], vae={"dtype": "fp32"}, model={"family": "sdxl", "weights_dtype": "fp32"},
    )  # fmt: skip
    first, *others = advise(request)
    assert first.name == "− --no-half, + --medvram-sdxl"
    assert first.after.verdict == "fits"
    assert all(item.after.verdict == "wont_fit" or item.slow for item in others)


NEARLY = {"device": {"total_bytes": int(9.3 * GIB)}}
"""A card with room for what SDXL allocates at 1024×1024, and not for the gaps beside it."""


def test_the_allocator_has_one_size_of_blocks_and_no_growing_segments_on_windows():
    options = [name for name in names(sdxl(**NEARLY)) if ":" in name]
    assert options == ["expandable_segments:True", "max_split_size_mb:512"]
    assert [name for name in names(sdxl(**NEARLY), windows=True) if ":" in name] == ["max_split_size_mb:512"]


def test_no_setting_of_the_allocator_is_advised_where_there_is_too_little_for_what_is_allocated():
    assert not [name for name in names(sdxl()) if ":" in name]


def test_a_pool_of_the_driver_is_left_alone():
    assert not [name for name in names(sdxl(alloc_conf="backend:cudaMallocAsync", **NEARLY)) if ":" in name]


def test_what_fits_needs_no_advice():
    assert advise(a_request()) == ()


@pytest.mark.parametrize(
    ("flag", "gib", "said"), [("--lowvram", 24, ["− --lowvram"]), ("--lowvram", 8, ["+ --medvram-sdxl, − --lowvram"])]
)
def test_a_flag_that_is_not_needed_is_said_to_be_slow(flag, gib, said):
    assert names(sdxl(gib=gib, host_args=[flag])) == said


def test_what_cannot_be_computed_gets_no_advice():
    assert advise(a_request(model={"family": "flux1"}), physics=physics) == ()


@pytest.mark.parametrize(("gib", "lowvram"), [(32, "fine"), (14, "marked"), (12, "refused")])
def test_what_needs_more_ram_than_there_is_is_refused_and_what_would_swap_is_marked(gib, lowvram):
    request = sdxl(gib=5, loras=[{"bytes": 200_000_000}], system={"ram_total_bytes": gib * GIB})
    found = {item.name: item for item in advise(request)}
    assert found["+ --medvram-sdxl"].ram is None
    assert found["+ --medvram-sdxl"].after.verdict == "wont_fit"
    if lowvram == "refused":
        assert "+ --lowvram" not in found
    else:
        note = found["+ --lowvram"].ram
        assert (note.key if note else None) == (None if lowvram == "fine" else "advice.ram_running")


def test_what_swaps_as_it_is_is_no_mark_against_a_change():
    found = {item.name: item.ram for item in advise(sdxl(gib=5, system={"ram_total_bytes": 9 * GIB}))}
    lowvram = found.pop("+ --lowvram")
    assert found
    assert set(found.values()) == {None}
    assert lowvram.key == "advice.ram_running"  # it would swap while loading alone as it is


@given(st.sampled_from(sorted(FLAGS)), st.data(), st.sampled_from([4, 6, 8, 12]), st.integers(8, 24))
@settings(max_examples=40, deadline=None)
def test_every_advice_is_better_than_what_is_and_says_what_an_estimate_says(host, data, gib, eighths):
    flags = data.draw(st.lists(st.sampled_from(FLAGS[host]), unique=True))
    request = a_request(
        host=host, host_args=flags, width=64 * eighths, height=64 * eighths, device={"total_bytes": gib * GIB}
    )
    before = estimate(request, physics)
    for item in advise(request, physics=physics):
        assert item.after == estimate(item.request, physics)
        better = RANKS[item.after.verdict] < RANKS[before.verdict] or needs_bytes(item.after) < needs_bytes(before)
        assert better or before.verdict == item.after.verdict == "fits"
        assert Request.from_dict(item.request.to_dict()) == item.request
        kept = [flag for flag in flags if flag not in item.to_dict()["remove"]]
        assert all(flag in item.lines.sh[0] for flag in kept) or "ALLOC_CONF" in item.lines.sh[0]


@pytest.mark.parametrize(
    "request_",
    [
        sdxl(), sdxl(gib=6, host_args=["--no-half-vae"], vae={"dtype": "fp32"}), sdxl(gib=5, attention="split"),
        sdxl("forge", 5, host_args=["--vae-in-fp32"], vae={"dtype": "fp32"}),
        sdxl("reforge", 6, host_args=["--always-high-vram"]), sdxl("neo", 6, host_args=["--highvram"]),
        sdxl("classic", 5, host_args=["--always-gpu"]),
    ],
)  # fmt: skip
def test_on_the_virtual_card_what_is_advised_as_enough_completes(request_):
    enough = [item for item in advise(request_) if item.after.verdict != "wont_fit"]
    assert enough
    for item in enough:
        assert simulate(item.request).outcome == "completed"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_change_of_every_host_has_its_sentence(language):
    words = area(language, "advice")
    for host, flags in FLAGS.items():
        for attention in ("sdpa", "split"):
            for given_flags in ([], flags):
                for family in ("sd15", "sdxl"):
                    request = a_request(host=host, host_args=given_flags, attention=attention, model={"family": family})
                    assert {f"change_{change.id}" for change in changes_for(request)} <= set(words)
    assert {"change_offload_lowvram", "change_quicker"} <= set(words)
