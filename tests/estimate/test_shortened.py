"""Token merging and HyperTile, where the host has them and they change what is needed."""

from __future__ import annotations

import pytest

from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.simulate import simulate
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request


def floor(phase, **changes):
    """The floor of a phase of a 1536 x 1536 picture."""
    request = a_request(**{"width": 1536, "height": 1536, "device": {"total_bytes": 24 * GIB}, **changes})
    return next(item.floor_bytes for item in estimate(request).phases if item.name == phase)


def test_hypertile_shrinks_the_score_matrix_of_the_vae_in_a1111():
    tiles = {"unet": False, "vae": True, "swap_size": 1}
    sizes = {"attention": "math", "width": 2048, "height": 2048}
    assert floor("vae_decode", **sizes, hypertile=tiles) < floor("vae_decode", **sizes)
    assert floor("vae_decode", host="reforge", **sizes, hypertile=tiles) == floor("vae_decode", host="reforge", **sizes)


@pytest.mark.parametrize("attention", ["math", "sub_quad", "split"])
def test_hypertile_and_merging_shrink_the_unets_scores_where_they_are_kept(attention):
    plain = floor("sampling", attention=attention)
    for changes in ({"hypertile": {"swap_size": 1}}, {"token_merging_ratio": 0.5}):
        assert floor("sampling", attention=attention, **changes) <= plain
    if attention == "math":
        assert floor("sampling", attention=attention, hypertile={"swap_size": 1}) < plain
        assert floor("sampling", attention=attention, token_merging_ratio=0.5) < plain


def test_without_a_score_matrix_nothing_changes():
    for changes in ({"hypertile": {"vae": False}}, {"token_merging_ratio": 0.9}):
        assert floor("sampling", **changes) == floor("sampling")


def test_hosts_without_hypertile_take_no_notice():
    assert floor("sampling", host="forge", attention="math", hypertile={}) == floor(
        "sampling", host="forge", attention="math"
    )


def test_a_transformer_has_no_tokens_to_merge():
    model = {"family": "flux1", "weights_dtype": "fp8"}
    plain, merged = (
        floor("sampling", host="forge", model=model, attention="math", token_merging_ratio=ratio) for ratio in (0, 0.5)
    )
    assert plain == merged


def test_sage_attention_is_computed_on_neo():
    assert floor("sampling", host="neo", attention="sage") < floor("sampling", host="neo", attention="math")


@pytest.mark.parametrize("changes", [{"hypertile": {"vae": True}}, {"token_merging_ratio": 0.5}])
@pytest.mark.parametrize("total", [4, 6, 8])
def test_the_verdict_is_what_the_virtual_card_does(changes, total):
    request = a_request(attention="math", width=832, batch_size=2, device={"total_bytes": total * GIB}, **changes)
    assert (simulate(request).outcome == "completed") == (estimate(request).verdict != "wont_fit")
