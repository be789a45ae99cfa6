"""The tiled decode gives the picture of the untiled one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the decoder is a torch module")

from lib_vram.host import tiled_decode  # noqa: E402  needs torch

_spec = importlib.util.spec_from_file_location("ldm_decoder", Path(__file__).parent / "ldm_decoder.py")
ldm_decoder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ldm_decoder)

ROUNDING = 5e-5
"""fp32 results of the same sums in another order; the decoder's pictures spread over about 1.5."""


@pytest.fixture(scope="module")
def decoder():
    return ldm_decoder.make_decoder()


def latent_of(rows, columns, batch=1):
    """A latent whose upper half differs much from its lower one: what makes per-tile statistics shift the tone."""
    torch.manual_seed(rows * 100 + columns)
    latent = torch.randn(batch, 4, rows, columns)
    latent[:, :, : rows // 2] += 3
    return latent


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (9, 21), (20, 8)])
def test_the_picture_is_the_untiled_one_within_rounding_at_odd_sizes_too(decoder, rows, columns):
    latent = latent_of(rows, columns)
    assert (decoder(latent) - tiled_decode.decode(decoder, latent, 64)).abs().max() < ROUNDING


def test_no_tile_differs_in_tone(decoder):
    latent = latent_of(16, 16)
    whole, tiled = decoder(latent), tiled_decode.decode(decoder, latent, 64)
    tones = [
        (tiled[:, :, y : y + 64, x : x + 64].mean() - whole[:, :, y : y + 64, x : x + 64].mean()).abs()
        for y in range(0, 128, 64)
        for x in range(0, 128, 64)
    ]
    assert max(tones) < 1e-5


def test_statistics_of_the_tile_alone_would_shift_the_tone(decoder):
    """The trap itself, so that the tests above are known to see it."""
    latent = latent_of(16, 16)
    alone = decoder(latent[:, :, :8])
    assert (alone.mean() - decoder(latent)[:, :, :64].mean()).abs() > 1e-2


def test_the_pictures_of_a_batch_do_not_mix(decoder):
    latent = latent_of(8, 16, batch=2)
    together = tiled_decode.decode(decoder, latent, 64)
    for index in range(2):
        assert torch.equal(together[index : index + 1], tiled_decode.decode(decoder, latent[index : index + 1], 64))


def test_half_precision_stays_within_a_level_of_255(decoder):
    half = ldm_decoder.make_decoder().to(torch.bfloat16)
    latent = latent_of(8, 16).to(torch.bfloat16)
    tiled = tiled_decode.decode(half, latent, 64)
    assert tiled.dtype == torch.bfloat16
    exact = decoder(latent.float())
    worst = (tiled.float() - exact).abs().max()
    assert worst <= 2 * (half(latent).float() - exact).abs().max()


def test_a_picture_that_wraps_around_wraps_in_tiles_too():
    decoder = ldm_decoder.make_decoder(1)
    for module in decoder.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = "circular"
    latent = latent_of(9, 16)
    assert (decoder(latent) - tiled_decode.decode(decoder, latent, 64)).abs().max() < ROUNDING


def test_no_layer_ever_sees_more_than_a_tile_and_its_reach(decoder):
    sizes = []
    hooks = [
        level.block[0].conv2.register_forward_pre_hook(lambda module, given: sizes.append(given[0].shape[2:]))
        for level in decoder.up
    ]
    tiled_decode.decode(decoder, latent_of(16, 24), 64)
    for hook in hooks:
        hook.remove()
    assert max(max(size) for size in sizes) == 64 + 2


def test_a_picture_no_larger_than_the_tile_goes_the_original_way(decoder, monkeypatch):
    monkeypatch.setattr(tiled_decode, "decode", lambda *_: pytest.fail("tiled"))
    latent = latent_of(8, 8)
    with tiled_decode.tiled(decoder, 64) as active:
        assert active
        assert torch.equal(decoder(latent), type(decoder).forward(decoder, latent))


def test_the_decoder_is_as_before_after_the_block_also_after_an_error(decoder):
    with pytest.raises(KeyError), tiled_decode.tiled(decoder, 64):
        assert vars(decoder)["vram_guard_tile_size"] == 64
        raise KeyError
    assert "forward" not in vars(decoder) and "vram_guard_tile_size" not in vars(decoder)


def test_a_forward_that_somebody_else_had_put_there_comes_back():
    decoder = ldm_decoder.make_decoder()
    decoder.forward = foreign = lambda latent: "foreign"
    with tiled_decode.tiled(decoder, 64):
        assert decoder.forward is not foreign
    assert decoder.forward is foreign


def test_it_steps_aside_for_another_tiling_that_is_on():
    decoder = ldm_decoder.make_decoder()
    decoder.original_forward, decoder.forward = decoder.forward, lambda latent: "tiles of another extension"
    with tiled_decode.tiled(decoder, 64) as active:
        assert not active and decoder(None) == "tiles of another extension"


def test_another_tiling_that_is_installed_but_off_does_not_hinder(decoder):
    other = ldm_decoder.make_decoder()
    other.original_forward = other.forward
    with tiled_decode.tiled(other, 64) as active:
        assert active


def test_wrapping_twice_wraps_once(decoder):
    with tiled_decode.tiled(decoder, 64) as first, tiled_decode.tiled(decoder, 128) as second:
        assert first and not second


def test_a_decoder_of_another_shape_is_left_to_decode_whole():
    other = torch.nn.Sequential(torch.nn.Conv2d(4, 3, 1))
    with tiled_decode.tiled(other, 64) as active:
        assert not active


def test_a_decoder_that_is_otherwise_inside_than_it_looks_decodes_whole(monkeypatch):
    decoder, latent = ldm_decoder.make_decoder(), latent_of(16, 16)
    monkeypatch.setattr(tiled_decode, "decode", lambda decoder, *_: decoder.mid.of_another_name)
    with torch.no_grad():
        whole = decoder(latent)
        with tiled_decode.tiled(decoder, 64) as active:
            assert active and torch.equal(decoder(latent), whole)
    assert "forward" not in vars(decoder)
