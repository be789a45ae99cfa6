"""What A1111 keeps on the device, rule by rule."""

from __future__ import annotations

import pytest

from lib_vram.estimate.residency import CONTEXT_BYTES, available_bytes, place, with_part
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import weights_of
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request


def kept(request):
    """Return for each work the parts on the device in MiB, without the driver's context."""
    placed = place(request, timeline(request), weights_of(request))
    return [
        {name: size // MIB for name, size in item.resident if name not in ("context", "latents", "images")}
        for item in placed
    ]


EVERYTHING = {"unet": 1654, "text_encoders": 242, "vae": 166}
"""As allocated: 13, 7 and 5 MiB above their sums."""


def test_without_flags_everything_stays():
    assert kept(a_request()) == [EVERYTHING] * 3


def test_medvram_keeps_the_part_at_work():
    assert kept(a_request(host_args=["--medvram"])) == [{"text_encoders": 242}, {"unet": 1654}, {"vae": 166}]


def test_medvram_sdxl_changes_nothing_for_sd15():
    assert kept(a_request(host_args=["--medvram-sdxl"])) == [EVERYTHING] * 3


def test_lowvram_keeps_the_unet_s_largest_block():
    assert kept(a_request(host_args=["--lowvram"])) == [{"text_encoders": 242}, {"unet": 188}, {"vae": 166}]
    sdxl = a_request(model={"family": "sdxl"}, host_args=["--lowvram"])
    assert kept(sdxl) == [{"text_encoders": 1568}, {"unet": 816}, {"vae": 166}]


def test_a_controlnet_stays_in_every_phase():
    request = a_request(controlnets=[{"family": "sd15"}], host_args=["--medvram"])
    assert [parts.get("controlnet", 0) for parts in kept(request)] == [698, 698, 698, 698]


def test_a_low_vram_controlnet_is_there_in_its_own_turn_only():
    request = a_request(controlnets=[{"family": "sd15", "low_vram": True}, {"family": "sd15", "low_vram": True}])
    assert [parts.get("controlnet", 0) for parts in kept(request)] == [0, 698, 698, 0, 0]


def test_a_vae_in_fp32_doubles_and_does_not_touch_the_controlnet():
    request = a_request(controlnets=[{"family": "sd15"}], host_args=["--no-half-vae"])
    assert kept(request)[-1] == {"unet": 1654, "text_encoders": 242, "vae": 322, "controlnet": 698}


def test_the_driver_s_context_is_in_every_phase_and_parts_are_whole_segments_largest_first():
    request = a_request()
    for item in place(request, timeline(request), weights_of(request)):
        sizes = [size for _, size in item.resident]
        assert dict(item.resident)["context"] == CONTEXT_BYTES
        assert sizes == sorted(sizes, reverse=True)
        assert all(size % (2 * MIB) == 0 for size in sizes)
        assert item.resident_bytes == sum(sizes)


def test_a_part_can_be_added():
    request = a_request()
    placed = place(request, timeline(request), weights_of(request))[1]
    assert with_part(placed, "live_preview", 3 * MIB).resident_bytes == placed.resident_bytes + 4 * MIB


@pytest.mark.parametrize(
    ("total", "others", "left"), [(8 * GIB, 0, 8 * GIB), (8 * GIB, GIB, 7 * GIB), (GIB, 2 * GIB, 0)]
)
def test_what_others_hold_is_not_available(total, others, left):
    request = a_request(device={"total_bytes": total, "used_by_others_bytes": others})
    assert available_bytes(request) == left


def test_sdpa_on_a_card_without_its_kernels_is_math_but_not_in_our_own_tiles():
    def ways(**changes):
        request = a_request(device={"name": "Tesla K80", "total_bytes": 12 * GIB}, **changes)
        return [item.component.attention for item in place(request, timeline(request), weights_of(request))]

    assert ways() == ["math", "math", "math"]
    assert ways(vae={"tiled": True}, width=1024) == ["math", "math", "sdpa"]
    assert ways(vae={"tiled": True}, width=1024, host="forge") == ["math", "math", "math"]


@pytest.mark.parametrize(
    ("name", "args", "way"),
    [("NVIDIA GeForce RTX 3060", [], "sdpa"), ("NVIDIA GeForce RTX 2080", [], "xformers"),
     ("NVIDIA GeForce GTX 1080", [], "xformers"), ("NVIDIA GeForce RTX 3060", ["--no-half"], "xformers"),
     ("NVIDIA H100", [], "sdpa")],
)  # fmt: skip
def test_torch_s_memory_efficient_kernel_keeps_no_sums_as_xformers_does(name, args, way):
    request = a_request(device={"name": name, "total_bytes": 12 * GIB}, host_args=args)
    placed = place(request, timeline(request), weights_of(request))
    assert [item.component.attention for item in placed] == [way, way, "sdpa"]
