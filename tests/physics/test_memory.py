"""What model parts need: published measurements, reference traces, and what always holds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.units import GIB, MIB

SIDES = st.integers(8, 256).map(lambda units: units * 8)
PARTS = st.sampled_from(("denoise", "vae_decode", "vae_encode", "controlnet"))
ATTENTIONS = st.sampled_from(("sdpa", "xformers", "math"))
COMPONENTS = st.builds(
    Component, family=st.sampled_from(("sd15", "sdxl")), part=PARTS, width=SIDES, height=SIDES,
    batch=st.integers(1, 4), attention=ATTENTIONS, cfg=st.booleans(), host=st.sampled_from(("forge", "a1111")),
)  # fmt: skip


def mib(family: str, part: str, side: int, **more: object) -> ComponentMemory:
    """Return a square part's figures in MiB."""
    memory = component_memory(Component(family, part, side, side, **more))  # type: ignore[arg-type]
    whole = {item.name: getattr(memory, item.name) for item in dataclasses.fields(memory)}
    return ComponentMemory(**{name: value / MIB if name != "source" else value for name, value in whole.items()})


@pytest.mark.parametrize(
    ("family", "part", "side", "floor", "minimum", "reserved"),
    [
        ("sd15", "denoise", 512, 125.3, 155, 256),
        ("sdxl", "denoise", 1024, 305.9, 358, 506),
        ("sdxl", "vae_decode", 1024, 2178.1, 2314, 3120),
    ],
)
def test_forges_own_classes_traced_on_meta_give_the_same(
    family: str, part: str, side: int, floor: float, minimum: int, reserved: int
) -> None:
    memory = mib(family, part, side)
    assert memory.floor_bytes == pytest.approx(floor, rel=0.001)
    assert memory.minimum_bytes == pytest.approx(minimum, abs=1)
    assert memory.comfortable_bytes == reserved


@pytest.mark.parametrize(
    ("width", "height", "measured"),
    [(512, 512, 572522496), (768, 768, 1285840437), (1024, 768, 1713831412), (1024, 1024, 2284486394)],
)
def test_sd_vae_decode_in_a1111_on_an_rtx_3060(width: int, height: int, measured: int) -> None:
    """max_memory_allocated of the vae-tile-infer table (fp16, xformers, RTX 3060 12 GB), resident model taken off."""
    memory = component_memory(
        Component("sd15", "vae_decode", width, height, attention="xformers", host="a1111", cfg=False)
    )
    assert memory.floor_bytes == pytest.approx(measured, rel=0.005)
    assert memory.low_bytes < measured < memory.high_bytes


def test_that_decode_grows_by_2176_bytes_per_pixel() -> None:
    """The same table, 512² to 2560 × 1440: 2177 bytes per pixel."""
    small, large = (
        component_memory(Component("sd15", "vae_decode", *size, attention="xformers", host="a1111")).floor_bytes
        for size in ((512, 512), (2560, 1440))
    )
    assert (large - small) / (2560 * 1440 - 512 * 512) == pytest.approx(2177, rel=0.001)


def test_with_little_room_for_workspaces_the_peak_lies_between_low_and_floor() -> None:
    """The same table: 2048² on the 12 GB card peaks at 2049 bytes per pixel."""
    memory = component_memory(Component("sd15", "vae_decode", 2048, 2048, attention="xformers", host="a1111"))
    assert memory.low_bytes < 2049 * 2048**2 < memory.floor_bytes
    assert memory.low_bytes / 2048**2 == pytest.approx(1536, rel=0.001)


def test_whole_score_matrices_in_the_vae_are_what_is_seen_at_1600() -> None:
    """The same table: 1600² peaks at 2582 bytes per pixel, two whole score matrices of 40 000² in half precision."""
    memory = component_memory(Component("sd15", "vae_decode", 1600, 1600, attention="math", host="a1111"))
    assert memory.floor_bytes / 1600**2 == pytest.approx(2582, rel=0.001)


def test_sdxl_vae_decode_in_diffusers_as_invokeai_measured_it() -> None:
    """InvokeAI PR 7673: fp16 at 1024², weights included: allocated 2.5342 GiB, reserved 4418 MiB."""
    memory = component_memory(Component("sdxl", "vae_decode", 1024, 1024, code="diffusers"))
    assert memory.weights_bytes + memory.floor_bytes == pytest.approx(2721076530, rel=0.002)
    assert memory.weights_bytes + memory.comfortable_bytes == pytest.approx(4632659100, rel=0.002)


def test_sdxl_vae_decode_in_fp32_takes_what_the_pipeline_showed_on_three_gpus() -> None:
    """OneDiff: 10.467 GiB, of which 6.7045 are weights, the VAE made fp32, and 8.125 MiB cuBLAS's."""
    memory = component_memory(Component("sdxl", "vae_decode", 1024, 1024, dtype="fp32", code="diffusers"))
    measured = 10.467 * GIB - 6.7045 * GIB - 8.125 * MIB
    assert memory.floor_bytes == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(
    ("family", "part", "dtype", "weights"),
    [
        ("sd15", "denoise", "fp16", 1639.4),
        ("sd15", "denoise", "fp32", 3278.8),
        ("sdxl", "denoise", "fp16", 4897.05),
        ("sd15", "text_encode", "fp16", 235),
        ("sdxl", "vae_decode", "fp16", 159.56),
        ("sdxl", "vae_encode", "fp32", 319.11),
        ("sdxl", "controlnet", "bf16", 2386.1),
    ],
)
def test_weights_are_as_large_as_the_published_models(family: str, part: str, dtype: str, weights: float) -> None:
    assert mib(family, part, 512, dtype=dtype).weights_bytes == pytest.approx(weights, rel=0.002)


def test_weights_may_be_stored_smaller_than_the_activations() -> None:
    quantised = mib("sdxl", "denoise", 512, weights_dtype="q8_0")
    assert quantised.weights_bytes == pytest.approx(4897.05 * 17 / 32, rel=0.001)


def test_a_slightly_larger_picture_can_need_many_times_more() -> None:
    """Split attention: 992² ran in 8 GB, 1000² filled 24 GB (AUTOMATIC1111 issue threads)."""
    slices, whole = (mib("sd15", "denoise", side, attention="split") for side in (992, 1000))
    assert slices.minimum_bytes < 2000
    assert whole.minimum_bytes > 22000


def test_given_free_memory_decides_how_attention_slices_itself() -> None:
    plenty, little = (mib("sdxl", "denoise", 1024, attention="split", free_bytes=free) for free in (16 * GIB, GIB // 2))
    assert plenty.floor_bytes > 1400
    assert little.minimum_bytes < 512


def test_a_part_without_self_slicing_does_not_look_at_free_memory() -> None:
    assert mib("sd15", "denoise", 512, free_bytes=1) == mib("sd15", "denoise", 512)


def test_a1111_takes_more_than_forge_because_it_normalises_in_fp32() -> None:
    forge, a1111 = (mib("sdxl", "denoise", 1024, host=host) for host in ("forge", "a1111"))
    assert 1.08 < a1111.floor_bytes / forge.floor_bytes < 1.15


@pytest.mark.parametrize(
    ("width", "height", "floor", "minimum", "reserved"),
    [(512, 512, 130.3, 150, 258), (512, 768, 195.3, 246, 352), (1024, 1024, 520.5, 604, 768)],
)
def test_a1111s_own_form_of_sd15s_transformer_blocks_gives_the_same(
    width: int, height: int, floor: float, minimum: int, reserved: int
) -> None:
    """``ldm``'s UNet with A1111's ``spatial_transformer_forward``, which leaves the picture in channels last."""
    memory = component_memory(Component("sd15", "denoise", width, height, host="a1111"))
    assert memory.floor_bytes / MIB == pytest.approx(floor, abs=0.1)
    assert (memory.minimum_bytes / MIB, memory.comfortable_bytes / MIB) == (minimum, reserved)


def test_cond_and_uncond_apart_is_half_the_batch() -> None:
    together = Component("sdxl", "denoise", 1024, 1024, batch=1)
    assert (
        component_memory(together).floor_bytes
        == component_memory(dataclasses.replace(together, batch=2, cfg=False)).floor_bytes
    )


def test_the_vae_does_not_know_cfg() -> None:
    assert mib("sd15", "vae_decode", 512, cfg=True) == mib("sd15", "vae_decode", 512, cfg=False)


def test_a_tile_needs_what_a_picture_of_its_size_needs() -> None:
    tile, picture = mib("sdxl", "vae_decode", 2048, tile=768), mib("sdxl", "vae_decode", 768)
    assert tile == picture


def test_a_tile_is_never_larger_than_the_picture() -> None:
    assert mib("sdxl", "vae_decode", 512, tile=768) == mib("sdxl", "vae_decode", 512)


def test_expandable_segments_need_less() -> None:
    usual, expandable = (mib("sdxl", "vae_decode", 1024, alloc_conf=conf) for conf in ("", "expandable_segments:True"))
    assert usual.floor_bytes == expandable.floor_bytes
    assert expandable.comfortable_bytes < 0.8 * usual.comfortable_bytes


def test_fp32_has_a_wider_interval() -> None:
    half, full = (mib("sdxl", "vae_decode", 1024, dtype=dtype) for dtype in ("fp16", "fp32"))
    assert half.high_bytes / half.floor_bytes == pytest.approx(1.02, abs=0.005)
    assert full.high_bytes / full.floor_bytes == pytest.approx(1.30, abs=0.005)


@pytest.mark.parametrize(
    "component",
    [
        Component("sdxl_refiner", "controlnet", 1024, 1024),
        Component("lumina2", "controlnet", 1024, 1024, code="diffusers"),
        Component("zimage", "denoise", 1024, 1024, batch=2, code="diffusers", attention="math"),
    ],
)
def test_what_is_not_ready_says_so(component: Component) -> None:
    with pytest.raises(NotReady):
        component_memory(component)


@pytest.mark.parametrize("change", [{"code": "diffusers", "attention": "sub_quad"}, {"alloc_conf": "nonsense"}])
def test_what_cannot_be_is_bad_input(change: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        component_memory(dataclasses.replace(Component("sd15", "denoise", 512, 512), **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "measured_gib"), [(1, 33.851), (4, 39.490), (8, 47.509)])
def test_flux_decoder_in_batches_takes_what_an_h100_showed(batch: int, measured_gib: float) -> None:
    """diffusers-torchao's table: 31.438 GiB of weights, cuBLAS's 32 MiB, embeddings and latents of 4.6 a picture."""
    memory = component_memory(Component("flux1", "vae_decode", 1024, 1024, batch=batch, dtype="bf16", code="diffusers"))
    beside = 31.438 + (32 + 4.6 * batch) / 1024
    assert memory.floor_bytes / GIB + beside == pytest.approx(measured_gib, abs=0.002)
    assert memory.high_bytes >= 1.58 * memory.low_bytes


@pytest.mark.parametrize("side", [512, 1024])
def test_a_larger_batch_of_a_decoder_never_needs_less(side: int) -> None:
    memories = [
        component_memory(Component("flux1", "vae_decode", side, side, batch=batch, code="diffusers"))
        for batch in range(1, 10)
    ]
    for figure in ("floor_bytes", "minimum_bytes", "comfortable_bytes", "low_bytes", "high_bytes"):
        values = [getattr(memory, figure) for memory in memories]
        assert values == sorted(values)


@given(COMPONENTS)
def test_floor_minimum_and_comfortable_come_in_order(component: Component) -> None:
    memory = component_memory(component)
    assert 0 < memory.low_bytes <= memory.floor_bytes <= memory.minimum_bytes <= memory.comfortable_bytes
    assert memory.floor_bytes <= memory.high_bytes


@given(COMPONENTS, SIDES, SIDES)
def test_more_pixels_never_need_less(component: Component, width: int, height: int) -> None:
    assume(width >= component.width and height >= component.height)
    larger = dataclasses.replace(component, width=width, height=height)
    assert component_trace(component).floor_bytes <= component_trace(larger).floor_bytes


@given(COMPONENTS)
def test_more_pictures_never_need_less(component: Component) -> None:
    larger = dataclasses.replace(component, batch=component.batch + 1)
    assert component_trace(component).floor_bytes < component_trace(larger).floor_bytes


@given(COMPONENTS)
def test_portrait_and_landscape_need_the_same(component: Component) -> None:
    turned = dataclasses.replace(component, width=component.height, height=component.width)
    assert component_trace(component).floor_bytes == component_trace(turned).floor_bytes


@given(COMPONENTS)
def test_without_cfg_a_part_never_needs_more(component: Component) -> None:
    on, off = (component_trace(dataclasses.replace(component, cfg=cfg)).floor_bytes for cfg in (True, False))
    assert off <= on
