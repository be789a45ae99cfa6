"""Whatever is asked, verdict and virtual card agree: drawn requests of every family on every host that runs it."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest

from lib_vram.estimate.estimator import could_fit, estimate
from lib_vram.estimate.flags import runs_on
from lib_vram.estimate.simulate import simulate
from lib_vram.physics.families import SHAPES
from lib_vram.request import Request
from lib_vram.units import GIB

HOSTS = ("a1111", "forge", "neo", "reforge", "classic")
CARDS = ("NVIDIA GeForce RTX 3060", "NVIDIA GeForce GTX 1080", "Tesla K80", "AMD Radeon RX 7900 XTX", "Apple M2 Max")
UPSCALERS = ("Latent", "None", "R-ESRGAN 4x+", "R-ESRGAN 2x+", "SwinIR 4x", "DAT x2", "ScuNET", "4x-UltraSharp", "new")
PREPROCESSORS = ("none", "canny", "openpose_full", "depth_midas", "softedge_hed", "lineart_anime", "normal_bae")
PAIRS = [(host, family) for host, family in product(HOSTS, SHAPES) if family != "loaded" and runs_on(host, family)]
"""Hosts with the families that they run."""


def drawn(rng: random.Random, host: str, family: str) -> dict[str, Any]:
    """Return a request for ``family`` on ``host`` with each of its fields there or not."""

    def maybe(share: float, **fields: Any) -> dict[str, Any]:
        return fields if rng.random() < share else {}

    total = rng.choice([4, 6, 8, 12, 16, 24]) * GIB
    kinds = ["controlnet", "control_lora", "t2i_adapter", "ip_adapter"] + ["controllllite"] * (family == "sdxl")
    units = [
        {"kind": rng.choice(kinds), "family": family, "low_vram": rng.random() < 0.3,
         "preprocessor": rng.choice(PREPROCESSORS)}
        for _ in range(rng.choice([1, 2]))
    ]  # fmt: skip
    encoders = [
        {"name": item.name, "dtype": rng.choice([None, "fp8", "q4_k"]), "device": rng.choice(["gpu", "cpu"])}
        for item in SHAPES[family].encoders  # type: ignore[index]
    ]
    return {
        "host": host, "width": rng.randrange(256, 1600, 8), "height": rng.choice([512, 768, 1024, 1280]),
        "device": {"name": rng.choice(CARDS), "total_bytes": total, "used_by_others_bytes": rng.choice([0, GIB // 2])},
        "model": {"family": family, "weights_dtype": rng.choice(["fp16", "bf16", "fp8", "q8_0", "nf4"]),
                  "storage_dtype": rng.choice([None, None, "fp8", "nf4"]),
                  "variant": rng.choice(["", "", "inpaint", "pix2pix"])},
        "batch_size": rng.choice([1, 1, 2, 4]), "batch_count": rng.choice([1, 3]), "cfg_scale": rng.choice([1.0, 5.0]),
        "attention": rng.choice(["sdpa"] * 4 + ["xformers", "sage", "math", "split", "sub_quad"]),
        "alloc_conf": rng.choice(["", "", "", "expandable_segments:True", "backend:cudaMallocAsync"]),
        "mode": rng.choice(["txt2img", "txt2img", "img2img"]), "live_preview": rng.choice(["approx", "taesd", "full"]),
        "vae": {"dtype": rng.choice(["fp16", "fp32"]), "tiled": rng.random() < 0.2},
        **maybe(0.3, hires={"scale": rng.choice([1.5, 2.0, 3.0]), "upscaler": rng.choice(UPSCALERS)}),
        **maybe(0.3, restore_faces=rng.choice(["gfpgan", "codeformer"])),
        **maybe(0.2, detailer={"model": rng.choice(["face_yolov8n.pt", "person_yolov8m-seg.pt", "mediapipe_face"])}),
        **maybe(0.2, upscaler_tile=rng.choice([0, 128, 512])),
        **maybe(0.2, idle_models=[{"kind": rng.choice(["checkpoint", "upscaler", "face_restore"]), "bytes": GIB}]),
        **maybe(0.4 if family in ("sd15", "sdxl") else 0, controlnets=units),
        **maybe(0.2, text_encoders=encoders),
        **maybe(0.3, reference_images=[{"width": 768, "height": 512}]),
        **maybe(0.2, token_merging_ratio=0.5),
        **maybe(0.2, hypertile={"vae": rng.random() < 0.5, "swap_size": rng.choice([1, 3])}),
        **maybe(0.3 if SHAPES[family].frames_per_latent > 1 else 0, frames=17),  # type: ignore[index]
        **maybe(0.3, tiled_diffusion={"tile_width": rng.choice([512, 768]), "batch": rng.choice([1, 4]),
                                      "first_pass_only": host == "a1111"}),
        **maybe(0.2, guidance=["sag", "freeu"]),
        **maybe(0.2, hires_model={"family": rng.choice(["sd15", "sdxl"]), "variant": rng.choice(["", "inpaint"])}),
        **maybe(0.2, refiner={"refined_pass": rng.choice(["first", "second"])}),
        **maybe(0.2, start_picture={"width": 900, "height": 1700}),
        **maybe(0.3 if host == "a1111" else 0, host_args=[rng.choice(["--medvram", "--lowvram", "--no-half"])]),
    }  # fmt: skip


def disagreement(data: dict[str, Any]) -> str:
    """Return in what the answers to a request do not go together, "" when they do."""
    request = Request.from_dict(data)
    result = estimate(request)
    if result.verdict == "unknown":
        return f"unknown: {result.notes[0]}"
    fits = result.verdict != "wont_fit"
    if (simulate(request).outcome == "completed") != fits:
        return f"{result.verdict}, but the virtual card ends {simulate(request)}"
    if fits and not could_fit(request):
        return "fits, but could not"
    if Request.from_dict(json.loads(json.dumps(request.to_dict()))) != request:
        return "another request when written and read"
    if not result.low_bytes <= result.peak_bytes <= result.high_bytes:
        return f"peak outside of its interval: {result.low_bytes} {result.peak_bytes} {result.high_bytes}"
    return next((f"{phase} out of order" for phase in result.phases if not
                 phase.low_bytes <= phase.floor_bytes <= phase.comfortable_bytes), "")  # fmt: skip


@pytest.mark.parametrize(("host", "family"), PAIRS)
def test_verdict_and_virtual_card_agree(host: str, family: str) -> None:
    rng = random.Random(f"{host} {family}")
    data = drawn(rng, host, family)
    assert disagreement(data) == "", data
