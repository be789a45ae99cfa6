from __future__ import annotations

import pytest

from lib_vram.model.family import component_of, family_of, what_alone
from lib_vram.model.header import Tensor

CONV = (3, 3)


def tensors(shapes: dict[str, tuple[int, ...]]) -> list[Tensor]:
    return [Tensor(name, "F16", shape, 2) for name, shape in shapes.items()]


def original_unet(*, channels: int = 4, context: int = 768, pooled: int = 0, prefix: str = "") -> list[Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"input_blocks.0.0.weight": (320, channels, *CONV)}
    depth = "4" if pooled else "1"
    shapes[f"input_blocks.{depth}.1.transformer_blocks.0.attn2.to_k.weight"] = (320, context)
    if pooled:
        shapes["label_emb.0.0.weight"] = (1280, pooled)
    return tensors({prefix + name: shape for name, shape in shapes.items()})


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "control_model."])
@pytest.mark.parametrize(
    ("context", "pooled", "family"),
    [(768, 0, "sd15"), (1024, 0, "sd21"), (2048, 2816, "sdxl"), (1280, 2560, "sdxl_refiner"), (99, 0, None)],
)
def test_the_original_unet_is_told_by_the_text_it_takes(
    prefix: str, context: int, pooled: int, family: str | None
) -> None:
    assert family_of(original_unet(context=context, pooled=pooled, prefix=prefix)) == (family, "")


@pytest.mark.parametrize(("channels", "variant"), [(4, ""), (9, "inpaint"), (8, "pix2pix")])
def test_the_variant_is_told_by_the_channels_of_the_first_convolution(channels: int, variant: str) -> None:
    assert family_of(original_unet(channels=channels)) == ("sd15", variant)


@pytest.mark.parametrize(
    ("shapes", "family"),
    [
        (
            {
                "conv_in.weight": (320, 4, *CONV),
                "down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV),
                "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (320, 768),
            },
            "sd15",
        ),
        (
            {
                "conv_in.weight": (320, 4, *CONV),
                "down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV),
                "add_embedding.linear_1.weight": (1280, 2816),
            },
            "sdxl",
        ),
        ({"double_blocks.0.img_attn.qkv.weight": (9216, 3072)}, "flux1"),
        ({"model.diffusion_model.double_blocks.0.img_attn.qkv.weight": (9216, 3072)}, "flux1"),
        ({"single_transformer_blocks.0.attn.to_q.weight": (3072, 3072)}, "flux1"),
        (
            {
                "double_blocks.0.img_attn.qkv.weight": (9216, 3072),
                "distilled_guidance_layer.in_proj.weight": (5120, 64),
            },
            "chroma",
        ),
        (
            {
                "double_blocks.0.img_attn.qkv.weight": (9216, 3072),
                "double_stream_modulation_img.lin.weight": (18432, 3072),
                "img_in.weight": (3072, 128),
            },
            "flux2_klein_4b",
        ),
        ({"double_stream_modulation_img.lin.weight": (1, 1), "img_in.weight": (4096, 128)}, "flux2_klein_9b"),
        ({"double_stream_modulation_img.lin.weight": (1, 1), "img_in.weight": (6144, 128)}, None),
        (
            {
                "joint_blocks.0.x_block.attn.qkv.weight": (4608, 1536),
                "joint_blocks.0.x_block.attn2.qkv.weight": (4608, 1536),
                "x_embedder.proj.weight": (1536, 16, 2, 2),
            },
            "sd35_medium",
        ),
        (
            {"joint_blocks.0.x_block.attn.qkv.weight": (7296, 2432), "x_embedder.proj.weight": (2432, 16, 2, 2)},
            "sd35_large",
        ),
        ({"txt_norm.weight": (3584,)}, "qwen_image"),
        ({"cap_embedder.1.weight": (3840, 2560)}, "zimage"),
        ({"cap_embedder.1.weight": (2304, 2304)}, "lumina2"),
        ({"head.modulation": (1, 2, 1536)}, "wan21_1b"),
        ({"head.modulation": (1, 2, 5120)}, "wan21_14b"),
        ({"head.modulation": ()}, None),
        ({"first_stage_model.decoder.conv_in.weight": (512, 4, *CONV)}, None),
        ({}, None),
    ],
)
def test_other_layouts_and_families_are_recognised(shapes: dict[str, tuple[int, ...]], family: str | None) -> None:
    assert family_of(tensors(shapes))[0] == family


@pytest.mark.parametrize(
    ("name", "shape", "family"),
    [
        ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight", (16, 768), "sd15"),
        ("lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k.lora_down.weight", (16, 2048), "sdxl"),
        ("unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight", (4, 2048), "sdxl"),
        ("lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", (16, 1280), "sdxl"),
        ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", (16, 3072), "flux1"),
        ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", (16, 768), None),
    ],
)
def test_a_lora_is_of_the_family_whose_text_it_takes(name: str, shape: tuple[int, ...], family: str | None) -> None:
    assert what_alone([name]) == "lora"
    assert family_of(tensors({name: shape}))[0] == family


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("model.diffusion_model.input_blocks.0.0.weight", "unet"),
        ("first_stage_model.decoder.conv_in.weight", "vae"),
        ("cond_stage_model.transformer.text_model.embeddings.position_ids", "text_encoder"),
        ("conditioner.embedders.0.transformer.text_model.final_layer_norm.bias", "text_encoder"),
        ("conditioner.embedders.1.model.ln_final.bias", "text_encoder_2"),
        ("text_encoders.t5xxl.transformer.shared.weight", "text_encoder_2"),
        ("control_model.input_blocks.0.0.weight", "controlnet"),
        ("model_ema.diffusion_modelinput_blocks00weight", "other"),
        ("alphas_cumprod", "other"),
    ],
)
def test_a_checkpoints_tensors_are_sorted_by_their_prefix(name: str, component: str) -> None:
    assert component_of(name, "other") == component


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("decoder.conv_in.weight", "vae"),
        ("text_model.embeddings.token_embedding.weight", "text_encoder"),
        ("encoder.block.0.layer.0.SelfAttention.k.weight", "text_encoder_2"),
        ("input_blocks.0.0.weight", "unet"),
        ("double_blocks.0.img_attn.qkv.weight", "transformer"),
        ("controlnet_cond_embedding.conv_in.weight", "controlnet"),
        ("input_hint_block.0.weight", "controlnet"),
        ("emb_params", "other"),
    ],
)
def test_a_part_alone_in_a_file_is_recognised(name: str, component: str) -> None:
    assert what_alone(["something.else", name]) == component
