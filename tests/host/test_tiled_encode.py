"""The tiled encode gives the latent of the untiled one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the encoder is a torch module")

from lib_vram.host import tiled_encode  # noqa: E402  needs torch

_spec = importlib.util.spec_from_file_location("ldm_decoder", Path(__file__).parent / "ldm_decoder.py")
ldm_decoder = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ldm_decoder)

ROUNDING = 1e-5
"""fp32 results of the same sums in another order, 2.7e-6 at most when measured; the latents spread over about 0.33."""


@pytest.fixture(scope="module")
def encoder():
    return ldm_decoder.make_encoder()


def picture_of(rows, columns, batch=1):
    """A picture whose upper half differs much from its lower one: what makes per-tile statistics shift the tone."""
    torch.manual_seed(rows * 1000 + columns)
    picture = torch.randn(batch, 3, rows, columns)
    picture[:, :, : rows // 2] += 2
    return picture


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (72, 168), (160, 64), (136, 200), (131, 77), (64, 65)])
def test_the_latent_is_the_untiled_one_within_rounding_at_odd_sizes_too(encoder, rows, columns):
    picture = picture_of(rows, columns)
    whole = encoder(picture)
    tiled = tiled_encode.encode(encoder, picture, 64)
    assert tiled.shape == whole.shape
    assert (whole - tiled).abs().max() < ROUNDING


def test_statistics_of_the_tile_alone_would_shift_the_latent(encoder):
    """The trap itself, so that the tests above are known to see it."""
    picture = picture_of(128, 128)
    alone = encoder(picture[:, :, :64])
    assert (alone - encoder(picture)[:, :, :8]).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (136, 200)])
def test_half_precision_is_as_near_to_the_exact_latent_as_the_untiled_encode(encoder, dtype, rows, columns):
    """Measured: on average 0.99 to 1.02 times as far from fp32 as the untiled encode, at the worst place 1.18 times."""
    half, picture = ldm_decoder.make_encoder().to(dtype), picture_of(rows, columns, batch=2).to(dtype)
    exact = encoder(picture.float())
    tiled = tiled_encode.encode(half, picture, 64)
    assert tiled.dtype == dtype
    off, whole_off = (tiled.float() - exact).abs(), (half(picture).float() - exact).abs()
    assert off.mean() <= 1.1 * whole_off.mean()
    assert off.max() <= 1.5 * whole_off.max()


def test_the_pictures_of_a_batch_do_not_mix(encoder):
    picture = picture_of(72, 136, batch=3)
    together = tiled_encode.encode(encoder, picture, 64)
    assert (together - encoder(picture)).abs().max() < ROUNDING
    for index in range(3):
        one = tiled_encode.encode(encoder, picture[index : index + 1], 64)
        assert torch.equal(together[index : index + 1], one)


def test_a_picture_that_wraps_around_wraps_in_tiles_too():
    encoder = ldm_decoder.make_encoder(1)
    for module in encoder.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.padding_mode = "circular"
    picture = picture_of(136, 200)
    assert (encoder(picture) - tiled_encode.encode(encoder, picture, 64)).abs().max() < ROUNDING


def test_halving_by_an_average_is_done_in_tiles_as_well():
    encoder = ldm_decoder.make_encoder()
    for level in list(encoder.down)[:-1]:
        level.downsample = torch.nn.AvgPool2d(2)
    picture = picture_of(136, 72)
    assert (encoder(picture) - tiled_encode.encode(encoder, picture, 64)).abs().max() < ROUNDING


def test_a_halving_of_another_kind_is_left_whole():
    encoder = ldm_decoder.make_encoder()
    encoder.down[0].downsample.conv = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1)
    assert not tiled_encode.supports(encoder)


def test_no_layer_ever_sees_more_than_a_tile_and_its_reach(encoder):
    sizes = []
    layers = [encoder.conv_in, *(level.block[0].conv2 for level in encoder.down), encoder.down[0].downsample.conv]
    hooks = [
        layer.register_forward_pre_hook(lambda _module, given: sizes.append(given[0].shape[2:])) for layer in layers
    ]
    tiled_encode.encode(encoder, picture_of(128, 192), 64)
    for hook in hooks:
        hook.remove()
    assert max(max(size) for size in sizes) == 64 + 2


def test_what_follows_draws_the_same_noise(encoder):
    """The sample is drawn from the whole latent, once: the same seed gives the same latent."""
    picture = picture_of(128, 128)

    def sampled():
        torch.manual_seed(7)
        mean, log_variance = encoder(picture).chunk(2, 1)
        return mean + torch.exp(0.5 * log_variance) * torch.randn(mean.shape)

    whole = sampled()
    with tiled_encode.tiled(encoder, 64) as active:
        assert active
        assert (sampled() - whole).abs().max() < ROUNDING
    assert "forward" not in vars(encoder)


def test_a_picture_no_larger_than_the_tile_goes_the_original_way(encoder, monkeypatch):
    monkeypatch.setattr(tiled_encode, "encode", lambda *_: pytest.fail("tiled"))
    picture = picture_of(64, 64)
    with tiled_encode.tiled(encoder, 64) as active:
        assert active
        assert torch.equal(encoder(picture), type(encoder).forward(encoder, picture))


def test_the_encoder_is_as_before_after_an_error(encoder):
    with pytest.raises(KeyError), tiled_encode.tiled(encoder, 64):
        raise KeyError
    assert "forward" not in vars(encoder) and "vram_guard_tile_size" not in vars(encoder)


def test_it_steps_aside_for_another_tiling_that_is_on():
    encoder = ldm_decoder.make_encoder()
    encoder.original_forward, encoder.forward = encoder.forward, lambda picture: "tiles of another extension"
    with tiled_encode.tiled(encoder, 64) as active:
        assert not active and encoder(None) == "tiles of another extension"


def test_decoders_and_others_are_no_encoders():
    assert not tiled_encode.supports(ldm_decoder.make_decoder())
    assert not tiled_encode.supports(torch.nn.Conv2d(3, 8, 1))


def test_an_encoder_that_is_otherwise_inside_than_it_looks_encodes_whole(monkeypatch):
    encoder, picture = ldm_decoder.make_encoder(), picture_of(128, 128)
    monkeypatch.setattr(tiled_encode, "encode", lambda encoder, *_: encoder.mid.of_another_name)
    whole = encoder(picture)
    with tiled_encode.tiled(encoder, 64) as active:
        assert active and torch.equal(encoder(picture), whole)
