"""Profiles of the hosts' own transformers and VAEs, against peaks of fresh traces of the same classes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.component import CodeHost, Component, Part
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.physics.minimum import minimum_and_comfortable
from lib_vram.request import Family

TRACED: tuple[tuple[Family, Part, CodeHost, int, int, int, int], ...] = (
    ("flux1", "denoise", "forge", 1, 1024, 1024, 636016128),
    ("flux1", "denoise", "forge", 2, 768, 1280, 1202143744),
    ("chroma", "denoise", "forge", 1, 1024, 1024, 638192128),
    ("chroma", "denoise", "forge", 2, 768, 1280, 1206495232),
    ("sd35_medium", "denoise", "forge", 1, 1024, 1024, 380489216),
    ("sd35_medium", "denoise", "forge", 2, 768, 1280, 715299328),
    ("flux1", "denoise", "neo", 1, 1024, 1024, 438360576),
    ("flux1", "denoise", "neo", 2, 768, 1280, 828771328),
    ("flux2_klein_4b", "denoise", "neo", 1, 1024, 1024, 499737088),
    ("flux2_klein_4b", "denoise", "neo", 2, 768, 1280, 945082880),
    ("flux2_klein_9b", "denoise", "neo", 2, 768, 1280, 1259950592),
    ("lumina2", "denoise", "neo", 1, 1024, 1024, 385606656),
    ("lumina2", "denoise", "neo", 2, 768, 1280, 726124032),
    ("zimage", "denoise", "neo", 1, 1024, 1024, 493132288),
    ("zimage", "denoise", "neo", 2, 768, 1280, 932196864),
    ("wan21_1b", "denoise", "neo", 1, 1024, 1024, 208207360),
    ("wan21_1b", "denoise", "neo", 2, 768, 1280, 391091200),
    ("flux2_klein_4b", "vae_decode", "neo", 1, 1024, 1024, 2284978688),
    ("flux2_klein_4b", "vae_decode", "neo", 2, 768, 1280, 4283302400),
    ("flux2_klein_4b", "vae_encode", "neo", 2, 768, 1280, 2528673792),
    ("qwen_image", "vae_decode", "neo", 1, 1024, 1024, 1322586112),
    ("wan21_14b", "vae_encode", "neo", 2, 768, 1280, 1899565056),
)
"""Family, part, host, batch, width, height and the peak in bytes, from ``tools/host_parts.py``'s modules."""


@pytest.mark.parametrize(("family", "part", "host", "batch", "width", "height", "peak_bytes"), TRACED)
def test_the_peak_is_that_of_a_fresh_trace(
    family: Family, part: Part, host: CodeHost, batch: int, width: int, height: int, peak_bytes: int
) -> None:
    at = Component(family, part, width, height, batch=batch, cfg=False, host=host)
    assert component_trace(at).floor_bytes == peak_bytes


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        ("sd35_medium", 2_469_663_936), ("sd35_large", 8_146_280_768), ("flux1", 11_901_408_320),
        ("flux2_klein_4b", 3_875_544_576), ("flux2_klein_9b", 9_078_581_248), ("qwen_image", 20_430_401_088),
        ("zimage", 6_154_908_736), ("lumina2", 2_609_769_152), ("wan21_1b", 1_418_996_800),
    ],
)  # fmt: skip
def test_weights_are_those_of_the_published_configuration(family: Family, parameters: int) -> None:
    assert component_memory(Component(family, "denoise", 1024, 1024, host="neo")).weights_bytes == 2 * parameters


def test_neo_runs_flux_in_less_than_forge() -> None:
    """Neo's rotary embedding is one kernel; Forge's computes in fp32 step by step."""
    forge = Component("flux1", "denoise", 1024, 1024, cfg=False)
    assert component_memory(replace(forge, host="neo")).floor_bytes < component_memory(forge).floor_bytes


def test_neo_has_forges_unet() -> None:
    forge = Component("sdxl", "denoise", 1024, 1024)
    assert component_memory(replace(forge, host="neo")) == component_memory(forge)


def test_tokens_of_all_frames_count() -> None:
    one = Component("wan21_1b", "denoise", 832, 480, host="neo")
    film = component_memory(replace(one, frames=81))
    assert film.floor_bytes > 15 * component_memory(one).floor_bytes


@pytest.mark.parametrize("family", ["flux1", "chroma", "flux2_klein_9b", "qwen_image", "zimage", "wan21_14b"])
@pytest.mark.parametrize(("width", "height"), [(512, 768), (1088, 1024)])
def test_the_minimum_is_that_of_every_block(family: Family, width: int, height: int) -> None:
    """With two turns of each loop it is up to 10 % off."""
    component = Component(family, "denoise", width, height, host="neo", cfg=False)
    whole = component_trace(component)
    memory = component_memory(component)
    assert (memory.minimum_bytes, memory.comfortable_bytes) == minimum_and_comfortable(
        whole, AllocatorConf(), whole.floor_bytes
    )
    assert len(whole.operations) > 2000
