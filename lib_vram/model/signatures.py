"""The signatures of models: which tensors, of which sizes, tell one from another.

A line is a name and its conditions, all of which must hold; the first line that holds wins, so look-alikes come
before what they resemble. A condition is one string:

===================  =============================================================
``"txt_norm.weight"``  there is a tensor of this name
``"joint_blocks.0."``  there are tensors whose names begin so (it ends in a dot)
``"a.weight[1]=768"``  the tensor is there and its axis 1 is 768 long (-1: the last axis; ``768|1024``: either)
``"!vector_in."``      the condition after ``!`` does not hold
===================  =============================================================

To teach a new model, add a line. Names are without a checkpoint's prefix (``model.diffusion_model.``). 4-bit weights
of bitsandbytes have lost their shape, so sizes are asked of first layers, biases and norms where that is possible.
Sources: the module names of each model's own code (CompVis ``ldm``, Stability's ``sgm`` and ``mmdit``, Black Forest
Labs' ``flux``, Alibaba's ``wan``, …), of diffusers, and of llama.cpp for text encoders in GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping

from lib_vram.request import Family

Line = tuple[str, tuple[str, ...]]

_CONTEXT = "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
_CONTEXT_DIFFUSERS = "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight"
_FIRST = "input_blocks.0.0.weight"
_FIRST_DIFFUSERS = "down_blocks.0.resnets.0.conv1.weight"
_PROJECTION_DIFFUSERS = "down_blocks.0.attentions.0.proj_in.weight"
_DEEP = "input_blocks.7.1.transformer_blocks."
_DEEP_DIFFUSERS = "down_blocks.2.attentions.0.transformer_blocks."
_JOINT_DIFFUSERS = "transformer_blocks.0.norm1_context."
_UMT5_BIAS = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"
_SMALL_SDXL = "SSD-1B or another small SDXL"

DENOISERS: tuple[Line, ...] = (
    # transformers of video and of other makers, told by a part that only they have
    ("Anima", ("llm_adapter.blocks.0.",)),
    ("Cosmos", ("blocks.0.mlp.layer1.weight",)),
    ("Cosmos", ("blocks.block0.blocks.0.",)),
    ("Cosmos", ("transformer_blocks.0.attn1.norm_q.weight", "patch_embed.proj.weight", "time_embed.t_embedder.")),
    ("PiD", ("lq_proj.",)),
    ("Krea 2", ("txtfusion.",)),
    ("ERNIE-Image", ("layers.0.mlp.linear_fc2.weight",)),
    ("Hunyuan3D", ("latent_in.weight", "double_blocks.0.img_attn.")),
    ("HunyuanVideo 1.5", ("context_embedder_2.", "image_embedder.")),
    ("HunyuanImage", ("byt5_in.",)),
    ("HunyuanImage", ("context_embedder_2.",)),
    ("HunyuanVideo", ("txt_in.individual_token_refiner.",)),
    ("HunyuanVideo", ("context_embedder.token_refiner.",)),
    ("HunyuanDiT", ("mlp_t5.0.weight",)),
    ("HunyuanDiT", ("text_embedding_padding", "blocks.0.attn2.")),
    ("AuraFlow", ("double_layers.0.",)),
    ("AuraFlow", ("joint_transformer_blocks.0.",)),
    ("HiDream", ("double_stream_blocks.0.",)),
    ("LTX-Video", ("patchify_proj.",)),
    ("LTX-Video", ("proj_in.weight", "caption_projection.linear_1.", "transformer_blocks.0.scale_shift_table")),
    ("Sana", ("caption_norm.weight",)),
    ("Sana", ("attention_y_norm.weight",)),
    ("PixArt", ("t_block.1.weight", "y_embedder.")),
    ("PixArt", ("adaln_single.", "pos_embed.proj.weight")),
    ("Mochi", ("t5_yproj.weight",)),
    ("Mochi", ("pos_frequencies",)),
    ("Kandinsky 5", ("visual_embeddings.",)),
    ("Stable Cascade", ("clip_txt_mapper.",)),
    ("Stable Cascade", ("clip_txt_pooled_mapper.",)),
    ("Stable Cascade", ("clip_mapper.weight",)),
    ("OmniGen", ("input_x_embedder.",)),
    ("OmniGen", ("patch_embedding.input_image_proj.weight",)),
    ("OmniGen2", ("ref_image_refiner.",)),
    ("Krea 2", ("text_fusion.",)),
    ("GLM-Image", ("glyph_projector.",)),
    ("CogVideoX", ("patch_embed.text_proj.weight", "time_embedding.linear_1.weight")),
    ("ACE-Step", ("genre_embedder.weight",)),
    ("Stable Audio", ("to_timestep_embed.0.weight", "to_cond_embed.0.weight")),
    ("Flux.3", ("mode_blocks.",)),
    ("Nucleus-Image", ("transformer_blocks.0.encoder_proj.", "txt_norm.weight")),
    ("Qwen-Image 2.1", ("txt_in.text_norm.weight", "transformer_blocks.0.")),
    ("Motif-Video", ("context_embedder.linear_1.weight", "single_transformer_blocks.0.")),
    ("CogView4", ("patch_embed.proj.weight", "time_condition_embed.")),
    ("PRX", ("blocks.0.attention.img_qkv_proj.weight",)),
    ("Ovis-Image", ("context_embedder_norm.weight",)),
    ("Bria", ("caption_projection.0.linear.weight", "single_transformer_blocks.0.")),
    ("a relative of Flux (Bria, LongCat)", ("time_embed.timestep_embedder.", "single_transformer_blocks.0.")),
    # Wan
    ("Wan Animate", ("face_adapter.",)),
    ("Wan S2V", ("casual_audio_encoder.",)),
    ("Wan HuMo", ("audio_proj.audio_proj_glob_1.",)),
    ("Helios", ("patch_long.",)),
    ("wan21_1b", ("head.modulation[-1]=1536",)),
    ("wan21_14b", ("head.modulation[-1]=5120",)),
    ("Wan 2.2 5B", ("head.modulation[-1]=3072",)),
    ("wan21_1b", ("condition_embedder.text_embedder.", "patch_embedding.bias[0]=1536")),
    ("wan21_14b", ("condition_embedder.text_embedder.", "patch_embedding.bias[0]=5120")),
    ("Wan 2.2 5B", ("condition_embedder.text_embedder.", "patch_embedding.bias[0]=3072")),
    # Stable Diffusion 3
    ("sd35_medium", ("joint_blocks.0.x_block.attn2.", "x_embedder.proj.weight[0]=1536")),
    ("Stable Diffusion 3 medium", ("joint_blocks.0.", "x_embedder.proj.weight[0]=1536")),
    ("sd35_large", ("joint_blocks.0.", "x_embedder.proj.weight[0]=2432")),
    ("sd35_medium", (_JOINT_DIFFUSERS, "transformer_blocks.0.attn2.", "pos_embed.proj.bias[0]=1536")),
    ("Stable Diffusion 3 medium", (_JOINT_DIFFUSERS, "pos_embed.proj.bias[0]=1536")),
    ("sd35_large", (_JOINT_DIFFUSERS, "pos_embed.proj.bias[0]=2432")),
    # Flux.2, Chroma, Flux.1
    ("flux2_klein_4b", ("double_stream_modulation_img.lin.weight", "img_in.weight[0]=3072")),
    ("flux2_klein_9b", ("double_stream_modulation_img.lin.weight", "img_in.weight[0]=4096")),
    ("Flux.2 dev", ("double_stream_modulation_img.lin.weight", "img_in.weight[0]=6144")),
    ("Flux.2 dev", ("double_stream_modulation_img.", "single_blocks.47.")),
    ("flux2_klein_9b", ("double_stream_modulation_img.", "double_blocks.7.", "!single_blocks.24.")),
    ("flux2_klein_4b", ("double_stream_modulation_img.", "double_blocks.4.", "!double_blocks.5.")),
    ("flux2_klein_4b", ("double_stream_modulation_img.linear.weight", "x_embedder.weight[0]=3072")),
    ("flux2_klein_9b", ("double_stream_modulation_img.linear.weight", "x_embedder.weight[0]=4096")),
    ("Flux.2 dev", ("double_stream_modulation_img.linear.weight", "x_embedder.weight[0]=6144")),
    ("Flux.2 dev", ("double_stream_modulation_img.", "single_transformer_blocks.47.")),
    ("flux2_klein_9b", ("double_stream_modulation_img.", "transformer_blocks.7.", "!single_transformer_blocks.24.")),
    ("flux2_klein_4b", ("double_stream_modulation_img.", "transformer_blocks.4.", "!transformer_blocks.5.")),
    ("a relative of Flux.2", ("double_stream_modulation_img.",)),
    ("Chroma Radiance", ("nerf_blocks.",)),
    ("chroma", ("distilled_guidance_layer.", "double_blocks.0.")),
    ("chroma", ("distilled_guidance_layer.", "transformer_blocks.0.")),
    ("a relative of Flux (Ovis, LongCat)", ("double_blocks.0.img_attn.", "img_in.", "!vector_in.")),
    ("flux1", ("double_blocks.0.img_attn.",)),
    ("flux1", ("single_transformer_blocks.0.", "time_text_embed.")),
    # Qwen-Image, Lumina
    ("qwen_image", ("txt_norm.weight[0]=3584",)),
    ("NewBie", ("clip_text_pooled_proj.", "cap_embedder.1.weight")),
    ("Z-Image in pixel space", ("dec_net.cond_embed.", "cap_embedder.1.weight")),
    ("Lumina-Next", ("cap_embedder.1.bias[0]=2304", "layers.0.", "!noise_refiner.")),
    ("zimage", ("cap_embedder.1.weight[0]=3840",)),
    ("zimage", ("cap_embedder.1.bias[0]=3840",)),
    ("lumina2", ("cap_embedder.1.weight[0]=2304",)),
    ("lumina2", ("cap_embedder.1.bias[0]=2304",)),
    ("lumina2", ("time_caption_embed.", "noise_refiner.", "x_embedder.bias[0]=2304")),
    # UNets of the original code
    ("Stable Video Diffusion", ("input_blocks.1.1.time_stack.",)),
    ("AnimateDiff", ("down_blocks.0.motion_modules.",)),
    ("Kolors", ("label_emb.0.0.weight[1]=5632",)),
    ("Mugen", (_FIRST, "out.2.weight[0]=32")),
    (_SMALL_SDXL, ("label_emb.0.0.weight[1]=2816", _DEEP + "0.", f"!{_DEEP}9.")),
    (_SMALL_SDXL, ("label_emb.0.0.weight[1]=2816", "input_blocks.3.1.")),  # one block a level, so the next is here
    ("sdxl", (_FIRST, "label_emb.0.0.weight[1]=2816")),
    ("sdxl_refiner", (_FIRST, "label_emb.0.0.weight[1]=2560")),
    ("sdxl", (_FIRST, "input_blocks.8.1.transformer_blocks.9.")),
    ("sdxl_refiner", (_FIRST + "[0]=384", "input_blocks.4.1.transformer_blocks.3.")),
    ("Stable Diffusion 2.1 unCLIP", (_FIRST, "label_emb.0.0.weight", _CONTEXT + "[1]=1024")),
    ("Stable Diffusion x4 upscaler", (_FIRST, "label_emb.weight")),
    ("a small Stable Diffusion 1", (_CONTEXT + "[1]=768", "output_blocks.0.", "!output_blocks.11.")),
    ("sd15", (_FIRST, "!label_emb.", _CONTEXT + "[1]=768")),
    ("sd21", (_FIRST, "!label_emb.", _CONTEXT + "[1]=1024")),
    ("sd15", (_FIRST, "!label_emb.", _CONTEXT + ".absmax", "input_blocks.1.1.proj_in.weight[3]=1")),
    ("sd21", (_FIRST, "!label_emb.", _CONTEXT + ".absmax", "input_blocks.1.1.proj_in.weight.absmax")),
    # UNets of diffusers
    ("Stable Video Diffusion", ("down_blocks.0.attentions.0.temporal_transformer_blocks.",)),
    ("I2VGen-XL", ("down_blocks.0.temp_attentions.0.",)),
    ("Kolors", ("add_embedding.linear_1.weight[1]=5632",)),
    (_SMALL_SDXL, ("add_embedding.linear_1.weight[1]=2816", _DEEP_DIFFUSERS + "0.", f"!{_DEEP_DIFFUSERS}9.")),
    ("sdxl", (_FIRST_DIFFUSERS, "add_embedding.linear_1.weight[1]=2816")),
    ("sdxl_refiner", (_FIRST_DIFFUSERS, "add_embedding.linear_1.weight[1]=2560")),
    ("a small Stable Diffusion 1", (_CONTEXT_DIFFUSERS + "[1]=768", "up_blocks.0.", "!up_blocks.0.resnets.2.")),
    ("sd15", (_FIRST_DIFFUSERS, "!class_embedding.", _CONTEXT_DIFFUSERS + "[1]=768")),
    ("sd21", (_FIRST_DIFFUSERS, "!class_embedding.", _CONTEXT_DIFFUSERS + "[1]=1024")),
    ("sdxl", (_FIRST_DIFFUSERS, "add_embedding.", _DEEP_DIFFUSERS + "9.", "!encoder_hid_proj.")),
    ("sdxl_refiner", (_FIRST_DIFFUSERS + "[0]=384", "add_embedding.linear_1.weight")),
    ("sd15", (_FIRST_DIFFUSERS, _CONTEXT_DIFFUSERS + ".absmax", _PROJECTION_DIFFUSERS + "[3]=1")),
    ("sd21", (_FIRST_DIFFUSERS, _CONTEXT_DIFFUSERS + ".absmax", _PROJECTION_DIFFUSERS + ".absmax", "!add_embedding.")),
)  # fmt: skip
"""Denoisers, and ControlNets made of them. A name that is no family of ours says what is not known yet."""

CONTROLNETS: tuple[Line, ...] = (
    ("sdxl", ("input_hint_block.", "label_emb.0.0.weight[1]=2816")),
    ("sdxl", ("controlnet_cond_embedding.", "add_embedding.linear_1.weight[1]=2816")),
    ("sdxl", ("lora_controlnet", "input_blocks.7.1.transformer_blocks.9.")),
    ("qwen_image", ("controlnet_x_embedder.", "txt_norm.weight")),
    ("flux1", ("controlnet_x_embedder.", "x_embedder.weight[0]=3072")),
    ("flux1", ("controlnet_blocks.0.", "double_blocks.0.img_attn.")),
    ("sd35_large", ("controlnet_blocks.0.", "pos_embed_input.proj.bias[0]=2432")),
    ("sd35_medium", ("controlnet_blocks.0.", "pos_embed_input.proj.bias[0]=1536", "transformer_blocks.0.attn2.")),
    ("zimage", ("control_layers.",)),
)
"""ControlNets that differ from their denoiser: asked before :data:`DENOISERS`, whose look-alikes do not matter then."""

VARIANTS: tuple[tuple[Family, str, tuple[str, ...]], ...] = (
    ("flux1", "inpaint", ("img_in.weight[1]=384",)),
    ("flux1", "inpaint", ("x_embedder.weight[1]=384",)),
    ("flux1", "control", ("img_in.weight[1]=128",)),
    ("flux1", "control", ("x_embedder.weight[1]=128",)),
    ("flux1", "dev", ("guidance_in.",)),
    ("flux1", "dev", ("time_text_embed.guidance_embedder.",)),
    ("flux1", "schnell", ("vector_in.", "!guidance_in.")),
    ("flux1", "schnell", ("time_text_embed.timestep_embedder.", "!time_text_embed.guidance_embedder.")),
    ("wan21_1b", "vace", ("vace_blocks.",)),
    ("wan21_14b", "vace", ("vace_blocks.",)),
    ("wan21_1b", "i2v", ("patch_embedding.weight[1]=36",)),
    ("wan21_14b", "i2v", ("patch_embedding.weight[1]=36",)),
    ("wan21_14b", "i2v", ("img_emb.",)),
    ("wan21_14b", "i2v", ("condition_embedder.image_embedder.",)),
)
"""Variants of a family, by a line each. "dev" has an input for guidance; "schnell" has none."""

TEXT_ENCODERS: tuple[Line, ...] = (
    ("clip_l", ("text_model.encoder.layers.0.layer_norm1.weight[0]=768",)),
    ("clip_l", ("text_model.embeddings.token_embedding.weight[1]=768",)),
    ("clip_g", ("text_model.encoder.layers.0.layer_norm1.weight[0]=1280",)),
    ("clip_g", ("text_model.embeddings.token_embedding.weight[1]=1280",)),
    ("open_clip_h", ("text_model.encoder.layers.0.layer_norm1.weight[0]=1024",)),
    ("clip_l", ("embeddings.token_embedding.weight[1]=768", "encoder.layers.0.layer_norm1.weight")),
    ("clip_g", ("embeddings.token_embedding.weight[1]=1280", "encoder.layers.0.layer_norm1.weight")),
    ("open_clip_h", ("embeddings.token_embedding.weight[1]=1024", "encoder.layers.0.layer_norm1.weight")),
    ("clip_l", ("transformer.resblocks.0.ln_1.weight[0]=768",)),
    ("open_clip_h", ("transformer.resblocks.0.ln_1.weight[0]=1024",)),
    ("clip_g", ("transformer.resblocks.0.ln_1.weight[0]=1280",)),
    ("umt5_xxl", (_UMT5_BIAS, "encoder.final_layer_norm.weight[0]=4096")),
    ("umt5_xxl", ("token_embedding.weight[0]=256384", "blocks.0.attn.q.weight")),
    ("t5_xxl", ("encoder.final_layer_norm.weight[0]=4096",)),
    ("t5_xxl", ("encoder.block.0.layer.0.SelfAttention.k.weight[1]=4096",)),
    ("t5_xl", ("encoder.block.0.layer.0.SelfAttention.k.weight[1]=2048",)),
    ("t5_xxl", ("encoder.block.0.layer.0.SelfAttention.k.qweight",)),
    ("umt5_xxl", ("enc.blk.1.attn_rel_b.weight", "enc.blk.0.attn_norm.weight[0]=4096")),
    ("t5_xxl", ("enc.blk.0.attn_norm.weight[0]=4096",)),
    ("gemma3", ("layers.0.post_feedforward_layernorm.weight", "layers.0.self_attn.q_norm.weight")),
    ("gemma2_2b", ("layers.0.post_feedforward_layernorm.weight[0]=2304",)),
    ("qwen3_vl_4b", ("visual.deepstack_merger_list.0.norm.weight",)),
    ("qwen25_vl_7b", ("layers.0.self_attn.k_proj.bias[0]=512",)),
    ("qwen25_vl_3b", ("layers.0.self_attn.k_proj.bias[0]=256",)),
    ("qwen3_06b", ("layers.0.self_attn.q_norm.weight", "layers.0.input_layernorm.weight[0]=1024")),
    ("qwen3_4b", ("layers.0.self_attn.q_norm.weight", "layers.0.input_layernorm.weight[0]=2560")),
    ("qwen3_8b", ("layers.0.self_attn.q_norm.weight", "layers.0.input_layernorm.weight[0]=4096")),
    ("ministral_3b", ("layers.0.input_layernorm.weight[0]=3072",)),
    ("mistral_24b", ("layers.0.input_layernorm.weight[0]=5120",)),
    ("llama_8b", ("layers.0.input_layernorm.weight[0]=4096",)),
    ("gemma2_2b", ("blk.0.post_ffw_norm.weight[0]=2304", "!blk.0.attn_q_norm.weight")),
    ("qwen25_vl_7b", ("blk.0.attn_k.bias[0]=512", "blk.0.attn_norm.weight[0]=3584")),
    ("qwen3_06b", ("blk.0.attn_q_norm.weight", "blk.0.attn_norm.weight[0]=1024")),
    ("qwen3_4b", ("blk.0.attn_q_norm.weight", "blk.0.attn_norm.weight[0]=2560")),
    ("qwen3_8b", ("blk.0.attn_q_norm.weight", "blk.0.attn_norm.weight[0]=4096")),
    ("mistral_24b", ("blk.0.attn_norm.weight[0]=5120",)),
    ("llama_8b", ("blk.0.attn_norm.weight[0]=4096",)),
    ("", ("layers.0.input_layernorm.weight",)),
    ("", ("blk.0.attn_norm.weight",)),
    ("", ("text_model.encoder.layers.0.",)),
    ("", ("text_model.embeddings.token_embedding.weight",)),
    ("", ("transformer.resblocks.0.",)),
    ("", ("encoder.block.0.layer.0.SelfAttention.",)),
)  # fmt: skip
"""Text encoders; the names are those of :mod:`lib_vram.physics.families`, ``""`` where the size is not known."""

VAES: tuple[Line, ...] = (
    ("wan", ("decoder.middle.0.residual.0.gamma", "decoder.conv1.weight[1]=16")),
    ("wan22", ("decoder.middle.0.residual.0.gamma", "decoder.conv1.weight[1]=48")),
    ("wan", ("decoder.conv_in.weight[1]=16", "decoder.mid_block.resnets.0.norm1.gamma")),
    ("wan22", ("decoder.conv_in.weight[1]=48", "decoder.mid_block.resnets.0.norm1.gamma")),
    ("", ("decoder.conv_in.weight[4]=3",)),  # of video, and not Wan's
    ("", ("decoder.temp_conv_in.weight",)),
    ("", ("decoder.time_conv_out.",)),
    ("", ("decoder.conv_in.weight[1]=32", "decoder.up_blocks.0.0.")),  # DC-AE
    ("sd15", ("decoder.conv_in.weight[1]=4",)),
    ("flux1", ("decoder.conv_in.weight[1]=16",)),
    ("flux2", ("decoder.conv_in.weight[1]=32",)),
    ("taesd", ("taesd_decoder.",)),
    ("taesd", ("1.weight[0]=64", "3.conv.0.weight")),
    ("taesd", ("0.weight[1]=3", "1.conv.0.weight")),
    ("taesd", ("decoder.layers.0.weight[-1]=3", "encoder.layers.0.weight")),
    ("", ("decoder.conv_in.weight",)),
    ("", ("decoder.conv_in.conv.weight",)),
    ("", ("decoder.conv1.weight",)),
    ("", ("decoder.middle.0.residual.0.gamma",)),
)
"""VAEs, by the family that they are profiled under."""

OTHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("ip_adapter", "sd15", ("ip_adapter.1.to_k_ip.weight[1]=768",)),
    ("ip_adapter", "sdxl", ("ip_adapter.1.to_k_ip.weight[1]=2048",)),
    ("ip_adapter", "flux1", ("double_blocks.0.processor.ip_adapter_double_stream_k_proj.weight",)),
    ("ip_adapter", "", ("ip_adapter.",)),
    ("ip_adapter", "", ("image_proj.",)),
    ("t2i_adapter", "", ("adapter.body.0.",)),
    ("t2i_adapter", "", ("body.0.block1.weight", "conv_in.weight")),
    ("t2i_adapter", "", ("body.0.resnets.0.block1.weight", "conv_in.weight")),
    ("image_encoder", "", ("vision_model.encoder.layers.0.",)),
    ("image_encoder", "", ("encoder.layers.0.layer_norm1.weight", "embeddings.patch_embedding.weight")),
    ("image_encoder", "", ("visual.transformer.resblocks.0.",)),
    ("image_encoder", "", ("v.blk.0.",)),
    ("upscaler", "", ("model.1.sub.0.RDB1.conv1.0.weight",)),
    ("upscaler", "", ("conv_first.weight", "body.0.rdb1.conv1.weight")),
    ("upscaler", "", ("RRDB_trunk.0.RDB1.conv1.weight",)),
    ("upscaler", "", ("body.0.weight[1]=3", "body.1.weight", "body.2.weight")),
    ("upscaler", "", ("layers.0.residual_group.blocks.0.",)),
    ("upscaler", "", ("conv_first.weight", "layers.0.blocks.0.")),
    ("upscaler", "", ("conv_first.weight[1]=3",)),
    ("upscaler", "", ("feats.0.weight[1]=3", "feats.1.")),
    ("upscaler", "", ("block_1.c1_r.eval_conv.weight",)),
    ("upscaler", "", ("m_head.0.weight[1]=3", "m_body.")),
    ("upscaler", "", ("residual_layer.0.residual_layer.", "input.weight[1]=3")),
    ("embedding", "", ("emb_params",)),
    ("embedding", "sdxl", ("clip_g[1]=1280", "clip_l[1]=768")),
    ("embedding", "", ("string_to_param.*",)),
)
"""Files that are neither a model nor a part of one: component, family where it shows, conditions."""

LORA_LAYERS: tuple[tuple[str, str, Mapping[int, str]], ...] = (
    (r"\d_transformer_blocks_\d+_attn2_to_k", "in", {768: "sd15", 1024: "sd21", 2048: "sdxl", 1280: "sdxl_refiner"}),
    ("joint_blocks_", "in", {1536: "sd35_medium", 2432: "sd35_large"}),
    ("distilled_guidance_layer", "in", {64: "chroma", 5120: "chroma"}),
    ("single_blocks_", "out", {27648: "flux2_klein_4b"}),
    ("double_blocks_0_img_mlp_0", "out", {18432: "flux2_klein_4b"}),
    ("double_blocks_0_img_attn", "in", {3072: "flux1", 4096: "flux2_klein_9b"}),
    ("single_blocks_0_linear1", "in", {3072: "flux1", 4096: "flux2_klein_9b"}),
    ("single_transformer_blocks_0_attn_to_qkv_mlp_proj", "in", {3072: "flux2_klein_4b", 4096: "flux2_klein_9b"}),
    ("single_transformer_blocks_", "in", {3072: "flux1"}),
    ("transformer_blocks_0_img_mlp", "in", {3072: "qwen_image"}),
    ("transformer_blocks_0_attn_add_k_proj", "in", {3072: "qwen_image", 1536: "sd35_medium", 2432: "sd35_large"}),
    ("layers_0_attention_", "in", {3840: "zimage", 2304: "lumina2"}),
    ("layers_0_attn_to_", "in", {2304: "lumina2"}),
    ("blocks_0_self_attn_", "in", {1536: "wan21_1b", 5120: "wan21_14b"}),
    ("blocks_0_cross_attn_", "in", {1536: "wan21_1b", 5120: "wan21_14b"}),
    ("blocks_0_attn1_to_", "in", {1536: "wan21_1b", 5120: "wan21_14b"}),
)
"""LoRAs: part of a layer's name, which side of the layer, families by its width; in order.

The part is a regular expression on the name with ``_`` for ``.`` and 0 for the number of every block.
"""
