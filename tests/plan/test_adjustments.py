"""The rungs of the ladder, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.plan.adjustments import (
    BATCH_TO_COUNT,
    HIRES_SCALE,
    LADDER,
    SMALLER_SIZE,
    VAE_TILED,
    offered,
    same_aspect,
    sizes_on_grid,
    smaller_sizes,
)
from lib_vram.plan.levers import has_lever
from lib_vram.plan.result import COSTS
from tests.estimate.stand_in import a_request

BATCH, TILE, HIRES, SIZE = BATCH_TO_COUNT, VAE_TILED, HIRES_SCALE, SMALLER_SIZE


def test_the_ladder_goes_from_harmless_to_harmful():
    assert [rung.id for rung in LADDER] == [
        "free_idle_models", "live_preview", "attention", "vae_sliced", "batch_to_count", "cond_uncond_apart",
        "offload", "vae_tiled", "upscaler_tile", "controlnet_low_vram", "offload_layers", "reserve", "fp8_storage",
        "hires_scale", "smaller_size",
    ]  # fmt: skip
    costs = [COSTS.index(rung.costs(None)) for rung in LADDER]
    assert costs == sorted(costs)


@pytest.mark.parametrize("host", ["a1111", "forge", "neo", "reforge", "classic"])
def test_only_what_the_host_can_do_is_offered(host):
    rungs = offered(a_request(host=host))
    assert all(has_lever(host, rung.id) for rung in rungs)
    assert [rung.id for rung in rungs][-2:] == ["hires_scale", "smaller_size"]


@pytest.mark.parametrize(
    ("size", "count", "sizes"), [(4, 1, (2, 1)), (3, 2, (2, 1)), (1, 5, ()), (6, 2, (4, 3, 2, 1)), (7, 1, (1,))]
)
def test_smaller_batches_that_give_the_same_number_of_images(size, count, sizes):
    request = a_request(batch_size=size, batch_count=count)
    assert BATCH.candidates(request) == sizes
    assert all(BATCH.apply(request, smaller).images == size * count for smaller in sizes)


def test_the_batch_step_reads_as_a_person_would_say_it():
    before = a_request(batch_size=4)
    assert str(BATCH.text(before, BATCH.apply(before, 1))) == ("Batch 4 → 1, 4 runs: same pictures")
    more = a_request(batch_size=4, batch_count=2)
    assert str(BATCH.text(more, BATCH.apply(more, 2))) == "Batch 4 → 2, 2 → 4 runs: same pictures"


@pytest.mark.parametrize(
    ("vae", "first", "how_many"),
    [({}, 1024, 13), ({"tiled": True}, 704, 8), ({"tiled": True, "tile_size": 320}, 256, 1)],
)
def test_tiles_go_down_from_1024_to_256_or_from_what_they_are(vae, first, how_many):
    tiles = TILE.candidates(a_request(vae=vae))
    assert (tiles[0], tiles[-1], len(tiles)) == (first, 256, how_many)


def test_smaller_tiles_say_what_they_were():
    before = a_request(vae={"tiled": True})
    assert str(TILE.text(before, TILE.apply(before, 512))) == (
        "VAE tiles 768 → 512 pixels: same picture to the eye, slower VAE"
    )


@pytest.mark.parametrize(("forge", "candidates"), [({}, (True,)), ({"never_oom_vae": True}, ())])
def test_forge_has_one_switch_for_tiles(forge, candidates):
    request = a_request(host="forge", forge=forge)
    assert TILE.candidates(request) == candidates
    assert TILE.apply(request, True).forge.never_oom_vae


@pytest.mark.parametrize(("width", "candidates"), [(120, ()), (128, (True,))])
def test_forge_cannot_decode_very_small_pictures_in_tiles(width, candidates):
    assert TILE.candidates(a_request(host="forge", width=width)) == candidates


@pytest.mark.parametrize(
    ("hires", "candidates"),
    [
        ({"scale": 1.2}, (1.15, 1.1, 1.05)),
        ({"scale": 1.13}, (1.1, 1.05)),
        ({"scale": 1.05}, ()),
        ({"width": 544}, (536, 528, 520)),
        ({"height": 530}, (528, 520)),
        ({"width": 536, "height": 804}, ((536, 800), (528, 792), (520, 784), (520, 776), (512, 768), (504, 760))),
    ],
)
def test_the_second_pass_gets_smaller_down_to_the_first(hires, candidates):
    request = a_request(hires=hires)
    found = HIRES.candidates(request)
    assert found[: len(candidates)] == candidates
    if not ("width" in hires and "height" in hires):
        assert found == candidates


def test_a_second_pass_of_img2img_is_not_there():
    assert HIRES.candidates(a_request(mode="img2img", hires={})) == ()
    assert HIRES.candidates(a_request()) == ()


@pytest.mark.parametrize(
    ("hires", "candidate", "size"),
    [
        ({"scale": 2.0}, 1.5, (768, 768)),
        ({"width": 1024}, 768, (768, 768)),
        ({"height": 1024}, 768, (768, 768)),
        ({"width": 1024, "height": 1536}, (512, 768), (512, 768)),
    ],
)
def test_a_smaller_second_pass_is_written_where_the_size_came_from(hires, candidate, size):
    assert HIRES.apply(a_request(hires=hires), candidate).hires_size() == size


@pytest.mark.parametrize(
    ("hires", "field", "value"),
    [
        ({"scale": 1.5}, "hires.scale", 1.5),
        ({"width": 1024}, "hires.width", 1024),
        ({"height": 1024}, "hires.height", 1024),
        ({"width": 1024, "height": 768}, "hires", "1024×768"),
    ],
)
def test_the_hires_step_names_the_field_that_the_size_came_from(hires, field, value):
    request = a_request(hires=hires)
    assert (HIRES.field(request), HIRES.value(request)) == (field, value)


@pytest.mark.parametrize(
    ("host", "vae", "field", "value"),
    [
        ("a1111", {}, "vae.tiled", False),
        ("a1111", {"tiled": True}, "vae.tile_size", 768),
        ("forge", {}, "forge.never_oom_vae", False),
    ],
)
def test_the_tile_step_names_the_host_s_own_field(host, vae, field, value):
    request = a_request(host=host, vae=vae)
    assert (TILE.field(request), TILE.value(request)) == (field, value)


def test_hires_steps_say_scale_or_size():
    scale, size = a_request(hires={"scale": 2.0}), a_request(hires={"width": 1024, "height": 1536})
    assert str(HIRES.text(scale, HIRES.apply(scale, 1.65))) == (
        "Hires. fix upscale by 2.0 → 1.65: same composition, less detail"
    )
    assert str(HIRES.text(size, HIRES.apply(size, (512, 768)))) == (
        "Hires. fix size 1024×1536 → 512×768: same composition, less detail"
    )


@given(st.integers(64, 16384), st.integers(64, 16384))
def test_smaller_sizes_keep_the_shape_to_one_latent_row_on_multiples_of_8(width, height):
    sizes = smaller_sizes(width, height)
    for new_width, new_height in (*sizes[:20], *sizes[-20:]):
        assert new_width % 8 == new_height % 8 == 0
        assert 64 <= new_width <= width and 64 <= new_height <= height
        if width >= height:
            assert abs(new_height - new_width * height / width) <= 8
        else:
            assert abs(new_width - new_height * width / height) <= 8


def test_smaller_sizes_miss_none_on_the_longer_side():
    assert [size[1] for size in smaller_sizes(512, 768)][:4] == [760, 752, 744, 736]
    assert smaller_sizes(72, 72) == ((64, 64),)
    assert smaller_sizes(64, 64) == ()


def test_a_size_that_is_not_on_multiples_of_8_is_only_lowered():
    assert smaller_sizes(1001, 1003)[0] == (1000, 1000)


def test_the_same_shape_at_another_size():
    assert same_aspect(512, 768, 1536) == (1024, 1536)
    assert same_aspect(1920, 1080, 1280) == (1280, 720)


@pytest.mark.parametrize(
    ("width", "height", "first"),
    [
        (1024, 1024, ((960, 960), (896, 896))),
        (1024, 1536, ((896, 1344), (768, 1152))),
        (1216, 832, ((1024, 704), (832, 576))),
        (1000, 1400, ((960, 1344),)),
    ],
)
def test_smaller_sizes_on_the_grid_of_a_host_that_rounds_to_64(width, height, first):
    sizes = SIZE.candidates(a_request(host="neo", width=width, height=height))
    assert sizes[: len(first)] == first


@given(st.integers(64, 4096), st.integers(64, 4096))
def test_sizes_on_a_grid_keep_the_shape_to_one_latent_row(width, height):
    for new_width, new_height in sizes_on_grid(width, height, 64):
        assert new_width % 64 == new_height % 64 == 0
        assert new_width <= width and new_height <= height
        off = min(abs(new_height - new_width * height / width), abs(new_width - new_height * width / height))
        assert off <= 8


def test_a_size_that_a_script_sets_when_the_run_begins_is_not_made_smaller():
    own, set_back = (a_request(tiled_diffusion={"sets_size": sets}) for sets in (False, True))
    assert SIZE.candidates(own) != () and SIZE.candidates(set_back) == ()
