"""What the hosts' flags mean for memory."""

from __future__ import annotations

import pytest

from lib_vram.errors import BadInput
from lib_vram.estimate.flags import (
    compute_dtype,
    conf_of,
    lacks_fused_attention,
    offload_mode,
    replayed_conf,
    unet_dtype,
    uses_two_halves,
    vae_dtype,
)
from tests.estimate.stand_in import a_request


@pytest.mark.parametrize(
    ("family", "flags", "mode"),
    [
        ("sd15", [], "normal"),
        ("sd15", ["--medvram"], "medvram"),
        ("sd15", ["--medvram-sdxl"], "normal"),
        ("sdxl", ["--medvram-sdxl"], "medvram"),
        ("sdxl", ["--medvram", "--lowvram"], "lowvram"),
    ],
)
def test_medvram_sdxl_counts_for_sdxl_only_and_lowvram_wins(family, flags, mode):
    assert offload_mode(a_request(model={"family": family}, host_args=flags)) == mode


@pytest.mark.parametrize(
    ("host", "flags", "dtypes"),
    [
        ("a1111", [], ("fp16", "fp16", "fp16")),
        ("a1111", ["--no-half"], ("fp32", "fp32", "fp32")),
        ("a1111", ["--no-half-vae"], ("fp16", "fp16", "fp32")),
        ("a1111", ["--precision", "full"], ("fp32", "fp16", "fp16")),
        ("a1111", ["--precision=full", "--no-half"], ("fp32", "fp32", "fp32")),
        ("a1111", ["--precision", "autocast"], ("fp16", "fp16", "fp16")),
        ("a1111", ["--upcast-sampling"], ("fp16", "fp16", "fp16")),
        ("forge", ["--no-half"], ("fp16", "fp16", "fp16")),
        ("forge", ["--all-in-fp32"], ("fp32", "fp32", "fp16")),
        ("forge", ["--vae-in-fp32"], ("fp16", "fp16", "fp32")),
    ],
)
def test_precision_flags_decide_activations_weights_and_vae(host, flags, dtypes):
    request = a_request(host=host, host_args=flags)
    assert (compute_dtype(request), unet_dtype(request), vae_dtype(request)) == dtypes


@pytest.mark.parametrize(
    ("host", "flags", "model", "dtypes"),
    [
        ("a1111", ["--no-half"], {"storage_dtype": "fp8"}, ("fp32", "fp8", "fp32")),
        ("a1111", ["--no-half"], {"weights_dtype": "fp8"}, ("fp32", "fp8", "fp32")),
        ("a1111", ["--no-half-vae"], {"storage_dtype": "fp8"}, ("fp16", "fp8", "fp32")),
        ("a1111", ["--precision", "full"], {"storage_dtype": "fp8"}, ("fp32", "fp8", "fp16")),
        ("forge", ["--all-in-fp32"], {"storage_dtype": "fp8"}, ("fp32", "fp8", "fp16")),
        ("forge", ["--all-in-fp32"], {"weights_dtype": "nf4", "family": "flux1"}, ("fp32", "nf4", "fp16")),
        ("neo", ["--force-fp32"], {"weights_dtype": "q8_0", "family": "flux1"}, ("fp32", "q8_0", "fp32")),
        ("neo", ["--force-fp32"], {"weights_dtype": "bf16"}, ("fp32", "fp32", "fp32")),
    ],
)
def test_storage_in_fewer_bits_wins_over_the_flags_for_fp32(host, flags, model, dtypes):
    request = a_request(host=host, host_args=flags, model={"family": "sd15"} | model)
    assert (compute_dtype(request), unet_dtype(request), vae_dtype(request)) == dtypes


@pytest.mark.parametrize(("host", "cfg", "two"), [("a1111", 1.0, True), ("forge", 1.0, False), ("forge", 7.0, True)])
def test_a1111_computes_the_unconditional_half_even_at_a_cfg_scale_of_1(host, cfg, two):
    assert uses_two_halves(a_request(host=host, cfg_scale=cfg)) is two


def test_every_allocator_setting_of_pytorch_is_replayed():
    assert replayed_conf("backend:cudaMallocAsync") == "backend:cudaMallocAsync"
    assert replayed_conf("expandable_segments:True") == "expandable_segments:True"
    with pytest.raises(BadInput):
        replayed_conf("no_such_option:1")


@pytest.mark.parametrize(
    ("platform", "conf"),
    [("linux", "expandable_segments:True,roundup_power2_divisions:4"), ("windows", "roundup_power2_divisions:4")],
)
def test_expandable_segments_take_no_effect_on_windows(platform, conf):
    asked = "expandable_segments:True,roundup_power2_divisions:4"
    assert conf_of(a_request(alloc_conf=asked, system={"platform": platform})) == conf


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("NVIDIA GeForce RTX 3060", False), ("GPU", False), ("NVIDIA GeForce GTX 1080", False), ("Tesla K80", True),
     ("Apple M2 Max", True), ("AMD Radeon RX 7900 XTX", False), ("AMD Radeon RX 580", True)],
)  # fmt: skip
def test_cards_without_a_fused_kernel_keep_the_score_matrix(name, lacks):
    card = {"name": name, "total_bytes": 8 * 1024**3}
    assert lacks_fused_attention(a_request(device=card)) == lacks
    assert not lacks_fused_attention(a_request(device=card, attention="sub_quad"))
