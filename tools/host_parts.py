"""Model parts in the code of the WebUIs themselves, in the sizes that the published configurations give.

    python tools/host_parts.py --host-source DIR --style forge|neo [PART ...] [--check]

``DIR`` is a checkout of stable-diffusion-webui-forge, or of Forge Neo, with what it needs installed. Its own classes
are imported, built on ``meta`` and traced; only the figures are written. Rotary embeddings that the host computes
with a compiled kernel are replaced by what that kernel takes: its results.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.families import SHAPES
from lib_vram.physics.fitting import DoesNotFit, check_events, fit
from lib_vram.physics.profile import FOLDER, Profile
from lib_vram.physics.program import Setting, expand
from lib_vram.physics.raw import RawTrace
from lib_vram.physics.trace import trace
from tools.meta.clip import TextEncoders
from tools.meta.shapes import CLIP_BIG_G, CLIP_L
from tools.trace_profiles import DTYPES, FITTED, HELD_OUT, count, on_meta, text_of

Run = Callable[[Any, torch.dtype, Setting], object]
SD3_TEXT = 77 + 256
"""Tokens of SD 3.5's prompt in the hosts: CLIP's before T5's, which they pad to 256."""


@dataclass(frozen=True)
class Part:
    """One part: how its module is made, how it is run, and the multiple of latent rows and columns it needs."""

    family: str
    part: str
    make: Callable[[], torch.nn.Module]
    run: Run
    whole: int = 1
    frames: tuple[int, ...] = (1,) * 5


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on ``meta``."""
    return torch.empty(*shape, dtype=dtype, device="meta")


def use(source: Path, style: str) -> None:
    """Make the host's packages importable, on a machine without a GPU."""
    folders = ("", "packages_3rdparty", "modules_forge/packages", "repositories/huggingface_guess")
    sys.path[:0] = [str(source / folder) for folder in folders]
    sys.argv[1:] = ["--always-cpu"] if style == "forge" else ["--cpu"]
    os.chdir(source)
    if style == "neo":
        kernels: Any = importlib.import_module("comfy_kitchen")
        kernels.apply_rope = lambda query, key, table: (torch.empty_like(query), torch.empty_like(key))
        kernels.apply_rope1 = lambda query, table: torch.empty_like(query)
    attention = importlib.import_module("backend.attention")
    attention.attention_function = attention.attention_pytorch
    if style == "neo":
        attention.attention_function_vae = attention.pytorch_attention_vae
    else:
        attention.attention_function_single_head_spatial = attention.pytorch_attention_single_head_spatial


def host(module: str, name: str) -> Callable[..., torch.nn.Module]:
    """Return one of the host's own classes."""
    return getattr(importlib.import_module(f"backend.nn.{module}"), name)


# --- denoisers ----------------------------------------------------------------------------------------------------

FLUX = {
    "in_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0,
    "num_heads": 24, "depth": 19, "depth_single_blocks": 38, "axes_dim": [16, 56, 56], "theta": 10000,
    "qkv_bias": True,
}  # fmt: skip
CHROMA = {name: value for name, value in FLUX.items() if name != "vec_in_dim"}
KLEIN = {
    "in_channels": 128, "out_channels": 128, "vec_in_dim": None, "mlp_ratio": 3.0, "axes_dim": [32, 32, 32, 32],
    "theta": 2000, "patch_size": 1, "qkv_bias": False, "guidance_embed": False, "txt_ids_dims": [3],
    "global_modulation": True, "mlp_silu_act": True, "ops_bias": False,
}  # fmt: skip
LUMINA2 = {
    "patch_size": 2, "in_channels": 16, "dim": 2304, "cap_feat_dim": 2304, "n_layers": 26, "qk_norm": True,
    "n_heads": 24, "n_kv_heads": 8, "axes_dims": [32, 32, 32], "axes_lens": [300, 512, 512], "ffn_dim_multiplier": 4.0,
}  # fmt: skip
ZIMAGE = {
    "patch_size": 2, "in_channels": 16, "dim": 3840, "cap_feat_dim": 2560, "n_layers": 30, "qk_norm": True,
    "n_heads": 30, "n_kv_heads": 30, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512], "rope_theta": 256.0,
    "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32,
}  # fmt: skip


def run_flux(text: int, width: int, channels: int, pooled: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Flux and its relatives: latent, prompt, and for Flux.1 the pooled prompt and the guidance."""
    make = partial(empty, dtype=dtype)
    inputs = [make(at.batch, channels, at.rows, at.columns), empty(at.batch, dtype=torch.float32)]
    if not pooled:
        return model(*inputs, make(at.batch, text, width))
    guidance = empty(at.batch, dtype=torch.float32)
    return model(*inputs, make(at.batch, text, width), make(at.batch, pooled), guidance=guidance)


def run_lumina(text: int, width: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Lumina 2 and Z-Image, with the pictures put together at once: the host does it one by one, in as much memory."""
    model.unpatchify = partial(_unpatchify, model)
    return run_flux(text, width, 16, 0, model, dtype, at)


def _unpatchify(model: Any, x: torch.Tensor, sizes: list[tuple[int, int]], before: list[int], **_: Any) -> torch.Tensor:
    side, (rows, columns) = model.patch_size, sizes[0]
    tokens = x[:, before[0] : before[0] + rows // side * (columns // side)]
    grid = tokens.view(len(sizes), rows // side, columns // side, side, side, model.out_channels)
    return grid.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3).clone()


def run_sd3(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """SD 3.5."""
    make = partial(empty, dtype=dtype)
    latent, step = make(at.batch, 16, at.rows, at.columns), empty(at.batch, dtype=torch.float32)
    return model(latent, step, y=make(at.batch, 2048), context=make(at.batch, SD3_TEXT, 4096))


def run_video(text: int, width: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Qwen-Image and Wan, whose latents have frames."""
    make = partial(empty, dtype=dtype)
    latent = make(at.batch, 16, at.frames, at.rows, at.columns)
    return model(latent, empty(at.batch, dtype=torch.float32), make(at.batch, text, width))


def sd3(layers: int, positions: int, dual: int) -> torch.nn.Module:
    """Return the transformer of SD 3.5 medium or large."""
    width = layers * 64
    return host("mmditx", "MMDiTX")(
        input_size=None, pos_embed_scaling_factor=None, pos_embed_offset=None, pos_embed_max_size=positions,
        num_patches=positions**2, patch_size=2, in_channels=16, depth=layers, adm_in_channels=2048, qk_norm="rms",
        context_embedder_config={"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": width}},
        x_block_self_attn_layers=list(range(dual)),
    )  # fmt: skip


def forge_denoisers() -> Iterator[Part]:
    """Return the transformers that Forge has."""
    flux = partial(host, "flux", "IntegratedFluxTransformer2DModel")
    flux1 = partial(run_flux, 512, 4096, 16, 768)
    yield Part("flux1", "denoise", lambda: flux()(**FLUX, guidance_embed=True), flux1)
    yield Part(
        "chroma", "denoise", lambda: host("chroma", "IntegratedChromaTransformer2DModel")(
            **CHROMA, vec_in_dim=768, guidance_out_dim=3072, guidance_hidden_dim=5120, guidance_n_layers=5),
        partial(run_flux, 512, 4096, 16, 0),
    )  # fmt: skip
    yield Part("sd35_medium", "denoise", partial(sd3, 24, 384, 13), run_sd3, whole=2)
    yield Part("sd35_large", "denoise", partial(sd3, 38, 192, 0), run_sd3, whole=2)


def neo_denoisers() -> Iterator[Part]:
    """Return the transformers that Forge Neo has."""
    flux = partial(host, "flux", "IntegratedFluxTransformer2DModel")
    yield Part("flux1", "denoise", lambda: flux()(**FLUX, out_channels=16, patch_size=2, guidance_embed=True),
               partial(run_flux, 512, 4096, 16, 768))  # fmt: skip
    chroma = {**CHROMA, "in_channels": 64, "out_channels": 64, "patch_size": 2, "in_dim": 64, "out_dim": 3072,
              "hidden_dim": 5120, "n_layers": 5, "txt_ids_dims": [], "vec_in_dim": 768}  # fmt: skip
    yield Part("chroma", "denoise", lambda: host("chroma", "IntegratedChromaTransformer2DModel")(**chroma),
               partial(run_flux, 512, 4096, 16, 0))  # fmt: skip
    for family, width, heads, depth, single, text in (
        ("flux2_klein_4b", 3072, 24, 5, 20, 7680), ("flux2_klein_9b", 4096, 32, 8, 24, 12288),
    ):  # fmt: skip
        numbers = {"hidden_size": width, "num_heads": heads, "depth": depth, "depth_single_blocks": single,
                   "context_in_dim": text}  # fmt: skip
        yield Part(family, "denoise", lambda numbers=numbers: flux()(**KLEIN, **numbers),
                   partial(run_flux, 512, text, 128, 0))  # fmt: skip
    yield Part("qwen_image", "denoise", lambda: host("qwen", "QwenImageTransformer2DModel")(),
               partial(run_video, 512, 3584), whole=2)  # fmt: skip
    for family, config, text, width in (("lumina2", LUMINA2, 256, 2304), ("zimage", ZIMAGE, 512, 2560)):
        yield Part(family, "denoise", lambda config=config: host("lumina", "NextDiT")(**config),
                   partial(run_lumina, text, width), whole=16)  # fmt: skip
    for family, width, heads, layers, inner in (("wan21_1b", 1536, 12, 30, 8960), ("wan21_14b", 5120, 40, 40, 13824)):
        numbers = {"dim": width, "num_heads": heads, "num_layers": layers, "ffn_dim": inner}
        yield Part(family, "denoise", lambda numbers=numbers: host("wan", "WanModel")(**numbers),
                   partial(run_video, 512, 4096), whole=2, frames=(1, 3, 2, 5, 4))  # fmt: skip


# --- VAEs ---------------------------------------------------------------------------------------------------------


def kl(channels: int, name: str = "IntegratedAutoencoderKL", *, quant: bool) -> torch.nn.Module:
    """Return a two-dimensional VAE."""
    return host("vae", name)(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=channels, use_quant_conv=quant,
        use_post_quant_conv=quant,
    )  # fmt: skip


def run_decode(channels: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Decode a latent."""
    return model.decode(empty(at.batch, channels, at.rows, at.columns, dtype=dtype))


def run_encode(pixels: int, model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode a picture, ``pixels`` of which make a row of the latent."""
    return model.encode(empty(at.batch, 3, at.rows * pixels, at.columns * pixels, dtype=dtype))


def run_decode_3d(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Decode one frame with the 3-D VAE."""
    return model.decode(empty(at.batch, 16, 1, at.rows, at.columns, dtype=dtype))


def run_encode_3d(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode one frame with the 3-D VAE."""
    return model.encode(empty(at.batch, 3, 1, at.rows * 8, at.columns * 8, dtype=dtype))


def neo_vaes() -> Iterator[Part]:
    """Return the VAEs that only Neo has; those with one frame and 4 or 16 channels are traced from our own modules."""
    flux2 = partial(kl, 32, "AutoencoderKLFlux2", quant=True)
    yield Part("flux2", "vae_decode", flux2, partial(run_decode, 128))
    yield Part("flux2", "vae_encode", flux2, partial(run_encode, 16))

    def wan() -> torch.nn.Module:
        return host("wan_vae", "WanVAE")(base_dim=96, z_dim=16, temporal_downsample=[False, True, True])

    yield Part("wan", "vae_decode", wan, run_decode_3d)
    yield Part("wan", "vae_encode", wan, run_encode_3d)


# --- text encoders ------------------------------------------------------------------------------------------------

T5 = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "dense_act_fn": "gelu_pytorch_tanh",
      "is_gated_act": True, "model_type": "t5", "vocab_size": 32128}  # fmt: skip
LLAMAS = {"qwen3_4b": "Qwen3_4B", "qwen3_8b": "Qwen3_8B", "qwen25_vl_7b": "Qwen25_7BVLI", "gemma2_2b": "Gemma2_2B"}


CLIPS = {"clip_l": CLIP_L, "clip_g": CLIP_BIG_G}


class Encoders(torch.nn.Module):
    """All text encoders of a family, which work one after the other, each result kept."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self.encoders = SHAPES[family].encoders
        self.kept = KEPT.get(family, -2)
        self.models = torch.nn.ModuleList(_encoder(encoder.name) for encoder in self.encoders)

    def forward(self, batch: int) -> list[object]:
        """Encode one prompt for each of ``batch`` pictures."""
        pairs = zip(self.models, self.encoders)
        return [_encode(model, item.name, batch, item.tokens, self.kept) for model, item in pairs]


KEPT: dict[str, int | list[int] | None] = {
    "qwen_image": None, "flux2_klein_4b": [9, 18, 27], "flux2_klein_9b": [9, 18, 27],
}  # fmt: skip
"""Layers of a language model whose results the host takes, where not the last but one."""


def _encode(model: Any, name: str, batch: int, tokens: int, kept: int | list[int] | None) -> object:
    """Run one encoder as the host does: a language model gets its tokens' embeddings, and a mask."""
    prompt = empty(batch, tokens, dtype=torch.long)
    if name not in LLAMAS:
        return model(prompt)
    embedded = model.get_input_embeddings()(prompt)
    options = {} if kept is None else {"intermediate_output": kept}
    mask = torch.empty_like(prompt)
    return model(None, attention_mask=mask, embeds=embedded, num_tokens=[tokens] * batch, **options)


def _encoder(name: str) -> torch.nn.Module:
    """Return one text encoder; CLIP is our own module, as for the families of Stable Diffusion."""
    if name in CLIPS:
        return TextEncoders((CLIPS[name],))
    if name in LLAMAS:
        return host("llm.llama", LLAMAS[name])({})
    config = T5 if name == "t5_xxl" else {**T5, "model_type": "umt5", "vocab_size": 256384}
    return host("t5", "IntegratedT5")(config).transformer


def encoders(family: str) -> torch.nn.Module:
    """Return the text encoders of ``family``, with the layers that Neo puts in place of torch's."""
    operations = importlib.import_module("backend.operations")
    with operations.using_forge_operations(device="meta"):
        return Encoders(family)


def run_text(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Encode one prompt for each picture."""
    return model(at.batch)


def neo_encoders() -> Iterator[Part]:
    """Return the text encoders of every family that is no Stable Diffusion of the first kind."""
    for family, shape in SHAPES.items():
        if shape.transformer:
            yield Part(family, "text_encode", partial(encoders, family), run_text)


# --- profiles -----------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[], Iterator[Part]], ...]] = {
    "forge": (forge_denoisers,),
    "neo": (neo_denoisers, neo_vaes, neo_encoders),
}


def at_whole(item: Setting, part: Part, frames: int, batch: int | None) -> Setting:
    """Return ``item`` with sides that the part takes, its frames, and a batch of one where that is asked for."""
    rows, columns = (-(-side // part.whole) * part.whole for side in (item.rows, item.columns))
    return replace(item, rows=rows, columns=columns, frames=frames, batch=batch or item.batch)


def build(name: str, part: Part, dtype: torch.dtype, batch: int | None) -> Profile:
    """Return one profile, with its attention left open where it can be.

    Raises:
        DoesNotFit: an event is no sum of monomials, or a figure at another size is not that of a fresh trace.
    """
    if part.part != "text_encode":
        try:
            return _built(name, part, dtype, batch, leave_open=True)
        except DoesNotFit as fault:
            print(f"attention is fused for good: {fault}", file=sys.stderr)
    return _built(name, part, dtype, batch, leave_open=False)


def _built(name: str, part: Part, dtype: torch.dtype, batch: int | None, *, leave_open: bool) -> Profile:
    """Return the profile, checked at sizes that it was not made from."""
    module = on_meta(part.make, dtype)
    resident = [*module.parameters(), *module.buffers()]

    def traced(at: Setting) -> RawTrace:
        return trace(lambda: part.run(module, dtype, at), resident=resident, leave_open=leave_open)

    settings = [at_whole(item, part, frames, batch) for item, frames in zip(FITTED, part.frames)]
    profile = fit(name, count(module), settings, [traced(at) for at in settings])
    for item in HELD_OUT if batch else [replace(item, batch=item.batch + 1) for item in HELD_OUT]:
        setting = at_whole(item, part, part.frames[1], batch)
        check_events(profile, setting, traced(setting))
        check_peak(profile, setting)
    return profile


def check_peak(profile: Profile, setting: Setting) -> None:
    """Fail when a loop cut short gives another peak. What the allocator makes of fewer turns may differ a little.

    Raises:
        DoesNotFit: the floor differs.
    """
    floors = {expand(profile, setting, "sdpa", kept=kept).floor_bytes for kept in (2, None)}
    if len(floors) > 1:
        raise DoesNotFit(f"{profile.name} at {setting}: a loop cut short gives {floors}")


def profiles(part: Part, style: str) -> Iterator[tuple[str, str]]:
    """Return name and text of every profile of ``part``: one for all batches where the events are the same."""
    for dtype_name, dtype in DTYPES.items():
        name = f"{part.family}-{part.part}-{dtype_name}-{style}"
        many = build(name, part, dtype, None)
        one = build(f"{name}_one", part, dtype, 1)
        if one.tokens == many.tokens and one.terms == many.terms:
            yield name, text_of(many)
        else:
            yield name, text_of(many)
            yield f"{name}_one", text_of(one)


def written(part: Part, style: str, *, check: bool) -> Iterator[Path]:
    """Write the profiles of ``part`` that are not what its code gives, and return their paths."""
    for name, text in profiles(part, style):
        path = FOLDER / f"{name}.json"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if not check:
            path.write_text(text, encoding="utf-8", newline="\n")
        yield path


def main(
    arguments: list[str],
    known: dict[str, tuple[Callable[[], Iterator[Part]], ...]] = PARTS,
    prepare: Callable[[Path, str], None] = use,
) -> int:
    """Write the profiles of one host, or check that they are what its code gives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="only names that hold one of these")
    parser.add_argument("--host-source", type=Path, required=True, help="folder of the host's checkout")
    parser.add_argument("--style", choices=sorted(known), required=True)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    options = parser.parse_args(arguments)
    prepare(options.host_source.resolve(), options.style)
    changed = []
    for part in (part for make in known[options.style] for part in make()):
        if options.parts and not any(item in f"{part.family}-{part.part}" for item in options.parts):
            continue
        try:
            changed += [path.name for path in written(part, options.style, check=options.check)]
        except DoesNotFit as fault:
            print(f"{part.family} {part.part}: {fault}", file=sys.stderr)
    what = "differ" if options.check else "were written"
    print(f"{len(changed)} of the profiles {what}: {', '.join(changed) or 'none'}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
