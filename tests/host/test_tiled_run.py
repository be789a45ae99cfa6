"""Our tiles in a run of A1111 or reForge: the VAE works in them while it lasts, and the hosts' functions come back."""

from __future__ import annotations

import pytest

from lib_vram.host.patches import Run
from lib_vram.host.tiled_run import own_tiles
from tests.fakehost.fixtures import fake as fake
from tests.fakehost.processing import Img2Img, page_run

COMMON, PROCESSING = "modules.sd_samplers_common", "modules.processing"


@pytest.fixture(params=["a1111", "reforge"])
def host_name(request):
    return request.param


def functions(fake):
    """The hosts' functions that are wrapped, as they are now."""
    common, processing = fake.modules[COMMON], fake.modules[PROCESSING]
    return (
        common.samples_to_images_tensor,
        common.images_tensor_to_samples,
        processing.images_tensor_to_samples,
    )


def a_start(fake, **changes):
    return fake.make(Img2Img, init_images=["a picture"], own=[{"tiled": True, "tile_size": 512}], **changes)


def test_a_start_picture_is_encoded_in_our_tiles_and_the_result_decoded_in_them(fake):
    page_run(a_start(fake))
    assert (fake.record.encodes, fake.record.decodes) == (["tiled 512"], ["tiled 512"])


def test_without_tiles_it_is_encoded_whole(fake):
    page_run(fake.make(Img2Img, init_images=["a picture"]))
    assert fake.record.encodes == ["whole"]


def test_the_hosts_functions_are_back_after_the_run(fake):
    before = functions(fake)
    page_run(a_start(fake))
    assert functions(fake) == before


def test_they_are_back_after_a_failed_run(fake):
    before, p = functions(fake), a_start(fake)
    p.sample = lambda seeds: 1 / 0
    with pytest.raises(ZeroDivisionError):
        page_run(p)
    assert functions(fake) == before
    assert not hasattr(fake.model.first_stage_model.encoder, "vram_guard_tile_size")


def test_the_next_run_encodes_whole_again(fake):
    page_run(a_start(fake))
    page_run(fake.make(Img2Img, init_images=["a picture"]))
    assert fake.record.encodes == ["tiled 512", "whole"]


def test_models_that_encode_the_picture_once_more_do_so_in_tiles(fake):
    """Inpainting models and InstructPix2Pix, inside a method of the processing object."""
    seen = []

    class StableDiffusionProcessing:
        def img2img_image_conditioning(self, image):
            seen.append(vars(fake.model.first_stage_model.encoder).get("vram_guard_tile_size"))

    fake.modules[PROCESSING].StableDiffusionProcessing = StableDiffusionProcessing
    before = StableDiffusionProcessing.img2img_image_conditioning
    p = fake.make()
    run = Run(p)
    own_tiles(run, 640)
    StableDiffusionProcessing().img2img_image_conditioning("image")
    run.end()
    StableDiffusionProcessing().img2img_image_conditioning("image")
    assert seen == [640, None]
    assert StableDiffusionProcessing.img2img_image_conditioning is before


def test_a_wrapper_that_somebody_still_holds_passes_through_after_the_run(fake):
    p = fake.make()
    run = Run(p)
    own_tiles(run, 640)
    held = fake.modules[PROCESSING].images_tensor_to_samples
    run.end()
    held("image", 0, None)
    assert fake.record.encodes == ["whole"]
