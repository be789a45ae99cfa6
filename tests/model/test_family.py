from __future__ import annotations

import pytest

from lib_vram.model.family import recognise
from lib_vram.model.packing import weights_in
from lib_vram.model.tensor import Tensor

CONV = (3, 3)
Shapes = dict[str, tuple[int, ...]]


def recognised(shapes: Shapes, dtype: str = "F16"):
    return recognise(weights_in(Tensor(name, dtype, shape, 2) for name, shape in shapes.items()))


def family_of(shapes: Shapes) -> tuple[str | None, str]:
    found = recognised(shapes)
    return found.family, found.variant


def part_of(shapes: Shapes) -> tuple[str, str]:
    (part,) = recognised(shapes).parts
    return part.name, part.kind


def original_unet(*, channels: int = 4, context: int = 768, pooled: int = 0, prefix: str = "") -> Shapes:
    shapes: Shapes = {"input_blocks.0.0.weight": (320, channels, *CONV)}
    depth = "4" if pooled else "1"
    shapes[f"input_blocks.{depth}.1.transformer_blocks.0.attn2.to_k.weight"] = (320, context)
    if pooled:
        shapes["label_emb.0.0.weight"] = (1280, pooled)
    return {prefix + name: shape for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "control_model.", "diffusion_model."])
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


FAMILIES: list[tuple[Shapes, str]] = [
    (
        {
            "down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV),
            "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (320, 768),
        },
        "sd15",
    ),
    (
        {
            "down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV),
            "add_embedding.linear_1.weight": (1280, 2816),
        },
        "sdxl",
    ),
    ({"double_blocks.0.img_attn.qkv.weight": (9216, 3072)}, "flux1"),
    ({"single_transformer_blocks.0.attn.to_q.weight": (1, 1), "time_text_embed.x.bias": (1,)}, "flux1"),
    ({"double_blocks.0.img_attn.qkv.weight": (1, 1), "distilled_guidance_layer.x": (1,)}, "chroma"),
    ({"transformer_blocks.0.attn.to_q.weight": (1, 1), "distilled_guidance_layer.x": (1,)}, "chroma"),
    ({"double_stream_modulation_img.lin.weight": (1, 1), "img_in.weight": (3072, 128)}, "flux2_klein_4b"),
    ({"double_stream_modulation_img.lin.weight": (1, 1), "img_in.weight": (4096, 128)}, "flux2_klein_9b"),
    ({"double_stream_modulation_img.linear.weight": (1, 1), "x_embedder.weight": (3072, 128)}, "flux2_klein_4b"),
    ({"double_stream_modulation_img.linear.weight": (1, 1), "x_embedder.weight": (4096, 128)}, "flux2_klein_9b"),
    ({"joint_blocks.0.x_block.attn2.x": (1,), "x_embedder.proj.weight": (1536, 16, 2, 2)}, "sd35_medium"),
    ({"joint_blocks.0.x": (1,), "x_embedder.proj.weight": (2432, 16, 2, 2)}, "sd35_large"),
    (
        {
            "transformer_blocks.0.attn2.to_q.bias": (1536,), "transformer_blocks.0.norm1_context.linear.bias": (1,),
            "pos_embed.proj.bias": (1536,),
        },
        "sd35_medium",
    ),
    ({"transformer_blocks.0.norm1_context.linear.bias": (1,), "pos_embed.proj.bias": (2432,)}, "sd35_large"),
    ({"txt_norm.weight": (3584,)}, "qwen_image"),
    ({"cap_embedder.1.weight": (3840, 2560)}, "zimage"),
    ({"cap_embedder.1.weight": (2304, 2304)}, "lumina2"),
    ({"time_caption_embed.x.bias": (1,), "noise_refiner.0.x": (1,), "x_embedder.bias": (2304,)}, "lumina2"),
    ({"head.modulation": (1, 2, 1536)}, "wan21_1b"),
    ({"head.modulation": (1, 2, 5120)}, "wan21_14b"),
    ({"condition_embedder.text_embedder.linear_1.bias": (1,), "patch_embedding.bias": (1536,)}, "wan21_1b"),
    ({"condition_embedder.text_embedder.linear_1.bias": (1,), "patch_embedding.bias": (5120,)}, "wan21_14b"),
]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model.", "transformer."])
@pytest.mark.parametrize(("shapes", "family"), FAMILIES)
def test_every_family_is_recognised_in_its_layouts(shapes: Shapes, family: str, prefix: str) -> None:
    assert recognised({prefix + name: shape for name, shape in shapes.items()}).family == family


@pytest.mark.parametrize(
    "shapes", [{"head.modulation": ()}, {"first_stage_model.decoder.conv_in.weight": (512, 4, *CONV)}, {}]
)
def test_what_is_no_denoiser_has_no_family(shapes: Shapes) -> None:
    assert recognised(shapes).family is None


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        ({"joint_blocks.0.x": (1,), "x_embedder.proj.weight": (1536, 16, 2, 2)}, "Stable Diffusion 3 medium"),
        ({"double_stream_modulation_img.lin.weight": (1, 1), "img_in.weight": (6144, 128)}, "Flux.2 dev"),
        ({"head.modulation": (1, 2, 3072)}, "Wan 2.2 5B"),
        ({"double_blocks.0.img_attn.x": (1,), "txt_in.individual_token_refiner.x": (1,)}, "HunyuanVideo"),
        ({"double_blocks.0.img_attn.x": (1,), "img_in.weight": (3072, 64)}, "a relative of Flux (Ovis, LongCat)"),
        ({"llm_adapter.blocks.0.x": (1,), "blocks.0.mlp.layer1.weight": (1, 1)}, "Anima"),
        ({"txtfusion.projector.weight": (1, 1)}, "Krea 2"),
        ({"input_blocks.0.0.weight": (320, 4, *CONV), "label_emb.0.0.weight": (1280, 5632)}, "Kolors"),
        (
            {**original_unet(context=2048, pooled=2816), "input_blocks.7.1.transformer_blocks.0.norm1.bias": (1280,)},
            "SSD-1B or another small SDXL",
        ),
        ({"mlp_t5.0.weight": (1, 1)}, "HunyuanDiT"),
        ({"double_layers.0.attn.w1q.weight": (1, 1)}, "AuraFlow"),
        ({"t_block.1.weight": (1, 1), "y_embedder.y_proj.fc1.weight": (1, 1)}, "PixArt"),
        ({"double_blocks.0.img_attn.x": (1,), "latent_in.weight": (1024, 64)}, "Hunyuan3D"),
        ({"cap_embedder.1.weight": (2304, 2560), "clip_text_pooled_proj.1.weight": (1024, 1024)}, "NewBie"),
        ({"cap_embedder.1.weight": (3840, 2560), "dec_net.cond_embed.weight": (1, 1)}, "Z-Image in pixel space"),
        (
            {**original_unet(context=2048, pooled=2816), "input_blocks.3.1.norm.weight": (640,)},
            "SSD-1B or another small SDXL",
        ),
        (
            {
                "single_transformer_blocks.0.x": (1,), "time_text_embed.timestep_embedder.x": (1,),
                "context_embedder.linear_1.weight": (1, 1),
            },
            "Motif-Video",
        ),
        ({"txt_norm.weight": (3584,), "transformer_blocks.0.encoder_proj.weight": (1, 1)}, "Nucleus-Image"),
        ({"condition_embedder.text_embedder.x": (1,), "patch_embedding.bias": (5120,), "patch_long.x": (1,)}, "Helios"),
        ({"head.modulation": (1, 2, 5120), "audio_proj.audio_proj_glob_1.layer.bias": (1,)}, "Wan HuMo"),
        (
            {
                "down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV), "down_blocks.0.temp_attentions.0.x": (1,),
                "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight": (320, 1024),
            },
            "I2VGen-XL",
        ),
        ({"layers.0.input_layernorm.weight": (3072,), "patch_embedding.input_image_proj.weight": (1,)}, "OmniGen"),
    ],
)  # fmt: skip
def test_a_look_alike_is_called_by_its_name_and_never_mistaken(shapes: Shapes, name: str) -> None:
    found = recognised(shapes)
    assert (found.family, found.not_yet) == (None, name)


@pytest.mark.parametrize(
    ("more", "variant"),
    [
        ({"guidance_in.in_layer.bias": (3072,), "vector_in.in_layer.bias": (3072,)}, "dev"),
        ({"vector_in.in_layer.bias": (3072,)}, "schnell"),
        ({"vector_in.in_layer.bias": (3072,), "img_in.weight": (3072, 384)}, "inpaint"),
        ({"vector_in.in_layer.bias": (3072,), "img_in.weight": (3072, 128)}, "control"),
    ],
)
def test_flux_variants_are_one_family(more: Shapes, variant: str) -> None:
    assert family_of({"double_blocks.0.img_attn.qkv.weight": (1, 1), **more}) == ("flux1", variant)


def test_4_bit_flux_2_is_told_by_its_blocks_where_shapes_are_lost() -> None:
    shapes: Shapes = {f"double_blocks.{number}.img_attn.qkv.weight": (9, 1) for number in range(8)}
    shapes |= {"double_stream_modulation_img.lin.weight": (9, 1), "img_in.weight": (9, 1)}
    shapes |= {name + ".absmax": (1,) for name in shapes}
    assert recognised(shapes, "U8").family == "flux2_klein_9b"


@pytest.mark.parametrize(
    ("more", "family"),
    [
        ({"down_blocks.0.attentions.0.proj_in.weight": (320, 320, 1, 1)}, "sd15"),
        ({"down_blocks.0.attentions.0.proj_in.weight": (51200, 1)}, "sd21"),
        (
            {
                "add_embedding.linear_1.weight": (1802240, 1),
                "down_blocks.2.attentions.0.transformer_blocks.9.norm1.bias": (1280,),
            },
            "sdxl",
        ),
        (
            {"down_blocks.0.resnets.0.conv1.weight": (384, 384, *CONV), "add_embedding.linear_1.weight": (9, 1)},
            "sdxl_refiner",
        ),
    ],
)
def test_a_4_bit_unet_is_told_by_what_has_kept_its_shape(more: Shapes, family: str) -> None:
    packed = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight"
    shapes = {"down_blocks.0.resnets.0.conv1.weight": (320, 320, *CONV), packed: (122880, 1), **more}
    scales = {f"{name}.absmax": (1,) for name, shape in shapes.items() if len(shape) == 2}
    assert recognised({**shapes, **scales}, "U8").family == family


@pytest.mark.parametrize(
    ("name", "shape", "family"),
    [
        ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight", (16, 768), "sd15"),
        ("lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k.lora_down.weight", (16, 2048), "sdxl"),
        ("unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight", (4, 2048), "sdxl"),
        ("lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k.hada_w1_b", (16, 768), "sd15"),
        ("lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", (16, 1280), "sdxl"),
        ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", (16, 3072), "flux1"),
        ("transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight", (16, 3072), "flux1"),
        ("lora_unet_double_blocks_0_img_mlp_0.lora_up.weight", (18432, 16), "flux2_klein_4b"),
        ("lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight", (16, 4096), "flux2_klein_9b"),
        ("transformer_blocks.0.img_mlp.net.2.lora_A.weight", (16, 3072), "qwen_image"),
        ("diffusion_model.blocks.0.self_attn.q.lora_A.weight", (16, 5120), "wan21_14b"),
        ("diffusion_model.blocks.0.self_attn.q.lora_A.weight", (16, 1536), "wan21_1b"),
        ("diffusion_model.layers.0.attention.qkv.lora_A.weight", (16, 3840), "zimage"),
        ("transformer.single_transformer_blocks.7.attn.to_qkv_mlp_proj.lora_A.weight", (16, 3072), "flux2_klein_4b"),
        ("diffusion_model.blocks.21.self_attn.q.diff", (5120, 5120), "wan21_14b"),
        ("lora_unet_distilled_guidance_layer_layers_1_in_layer.lora_down.weight", (16, 5120), "chroma"),
        ("diffusion_model.blocks.3.cross_attn.k.lora_down.weight", (64, 5120), "wan21_14b"),
        ("transformer.double_blocks.0.img_attn_qkv.lora_A.weight", (8, 3072), None),
        ("lora_unet_single_blocks_39_linear1.lora_down.weight", (8, 3072), None),
        ("diffusion_model.transformer_blocks.0.attn2.to_k.lora_A.weight", (8, 2048), None),
        ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", (16, 768), None),
    ],
)
def test_a_lora_is_of_the_family_whose_layers_it_changes(name: str, shape: tuple[int, ...], family: str | None) -> None:
    found = recognised({name: shape})
    assert ([part.name for part in found.parts], found.family) == (["lora"], family)


@pytest.mark.parametrize(
    "factors",
    [
        {"lokr_w1": (8, 8), "lokr_w2": (480, 480)},
        {"lokr_w1_a": (8, 2), "lokr_w1_b": (2, 8), "lokr_w2_a": (480, 16), "lokr_w2_b": (16, 480)},
    ],
)
def test_the_two_factors_of_a_lokr_make_the_width_of_its_layer(factors: Shapes) -> None:
    layers = (f"lora_unet_layers_{number}_attention_qkv" for number in range(3))
    found = recognised({f"{layer}.{name}": shape for layer in layers for name, shape in factors.items()})
    assert ([part.name for part in found.parts], found.family) == (["lora"], "zimage")


@pytest.mark.parametrize(
    ("shapes", "part"),
    [
        ({"decoder.conv_in.weight": (512, 4, *CONV)}, ("vae", "sd15")),
        ({"decoder.conv_in.weight": (512, 16, *CONV)}, ("vae", "flux1")),
        ({"decoder.conv_in.weight": (512, 32, *CONV)}, ("vae", "flux2")),
        (
            {"decoder.conv_in.weight": (384, 16, 3, *CONV), "decoder.mid_block.resnets.0.norm1.gamma": (384,)},
            ("vae", "wan"),
        ),
        ({"decoder.conv_in.weight": (512, 16, 3, *CONV)}, ("vae", "")),
        ({"decoder.conv_in.conv.weight": (512, 128, 3, *CONV)}, ("vae", "")),
        ({"decoder.conv_in.weight": (512, 4, *CONV), "decoder.time_conv_out.weight": (3,)}, ("vae", "")),
        ({"decoder.conv_in.weight": (1024, 32, *CONV), "decoder.up_blocks.0.0.conv.weight": (1,)}, ("vae", "")),
        ({"decoder.middle.0.residual.0.gamma": (1,), "decoder.conv1.weight": (384, 16, 3, *CONV)}, ("vae", "wan")),
        ({"decoder.middle.0.residual.0.gamma": (1,), "decoder.conv1.weight": (1024, 48, 3, *CONV)}, ("vae", "wan22")),
        ({"text_model.embeddings.token_embedding.weight": (49408, 768)}, ("text_encoder", "clip_l")),
        ({"text_model.embeddings.token_embedding.weight": (49408, 1280)}, ("text_encoder", "clip_g")),
        ({"transformer.resblocks.0.ln_1.weight": (1024,)}, ("text_encoder", "open_clip_h")),
        ({"encoder.block.0.layer.0.SelfAttention.k.weight": (4096, 4096)}, ("text_encoder", "t5_xxl")),
        ({"enc.blk.0.attn_norm.weight": (4096,)}, ("text_encoder", "t5_xxl")),
        (
            {
                "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": (32, 64),
                "encoder.final_layer_norm.weight": (4096,),
            },
            ("text_encoder", "umt5_xxl"),
        ),
        ({"model.layers.0.post_feedforward_layernorm.weight": (2304,)}, ("text_encoder", "gemma2_2b")),
        ({"model.layers.0.self_attn.k_proj.bias": (512,)}, ("text_encoder", "qwen25_vl_7b")),
        (
            {"model.layers.0.self_attn.q_norm.weight": (128,), "model.layers.0.input_layernorm.weight": (2560,)},
            ("text_encoder", "qwen3_4b"),
        ),
        ({"blk.0.attn_q_norm.weight": (128,), "blk.0.attn_norm.weight": (2560,)}, ("text_encoder", "qwen3_4b")),
        ({"model.layers.0.input_layernorm.weight": (999,)}, ("text_encoder", "")),
        ({"input_blocks.0.0.weight": (64, 4, *CONV)}, ("unet", "")),
        ({"double_blocks.0.img_attn.qkv.weight": (1, 1)}, ("transformer", "")),
        ({"controlnet_cond_embedding.conv_in.weight": (16, 3, *CONV)}, ("controlnet", "")),
        ({"input_hint_block.0.weight": (16, 3, *CONV)}, ("controlnet", "")),
        ({"lllite_unet_input_blocks_4_1_x.down.0.weight": (64, 320)}, ("controlnet", "controllllite")),
        ({"input_hint_block.0.weight": (16, 3, *CONV), "lora_controlnet": (0,)}, ("controlnet", "control_lora")),
        (
            {"input_hint_block.0.weight": (16, 3, *CONV), "input_blocks.1.0.in_layers.2.up": (320, 64, 1, 1)},
            ("controlnet", "control_lora"),
        ),
        ({"ip_adapter.1.to_k_ip.weight": (320, 768)}, ("ip_adapter", "")),
        (
            {"ip_adapter.0.to_q_lora.down.weight": (128, 320), "ip_adapter.1.to_k_ip.weight": (320, 768)},
            ("ip_adapter", ""),
        ),
        ({"adapter.body.0.resnets.0.block1.weight": (320, 320, *CONV)}, ("t2i_adapter", "")),
        ({"model.1.sub.0.RDB1.conv1.0.weight": (32, 64, *CONV)}, ("upscaler", "")),
        ({"conv_first.weight": (64, 3, *CONV)}, ("upscaler", "")),
        ({"feats.0.weight": (64, 3, *CONV), "feats.1.lk.conv.weight": (16, 16, 17, 17)}, ("upscaler", "")),
        ({"m_head.0.weight": (64, 3, *CONV), "m_body.0.trans_block.ln1.weight": (32,)}, ("upscaler", "")),
        ({"1.weight": (64, 4, *CONV), "3.conv.0.weight": (64, 64, *CONV)}, ("vae", "taesd")),
        ({"vision_model.encoder.layers.0.layer_norm1.bias": (1280,)}, ("image_encoder", "")),
        ({"emb_params": (8, 768)}, ("embedding", "")),
        ({"something.else": (1,)}, ("other", "")),
    ],
)
def test_a_part_alone_in_a_file_is_recognised(shapes: Shapes, part: tuple[str, str]) -> None:
    assert part_of(shapes) == part


@pytest.mark.parametrize(
    ("shapes", "family"),
    [
        (original_unet(context=2048, pooled=2816) | {"input_hint_block.0.weight": (16, 3, *CONV)}, "sdxl"),
        ({"controlnet_x_embedder.weight": (3072, 64), "x_embedder.weight": (3072, 64)}, "flux1"),
        ({"controlnet_x_embedder.weight": (3072, 64), "txt_norm.weight": (3584,)}, "qwen_image"),
        ({"lllite_unet_input_blocks_7_1_transformer_blocks_0_attn1_to_q.down.0.weight": (64, 1280)}, "sdxl"),
    ],
)
def test_a_controlnet_has_its_models_family(shapes: Shapes, family: str) -> None:
    found = recognised(shapes)
    assert ([part.name for part in found.parts], found.family) == (["controlnet"], family)


def test_a_checkpoints_tensors_are_sorted_by_their_prefix() -> None:
    names = {
        "model.diffusion_model.input_blocks.0.0.weight": "unet",
        "first_stage_model.decoder.conv_in.weight": "vae",
        "conditioner.embedders.0.transformer.text_model.final_layer_norm.bias": "text_encoder",
        "conditioner.embedders.1.model.ln_final.bias": "text_encoder_2",
        "model_ema.diffusion_modelinput_blocks00weight": "other",
        "alphas_cumprod": "other",
    }
    found = recognised(dict.fromkeys(names, (1,)))
    assert [(part.name, len(part.weights)) for part in found.parts] == [
        ("unet", 1), ("text_encoder", 1), ("text_encoder_2", 1), ("vae", 1), ("other", 2),
    ]  # fmt: skip


def test_text_encoders_are_counted_as_their_models_count_them() -> None:
    shapes = {
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.k.weight": (4096, 4096),
        "text_encoders.clip_l.transformer.text_model.embeddings.token_embedding.weight": (49408, 768),
        "text_encoders.clip_g.transformer.text_model.embeddings.token_embedding.weight": (49408, 1280),
    }
    assert [(part.name, part.kind) for part in recognised(shapes).parts] == [
        ("text_encoder", "clip_l"), ("text_encoder_2", "clip_g"), ("text_encoder_3", "t5_xxl"),
    ]  # fmt: skip


def test_a_whole_checkpoint_of_diffusers_parts_keeps_its_names() -> None:
    found = recognised({"text_encoders.qwen3_4b.transformer.model.layers.0.self_attn.q_norm.weight": (128,)})
    assert [part.name for part in found.parts] == ["text_encoder"]
