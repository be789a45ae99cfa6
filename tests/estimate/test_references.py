"""Reference pictures: the transformer sees their tokens behind the picture's own."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.references import reference_tokens
from lib_vram.estimate.simulate import simulate
from lib_vram.estimate.timeline import timeline
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request


def kontext(*references, **changes):
    """A Flux request with reference pictures of these sizes."""
    pictures = [{"width": width, "height": height} for width, height in references]
    return a_request(**{
        "host": "forge", "device": {"total_bytes": 24 * GIB}, "model": {"family": "flux1", "weights_dtype": "fp8"},
        "width": 1024, "height": 1024, "cfg_scale": 1.0, "reference_images": pictures, **changes,
    })  # fmt: skip


def sampling(request):
    """The sampling phase of ``request``."""
    return next(phase for phase in estimate(request).phases if phase.name == "sampling")


def test_a_reference_of_the_same_size_makes_the_transformer_see_twice_the_tokens():
    with_one, tall = sampling(kontext((1024, 1024))), sampling(kontext(height=2048))
    assert with_one.floor_bytes == tall.floor_bytes > sampling(kontext()).floor_bytes


@pytest.mark.parametrize(("size", "tokens"), [((1024, 1024), 4096), ((1000, 520), 62 * 32), ((64, 64), 16)])
def test_tokens_are_patches_of_16_pixels(size, tokens):
    assert reference_tokens(kontext(size)) == tokens


def test_every_reference_is_encoded_once_before_sampling():
    works = timeline(kontext((1024, 768), (512, 512)))
    encoded = [(work.component.width, work.component.height) for work in works if work.phase == "vae_encode"]
    assert encoded == [(1024, 768), (512, 512)]
    assert works[0].phase == "vae_encode"


def test_more_references_never_need_less():
    floors = [sampling(kontext(*[(768, 768)] * count)).floor_bytes for count in range(4)]
    assert floors == sorted(set(floors))


def test_a_family_that_takes_none_says_so_and_counts_none():
    request = a_request(reference_images=[{"width": 512, "height": 512}])
    assert sampling(request).floor_bytes == sampling(a_request()).floor_bytes
    assert "estimate.references_not_taken" in [note.key for note in estimate(request).notes]


@pytest.mark.parametrize("total", [10, 14, 16, 24])
def test_the_verdict_is_what_the_virtual_card_does(total):
    request = kontext((1536, 1536), (1024, 1024), device={"total_bytes": total * GIB}, batch_size=4)
    assert (simulate(request).outcome == "completed") == (estimate(request).verdict != "wont_fit")
