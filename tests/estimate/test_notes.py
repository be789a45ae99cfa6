"""What an estimate says beside its numbers."""

from __future__ import annotations

import json

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.message import LANGUAGES, TEXT_FOLDER, render
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def keys(request):
    return [note.key.removeprefix("estimate.") for note in estimate(request, physics).notes]


ALWAYS = ["weights_of_family", "interval"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"width": 1001}, "size_cut"),
        ({"vae": {"tiled": True, "tile_size": 256}}, "tiles"),
        ({"host_args": ["--no-half"]}, "interval.fp32"),
        ({"host": "forge", "model": {"family": "sdxl", "storage_dtype": "fp8"}}, "interval.quantised"),
        ({"device": {"name": "NVIDIA GeForce GTX 1080", "total_bytes": 8 * GIB}}, "interval.old_gpu"),
        ({"device": {"name": "AMD Radeon RX 7900 XTX", "total_bytes": 8 * GIB}}, "interval.rocm"),
        ({"hires": {"upscaler": "LDSR"}}, "upscaler_not_counted"),
        ({"hires": {"upscaler": "my own model"}}, "upscaler_by_rule"),
        ({"controlnets": [{"preprocessor": "seg_ofade20k"}]}, "preprocessor_by_rule"),
        ({"controlnets": [{"kind": "ip_adapter"}]}, "control_of_typical_size"),
        ({"detailer": {"model": "my_detector.pt"}}, "detector_by_rule"),
        ({"loras": [{"bytes": 1}]}, "loras_merged"),
        ({"model": {"family": "sdxl"}}, "vae_may_run_in_fp32"),
        ({"live_preview": "full"}, "preview_full"),
        ({"live_preview": "full", "host_args": ["--medvram"]}, "preview_full_not_under_medvram"),
        ({"alloc_conf": "backend:cudaMallocAsync"}, "alloc_conf_pool"),
        ({"device": {"name": "Apple M2 Max", "total_bytes": 8 * GIB}}, "no_fused_attention"),
        ({"alloc_conf": "expandable_segments:True"}, "expandable_not_on_windows"),
        ({"alloc_conf": "expandable_segments:True", "system": {"platform": "windows"}}, "expandable_ignored"),
        ({"host": "forge", "width": 2048, "height": 2048}, "forge_retries_tiled"),
        ({"host": "forge", "device": {"total_bytes": 2 * GIB}}, "forge_swaps"),
        ({"host": "forge", "width": 2048, "height": 2048, "batch_size": 4}, "forge_halves"),
    ],
)
def test_what_is_not_plain_is_said(changes, key):
    assert key in keys(a_request(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hires": {"upscaler": "Latent (nearest)"}},
        {"hires": {"upscaler": "Lanczos"}},
        {"hires": {"upscaler": "R-ESRGAN 4x+"}, "mode": "img2img"},
        {"alloc_conf": "max_split_size_mb:128"},
        {"host": "forge"},
        {"host": "forge", "live_preview": "full"},
        {"vae": {"tiled": True, "tile_size": 1024}},
    ],
)
def test_what_is_plain_is_not_talked_about(changes):
    assert keys(a_request(**changes)) == ALWAYS


def test_a_cut_size_says_what_is_computed():
    note = next(note for note in estimate(a_request(width=1001), physics).notes if note.key.endswith("size_cut"))
    assert render(note) == "The host computes whole rows of the latent: 1001×512 becomes 1000×512."
    assert render(note, "pt") == "O programa calcula linhas inteiras do latente: 1001×512 vira 1000×512."


@pytest.mark.parametrize("area", ["estimate", "plan"])
def test_every_sentence_is_there_in_every_language_with_the_same_placeholders(area):
    texts = {name: json.loads((TEXT_FOLDER / name / f"{area}.json").read_text(encoding="utf-8")) for name in LANGUAGES}
    assert list(texts["en"]) == sorted(texts["en"])
    for name in LANGUAGES:
        assert texts[name].keys() == texts["en"].keys()
        for key, sentence in texts[name].items():
            assert placeholders(sentence) == placeholders(texts["en"][key]), (name, key)


def placeholders(sentence: str) -> list[str]:
    return sorted(part.split("}")[0] for part in sentence.split("{")[1:])


def test_a_note_on_a_relative_of_forge_has_its_own_name():
    notes = estimate(a_request(host="reforge", device={"total_bytes": 2 * GIB}, width=2048, height=2048)).notes
    swaps = next(note for note in notes if note.key == "estimate.forge_retries_tiled")
    assert str(swaps).startswith("reForge ")
