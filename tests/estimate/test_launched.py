"""What flags at the start make of the memory managers of Forge's line."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.estimate.flags import conf_of, set_conf
from lib_vram.estimate.launched import AS_USUAL, EVERYWHERE, Launched, launched
from lib_vram.request import Request
from lib_vram.units import GIB, MIB

UNET_BYTES = 4898 * MIB
LINE = ("forge", "neo", "reforge", "classic")
HIGH = {"forge": "--always-high-vram", "neo": "--highvram", "reforge": "--always-high-vram",
        "classic": "--always-high-vram"}  # fmt: skip
GPU = {"forge": "--always-gpu", "neo": "--gpu-only", "reforge": "--always-gpu", "classic": "--always-gpu"}
NONE = {"forge": "--always-no-vram", "neo": "--novram", "reforge": "--always-no-vram", "classic": "--always-no-vram"}
LOW = {"forge": "--always-low-vram", "neo": "--lowvram", "reforge": "--always-low-vram", "classic": "--always-low-vram"}
LEAVE = {"forge": "--always-offload-from-vram", "neo": "--disable-smart-memory", "reforge": "--disable-smart-memory",
         "classic": "--always-offload-from-vram"}  # fmt: skip
VAE = {"forge": "--vae-in-cpu", "neo": "--cpu-vae", "reforge": "--vae-in-cpu", "classic": "--vae-in-cpu"}


def a_request(host="forge", flags=(), gib=24, name="NVIDIA GeForce RTX 3090", **fields):
    device = {"name": name, "total_bytes": gib * GIB}
    base = {"host": host, "model": {"family": "sdxl"}, "width": 1024, "height": 1024, "device": device,
            "vae": {"dtype": "bf16"}, "host_args": list(flags)}  # fmt: skip
    return Request.from_dict(base | fields)


def parts(request, phase):
    return next(dict(item.resident_parts) for item in estimate(request).phases if item.name == phase)


def phases(request):
    return [item.name for item in estimate(request).phases]


def keys(request):
    return {note.key for note in estimate(request).notes}


@pytest.mark.parametrize("host", LINE)
def test_without_a_flag_the_manager_works_as_usual(host):
    assert launched(a_request(host)) == AS_USUAL


def test_a1111_has_no_such_manager():
    assert launched(a_request("a1111", ["--always-gpu", "--lowvram"])) == AS_USUAL


@pytest.mark.parametrize("host", LINE)
def test_the_denoiser_is_there_before_the_text_is_encoded_and_stays(host):
    request = a_request(host, [HIGH[host]])
    assert launched(request) == Launched(stays=frozenset(("unet",)), whole=True)
    assert all(parts(request, phase)["unet"] >= UNET_BYTES - 2 * MIB for phase in phases(request))
    assert "estimate.whole_by_flag" in keys(request)


@pytest.mark.parametrize("host", LINE)
def test_kept_whole_a_model_is_too_large_for_a_card_on_which_a_part_of_it_would_run(host):
    usual, kept = a_request(host, gib=5), a_request(host, [HIGH[host]], gib=5)
    assert estimate(usual).verdict in ("fits", "tight") and estimate(kept).verdict == "wont_fit"
    assert parts(kept, "sampling")["unet"] >= UNET_BYTES - 2 * MIB > parts(usual, "sampling")["unet"]


@pytest.mark.parametrize("host", LINE)
def test_with_all_on_the_gpu_nothing_leaves_it(host):
    request = a_request(host, [GPU[host]], gib=8)
    assert launched(request).stays == EVERYWHERE
    assert set(parts(request, "vae_decode")) >= EVERYWHERE


@pytest.mark.parametrize("host", LINE)
@pytest.mark.parametrize("flags", [LOW, NONE])
def test_text_encoders_work_on_the_cpu_in_the_states_that_save(host, flags):
    request = a_request(host, [flags[host]])
    assert "text_encode" not in phases(request) and "estimate.text_on_cpu_by_flag" in keys(request)


@pytest.mark.parametrize("host", LINE)
def test_without_vram_one_layer_at_a_time_is_on_the_card(host):
    found = parts(a_request(host, [NONE[host]]), "sampling")
    assert found["swap"] and not found.get("unet")


@pytest.mark.parametrize("host", LINE)
def test_low_vram_splits_weights_as_without_it(host):
    low, usual = (parts(a_request(host, flags, gib=5), "sampling")["unet"] for flags in ([LOW[host]], []))
    assert low == usual


@pytest.mark.parametrize("host", LINE)
def test_all_other_models_leave_before_one_is_loaded(host):
    usual, leaving = (parts(a_request(host, flags), "sampling") for flags in ([], [LEAVE[host]]))
    assert "text_encoders" in usual and "text_encoders" not in leaving
    assert leaving["unet"] >= UNET_BYTES - 2 * MIB


def test_reforges_flag_of_that_name_is_read_by_nobody():
    request = a_request("reforge", ["--always-offload-from-vram"])
    assert "text_encoders" in parts(request, "sampling") and "estimate.flag_inert" in keys(request)


@pytest.mark.parametrize("host", LINE)
def test_a_vae_on_the_cpu_has_no_phase_of_its_own(host):
    request = a_request(host, [VAE[host]])
    assert phases(request) == ["text_encode", "sampling"] and "estimate.vae_on_cpu_by_flag" in keys(request)


def test_classic_puts_the_text_encoders_of_a_small_card_on_the_cpu_unless_told_not_to():
    small, told = a_request("classic", gib=4), a_request("classic", ["--always-normal-vram"], gib=4)
    assert launched(small).text_on_cpu and launched(told) == AS_USUAL
    assert not launched(a_request("forge", gib=4)).text_on_cpu


@pytest.mark.parametrize(
    ("host", "flag"), [("classic", "--clip-in-cpu"), ("neo", "--cpu-text-enc"), ("neo", "--neveroom")]
)
def test_flags_that_only_some_hosts_have(host, flag):
    assert launched(a_request(host, [flag])).text_on_cpu


def test_pinned_and_streamed_weights_are_named_where_weights_are_swapped():
    flags = ["--pin-shared-memory", "--cuda-stream"]
    assert {"estimate.flag_pins", "estimate.flag_streams"} <= keys(a_request(flags=flags, gib=5))
    assert not {"estimate.flag_pins", "estimate.flag_streams"} & keys(a_request(flags=flags))


@pytest.mark.parametrize("host", LINE)
@pytest.mark.parametrize("flags", [HIGH, GPU, NONE, LOW, LEAVE, VAE])
@pytest.mark.parametrize("gib", [3, 4, 6, 8, 12])
def test_what_is_said_to_run_is_never_ruled_out_by_its_floor(host, flags, gib):
    request = a_request(host, [flags[host]], gib=gib)
    assert could_fit(request) or estimate(request).verdict == "wont_fit"


@pytest.mark.parametrize(
    ("host", "flags", "conf", "name", "expected"),
    [
        ("forge", ["--cuda-malloc"], "", "NVIDIA GeForce RTX 3090", "backend:cudaMallocAsync"),
        ("classic", ["--cuda-malloc"], "max_split_size_mb:512", "NVIDIA GeForce RTX 3090",
         "max_split_size_mb:512,backend:cudaMallocAsync"),
        ("forge", ["--cuda-malloc"], "backend:native", "NVIDIA GeForce RTX 3090", "backend:native"),
        ("forge", ["--cuda-malloc"], "", "NVIDIA GeForce GTX 1650", ""),
        ("forge", ["--cuda-malloc"], "", "NVIDIA GeForce GTX 960", ""),
        ("a1111", ["--cuda-malloc"], "", "NVIDIA GeForce RTX 3090", ""),
        ("neo", ["--expandable-segments"], "", "NVIDIA GeForce RTX 3090", "expandable_segments:True"),
        ("forge", ["--expandable-segments"], "", "NVIDIA GeForce RTX 3090", ""),
    ],
)  # fmt: skip
def test_flags_add_to_the_allocators_setting(host, flags, conf, name, expected):
    request = a_request(host, flags, alloc_conf=conf, name=name)
    assert set_conf(request) == conf_of(request) == expected


def test_the_drivers_own_pool_is_computed_with_and_said():
    pool, native = a_request(flags=["--cuda-malloc"]), a_request()
    wanted = [max(phase.comfortable_bytes for phase in estimate(item).phases) for item in (pool, native)]
    assert wanted[0] < wanted[1] and "estimate.alloc_conf_pool" in keys(pool)


@pytest.mark.parametrize(("host", "gib", "left"), [("neo", 9, 0), ("reforge", 9, 0), ("classic", 9, 2144)])
def test_room_is_made_for_a_denoiser_that_is_there_already_when_it_is_loaded_for_the_first_time(host, gib, left):
    """Neo and reForge ask for all of it, so the text encoders leave; Classic asks for what is not there."""
    found = parts(a_request(host, [HIGH[host]], gib=gib, vae={"dtype": "fp16"}), "sampling")
    assert found.get("text_encoders", 0) // MIB == pytest.approx(left, abs=600 if left else 0)


@pytest.mark.parametrize(
    ("flags", "storage", "said"),
    [
        (["--precision", "full"], None, {"estimate.precision_full_alone"}),
        (["--precision=full", "--no-half"], None, set()),
        (["--precision", "full"], "fp8", set()),
        (["--precision", "half"], None, {"estimate.precision_half"}),
        (["--precision", "autocast"], None, set()),
    ],
)
def test_what_a1111s_flags_for_precision_do_is_said(flags, storage, said):
    request = a_request("a1111", flags, model={"family": "sd15", "storage_dtype": storage})
    assert {key for key in keys(request) if "precision" in key} == said
