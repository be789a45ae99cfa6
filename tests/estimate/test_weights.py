"""What the parts weigh is counted, not remembered: the counts are added up here once more from the configurations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lib_vram.errors import BadInput
from lib_vram.estimate.weights import ARCHITECTURES, controlnet_bytes, weights_of
from lib_vram.model.inspect import Checkpoint, ComponentWeights
from lib_vram.physics.controlnets import CONTROLNETS
from lib_vram.units import GIB, MIB
from tests.estimate.stand_in import a_request


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel * kernel + outputs


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def resnet(inputs: int, outputs: int) -> int:
    shortcut = conv(inputs, outputs, 1) if inputs != outputs else 0
    return (
        2 * inputs
        + conv(inputs, outputs, 3)
        + linear(1280, outputs)
        + 2 * outputs
        + conv(outputs, outputs, 3)
        + shortcut
    )


def transformer(channels: int, depth: int, context: int) -> int:
    self_attention = 3 * linear(channels, channels, False) + linear(channels, channels)
    cross_attention = (
        linear(channels, channels, False) + 2 * linear(context, channels, False) + linear(channels, channels)
    )
    feed_forward = linear(channels, 8 * channels) + linear(4 * channels, channels)
    block = 3 * 2 * channels + self_attention + cross_attention + feed_forward
    return 2 * channels + 2 * linear(channels, channels) + depth * block


def count(
    mults: tuple[int, ...], depths: tuple[int, ...], context: int, vector: int, middle_depth: int
) -> dict[str, int]:
    """Add up the UNet, its largest block with what --lowvram leaves beside it, and its ControlNet."""
    width = channels = 320
    time = linear(width, 1280) + linear(1280, 1280)
    label = linear(vector, 1280) + linear(1280, 1280) if vector else 0
    blocks, skips = [conv(4, width, 3)], [width]
    for level, (mult, depth) in enumerate(zip(mults, depths, strict=True)):
        for _ in range(2):
            blocks.append(resnet(channels, width * mult) + (transformer(width * mult, depth, context) if depth else 0))
            channels = width * mult
            skips.append(channels)
        if level < len(mults) - 1:
            blocks.append(conv(channels, channels, 3))
            skips.append(channels)
    encoder = sum(blocks)
    zero = sum(conv(channels, channels, 1) for channels in [*skips, channels])
    hint = [(3, 16), (16, 16), (16, 32), (32, 32), (32, 96), (96, 96), (96, 256), (256, 320)]
    middle = 2 * resnet(channels, channels) + transformer(channels, middle_depth, context)
    control = time + label + encoder + middle + zero + sum(conv(*pair, 3) for pair in hint)
    for level in reversed(range(len(mults))):
        for turn in range(3):
            block = resnet(channels + skips.pop(), width * mults[level])
            channels = width * mults[level]
            block += transformer(channels, depths[level], context) if depths[level] else 0
            blocks.append(block + (conv(channels, channels, 3) if level and turn == 2 else 0))
    last = 2 * channels + conv(channels, 4, 3)
    return {
        "unet": time + label + sum(blocks) + middle + last,
        "block": max(middle, *blocks) + last + label,
        "controlnet": control,
    }


@pytest.mark.parametrize(
    ("family", "configuration"),
    [("sd15", ((1, 2, 4, 4), (1, 1, 1, 0), 768, 0, 1)), ("sdxl", ((1, 2, 4), (0, 2, 10), 2048, 2816, 10))],
)
def test_counts_are_those_of_the_published_configuration(family, configuration):
    known = ARCHITECTURES[family]
    assert count(*configuration) == {
        "unet": known.unet,
        "block": known.block,
        "controlnet": CONTROLNETS[family][0].parameters,
    }


@pytest.mark.parametrize(
    ("family", "host", "unet", "text", "vae"),
    [
        ("sd15", "a1111", 1639.4, 234.7, 159.56),
        ("sdxl", "a1111", 4897.05, 1559.7, 159.56),
        ("sdxl", "forge", 4897.05, 2144.35, 159.56),
    ],
)
def test_known_models_weigh_what_the_hosts_report_in_mib(family, host, unet, text, vae):
    weights = weights_of(a_request(host=host, model={"family": family}))
    assert weights.unet_bytes / MIB == pytest.approx(unet, abs=0.06)
    assert weights.text_encoders_bytes / MIB == pytest.approx(text, abs=0.06)
    assert weights.vae_bytes / MIB == pytest.approx(vae, abs=0.006)


def test_controlnets_weigh_689_and_2386_mib():
    assert round(controlnet_bytes("sd15", "fp16") / MIB) == 689
    assert round(controlnet_bytes("sdxl", "fp16") / MIB) == 2386
    assert controlnet_bytes("chroma", "fp16") == 0


def test_full_precision_doubles_everything():
    half, full = weights_of(a_request()), weights_of(a_request(host_args=["--no-half"]))
    assert (full.unet_bytes, full.text_encoders_bytes, full.vae_bytes) == (
        2 * half.unet_bytes,
        2 * half.text_encoders_bytes,
        2 * half.vae_bytes,
    )


def test_a_quantised_unet_leaves_the_rest_in_half_precision():
    weights = weights_of(a_request(host="reforge", model={"family": "sdxl", "weights_dtype": "fp8"}))
    assert (weights.unet_bytes, weights.text_encoders_bytes) == (2_567_463_684, 2 * 817_720_321)


def test_a1111s_fp8_takes_the_layers_of_the_text_encoders_too():
    weights = weights_of(a_request(model={"family": "sdxl", "weights_dtype": "fp8"}))
    tables, projections = 49_408 * (768 + 1280), 32 * 3 * 1280 * 1280
    assert weights.unet_bytes == 2_567_463_684
    assert weights.text_encoders_bytes == 817_720_321 + tables + projections


@pytest.mark.parametrize(
    ("family", "unet_gib", "text_gib"),
    [
        ("flux1", 22.168, 9.1),
        ("sd35_large", 15.174, 10.394),
        ("qwen_image", 38.055, 14.430),
        ("wan21_14b", 26.614, 10.581),
    ],
)
def test_large_models_weigh_what_their_published_files_do(family, unet_gib, text_gib):
    weights = weights_of(a_request(model={"family": family}))
    assert weights.unet_bytes / GIB == pytest.approx(unet_gib, abs=0.001)
    assert weights.text_encoders_bytes / GIB == pytest.approx(text_gib, abs=0.001)


FLUX_Q4_K = Checkpoint(
    "flux1",
    (
        ComponentWeights("transformer", "q4_k", 11_901_408_320, 6_700_000_000, loaded_bytes=7_400_000_000),
        ComponentWeights("text_encoder", "fp16", 123_060_480, 246_120_960, "clip_l", loaded_bytes=246_120_960),
        ComponentWeights("text_encoder_2", "fp8", 4_762_310_656, 4_762_310_700, "t5_xxl", loaded_bytes=4_762_310_700),
    ),
    (),
)


def test_what_forge_keeps_as_stored_weighs_what_the_file_says():
    model = {"family": "flux1", "checkpoint": "flux.gguf", "weights_dtype": "q4_k"}
    weights = weights_of(a_request(host="forge", model=model), lambda path: FLUX_Q4_K)
    assert weights.unet_bytes == 7_400_000_000
    assert weights.text_encoders_bytes == 2 * 123_060_480 + 4_762_310_700
    other = weights_of(a_request(host="forge", model={**model, "weights_dtype": "fp8"}), lambda path: FLUX_Q4_K)
    assert other.unet_bytes == 11_901_408_320


CHECKPOINT = Checkpoint(
    "sd15",
    (
        ComponentWeights("unet", "fp32", 1000, 4000),
        ComponentWeights("text_encoder", "fp16", 200, 400),
        ComponentWeights("text_encoder_2", "fp16", 300, 600),
        ComponentWeights("other", "fp32", 7, 28),
    ),
    (),
)


def test_a_checkpoint_s_header_decides_and_the_host_s_dtype_gives_the_bytes():
    weights = weights_of(
        a_request(model={"family": "sd15", "checkpoint": "model.safetensors"}), lambda path: CHECKPOINT
    )
    assert (weights.unet_bytes, weights.text_encoders_bytes, weights.vae_bytes) == (2000, 1000, 2 * 83_653_863)
    assert weights.notes == ()


def test_a_checkpoint_of_another_family_is_said():
    other = replace(CHECKPOINT, family="sdxl")
    weights = weights_of(a_request(model={"family": "sd15", "checkpoint": "x.safetensors"}), lambda path: other)
    assert [str(note) for note in weights.notes] == ["The checkpoint file looks like sdxl, the request says sd15."]


def broken(path: str) -> Checkpoint:
    raise BadInput("checkpoint", got=path, takes="a model file")


@pytest.mark.parametrize("inspect", [broken, lambda path: replace(CHECKPOINT, components=())])
def test_a_checkpoint_that_cannot_be_read_leaves_the_family_s_weights(inspect):
    weights = weights_of(a_request(model={"family": "sd15", "checkpoint": "folder"}), inspect)
    assert weights.unet_bytes == 2 * 859_520_964
    assert [str(note) for note in weights.notes] == [
        "The checkpoint file could not be read: the weights are those of the family sd15."
    ]


@pytest.mark.parametrize(
    ("flags", "dtype", "more"),
    [
        (["--upcast-sampling"], "fp16", 2 * 99_223_040),
        (["--upcast-sampling"], "fp8", 3 * 99_223_040),
        (["--upcast-sampling", "--no-half"], "fp16", 0),
        (["--upcast-sampling", "--no-half"], "fp8", 0),
        ([], "fp16", 0),
    ],
)
def test_upcast_sampling_makes_the_gates_of_a_denoiser_fp32(flags, dtype, more):
    model = {"family": "sd15", "weights_dtype": dtype}
    plain, upcast = (a_request(model=model, host_args=args) for args in ([f for f in flags if "no" in f], flags))
    assert weights_of(upcast).unet_bytes - weights_of(plain).unet_bytes == more


def test_upcast_sampling_leaves_sdxls_gates_as_they_are():
    model = {"family": "sdxl"}
    plain, upcast = (weights_of(a_request(model=model, host_args=args)) for args in ([], ["--upcast-sampling"]))
    assert plain == upcast
