"""In which phase of a generation a program was, from the names of functions and files in its traceback."""

from __future__ import annotations

import re

PHASES: tuple[tuple[str, str], ...] = (
    ("vae_decode", r"decode_first_stage|decode_latent_batch|first_stage_model\.decode|vae\.decode|vae_decode|"
                   r"decode_tiled|regular vae decod|vaedecode|latents_to_image|samples_to_images_tensor|decoder\(z|"
                   r"taesd"),
    ("vae_encode", r"encode_first_stage|first_stage_model\.encode|vae\.encode|vae_encode|vaeencode|encode_tiled|"
                   r"regular vae encod|images_tensor_to_samples|image_to_latents"),
    ("load", r"load_model_weights|reload_model_weights|load_state_dict|forge_model_reload|load_checkpoint|"
             r"load_torch_file|read_state_dict|load_file\(|safe_open|from_pretrained|load_models_gpu|forge_loader|"
             r"loading model|checkpointloader|unetloader|load_unet|send_model_to_device"),
    ("text_encode", r"get_learned_conditioning|get_multicond|encode_prompt|cliptextencode|text_encoder|textencode|"
                    r"encode_with_transformers|process_texts|sd_hijack_clip|clip_skip"),
    ("controlnet_preprocess", r"controlnet[/\\\w.]*(?:processor|preprocess|annotator)|run_annotator|preprocessor_|"
                              r"annotator[/\\]"),
    ("detailer", r"adetailer|face_?detailer|ddetailer"),
    ("face_restore", r"restore_faces|codeformer|gfpgan|face_restoration|reactor"),
    ("hires_upscale", r"upscale_without_tiling|tiled_upscale|upscaler_utils|upscale_with_model|esrgan|do_upscale|"
                      r"resize_image|imageupscalewithmodel|swinir|ultimate-upscale|hat_model|realesrgan"),
    ("training", r"train_embedding|train_hypernetwork|textual_inversion[/\\.]textual_inversion\.py|"
                 r"hypernetwork\.py.{0,40}train|train_network|train_db|loss\.backward|accelerator\.backward|"
                 r"\.backward\(|optimizer\.step|dreambooth|kohya_ss|sd-scripts"),
    ("sampling", r"sample_hr_pass|cfgdenoiser|cfg_denoiser|sampler\.sample|sampling_function|k_diffusion|kdiffusion|"
                 r"sample_euler|sample_dpm|common_ksampler|ksampler|calc_cond_batch|calc_cond_uncond|apply_model|"
                 r"diffusion_model|unet_forward|denoise"),
)  # fmt: skip
"""Names as A1111, Forge and its kin, ComfyUI, diffusers and trainers have them, in small letters; the deepest wins."""

_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in PHASES)
_TRACEBACK = "traceback (most recent call last)"


def phase_of(before: str, after: str) -> str | None:
    """Return the phase in which the failure after ``before`` happened, ``None`` when no name says it."""
    text = before.lower()
    begin = text.rfind(_TRACEBACK)
    frames = text[begin:] if begin >= 0 else text[-600:]
    deepest = _deepest(frames)
    if deepest is None:
        deepest = _deepest(after.lower()[:4000]) if _TRACEBACK in after.lower() else None
    if deepest == "sampling" and "sample_hr_pass" in frames:
        return "hires_sampling"
    return deepest


def _deepest(frames: str) -> str | None:
    places = [(max((m.start() for m in pattern.finditer(frames)), default=-1), name) for name, pattern in _PATTERNS]
    place, name = max(places)
    if place < 0:
        return None
    trained = next((position for position, phase in places if phase == "training"), -1)
    return "training" if trained >= 0 else name
