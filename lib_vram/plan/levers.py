"""Which host can do what for less memory, and by which means: what the plan may offer there.

A plan offers a change only where the host that a request names can make it for one run and take it back. The
means are the names by which that host is told; they are for people who read the code of both sides. diffusers has no
host to tell: there they are the calls that a person writes into the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lib_vram.request import HostName

LeverName = Literal[
    "free_idle_models", "live_preview", "attention", "reserve", "batch_to_count", "cond_uncond_apart", "vae_tiled",
    "controlnet_low_vram", "upscaler_tile", "fp8_storage", "hires_scale", "smaller_size", "vae_sliced", "offload",
    "offload_layers",
]  # fmt: skip
"""One name for a rung of the ladder and for what makes it happen in the host."""


@dataclass(frozen=True)
class Means:
    """How one host does one thing. ``is_there`` only when it takes effect in the run and is restored after it."""

    is_there: bool
    by: str


LEVERS: Mapping[LeverName, Mapping[HostName, Means]] = {
    "free_idle_models": {
        "a1111": Means(True, "send_model_to_cpu for other checkpoints, Module.to for what else the host keeps"),
        "forge": Means(True, "memory_management.free_memory"),
        "neo": Means(True, "memory_management.free_memory"),
        "reforge": Means(True, "model_management.free_memory"),
        "classic": Means(True, "model_management.free_memory"),
        "diffusers": Means(True, "del, torch.cuda.empty_cache"),
    },
    "live_preview": {
        "a1111": Means(True, "opts.show_progress_type, opts.live_previews_enable"),
        "forge": Means(True, "opts.show_progress_type, opts.live_previews_enable"),
        "neo": Means(True, "opts.show_progress_type, opts.live_previews_enable"),
        "reforge": Means(True, "opts.show_progress_type, opts.live_previews_enable"),
        "classic": Means(True, "opts.show_progress_type, opts.live_previews_enable"),
    },
    "attention": {
        "a1111": Means(True, "sd_hijack.apply_optimizations, opts.cross_attention_optimization"),
        "diffusers": Means(True, "unet.set_attn_processor"),
    },
    "reserve": {
        "forge": Means(True, "override_settings['forge_inference_memory']"),
        "neo": Means(True, "memory_management.extra_reserved_memory"),
        "reforge": Means(True, "model_management.minimum_inference_memory"),
        "classic": Means(True, "model_management.minimum_inference_memory"),
    },
    "batch_to_count": {
        "a1111": Means(True, "p.batch_size, p.n_iter"),
        "forge": Means(True, "p.batch_size, p.n_iter"),
        "neo": Means(True, "p.batch_size, p.n_iter"),
        "reforge": Means(True, "p.batch_size, p.n_iter"),
        "classic": Means(True, "p.batch_size, p.n_iter"),
        "diffusers": Means(True, "num_images_per_prompt, and as many calls more"),
    },
    "cond_uncond_apart": {
        "a1111": Means(True, "opts.batch_cond_uncond"),
        "forge": Means(True, "sampling_function.calc_cond_uncond_batch"),
        "neo": Means(True, "sampling_function.calc_cond_uncond_batch"),
        "reforge": Means(True, "samplers.calc_cond_batch"),
        "classic": Means(True, "samplers.calc_cond_uncond_batch"),
    },
    "vae_tiled": {
        "a1111": Means(True, "decoder.forward in our tiles"),
        "forge": Means(True, "Never OOM Integrated, VAE_ALWAYS_TILED"),
        "neo": Means(True, "memory_management.VAE_ALWAYS_TILED"),
        "reforge": Means(True, "decoder.forward in our tiles"),
        "classic": Means(True, "Never OOM Integrated"),
        "diffusers": Means(True, "vae.enable_tiling"),
    },
    "controlnet_low_vram": {
        "a1111": Means(True, "ControlNetUnit.low_vram"),
    },
    "upscaler_tile": {
        "a1111": Means(True, "opts.ESRGAN_tile and those of DAT, SwinIR, ScuNET"),
        "forge": Means(True, "opts.ESRGAN_tile and those of DAT, SwinIR, ScuNET"),
        "neo": Means(True, "opts.ESRGAN_tile"),
        "reforge": Means(True, "opts.ESRGAN_tile and those of DAT, SwinIR, ScuNET"),
        "classic": Means(True, "opts.ESRGAN_tile"),
    },
    "fp8_storage": {
        "a1111": Means(True, "opts.fp8_storage"),
        "forge": Means(True, "opts.forge_unet_storage_dtype, main_entry.refresh_model_loading_parameters"),
        "neo": Means(True, "opts.forge_unet_storage_dtype, main_entry.refresh_model_loading_parameters"),
        "reforge": Means(False, "opts.fp8_storage is read by nobody; a flag at the start does it"),
        "classic": Means(False, "opts.fp8_storage, which wants a restart"),
        "diffusers": Means(True, "enable_layerwise_casting of the denoiser"),
    },
    "hires_scale": {
        "a1111": Means(True, "p.hr_scale, p.hr_resize_x, p.hr_resize_y"),
        "forge": Means(True, "p.hr_scale, p.hr_resize_x, p.hr_resize_y"),
        "neo": Means(True, "p.hr_scale, p.hr_resize_x, p.hr_resize_y"),
        "reforge": Means(True, "p.hr_scale, p.hr_resize_x, p.hr_resize_y"),
        "classic": Means(True, "p.hr_scale, p.hr_resize_x, p.hr_resize_y"),
        "diffusers": Means(True, "height, width of the second pipeline"),
    },
    "smaller_size": {
        "a1111": Means(True, "p.width, p.height"),
        "forge": Means(True, "p.width, p.height"),
        "neo": Means(True, "p.width, p.height"),
        "reforge": Means(True, "p.width, p.height"),
        "classic": Means(True, "p.width, p.height"),
        "diffusers": Means(True, "height, width"),
    },
    "vae_sliced": {
        "diffusers": Means(True, "vae.enable_slicing"),
    },
    "offload": {
        "diffusers": Means(True, "enable_model_cpu_offload"),
    },
    "offload_layers": {
        "diffusers": Means(True, "enable_sequential_cpu_offload"),
    },
}
"""A lever without a host cannot be had there at all; one that is not there yet is not offered."""


def has_lever(host: HostName, lever: LeverName) -> bool:
    """Return whether ``host`` can do ``lever`` for one run."""
    means = LEVERS[lever].get(host)
    return means is not None and means.is_there
