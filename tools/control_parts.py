"""ControlNets of transformers in the code of the one WebUI that has classes for them.

    python tools/control_parts.py --host-source DIR --style reforge [PART ...] [--check]

reForge has those of Flux.1 and SD 3.5 large in ``ldm_patched``, in the shape in which other programs run them too; its
ControlNet panel loads UNets' alone. Written like ``tools/host_parts.py`` writes what denoises.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.program import Setting
from tools import host_parts
from tools.host_parts import FLUX, Part, empty


def use(source: Path, _style: str) -> None:
    """Make the host's packages importable, on a machine without a GPU."""
    sys.path.insert(0, str(source))
    os.chdir(source)
    arguments: Any = importlib.import_module("ldm_patched.modules.args_parser")
    arguments.args.always_cpu = arguments.args.use_pytorch_cross_attention = True
    attention: Any = importlib.import_module("ldm_patched.ldm.modules.attention")
    attention.optimized_attention = attention.attention_pytorch


def plain_operations() -> Any:
    """Return the layers with which the host builds a model whose weights have the type that is computed in."""
    return importlib.import_module("ldm_patched.modules.ops").disable_weight_init


def flux1(layers: int, single: int, modes: int = 0, *, latent: bool = True) -> torch.nn.Module:
    """Return a ControlNet of Flux.1; that of XLabs sees the picture instead of a latent."""
    numbers = {**FLUX, "depth": layers, "depth_single_blocks": single, "out_channels": 16, "patch_size": 2}
    module: Any = importlib.import_module("ldm_patched.ldm.flux.controlnet")
    channels = 16 if latent else None
    return module.ControlNetFlux(  # type: ignore[no-any-return]
        latent_input=latent, num_union_modes=modes, control_latent_channels=channels, guidance_embed=True,
        operations=plain_operations(), **numbers,
    )  # fmt: skip


def run_flux1(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """Flux.1's ControlNet with latent, prompt, pooled prompt, guidance and hint."""
    make, time = partial(empty, dtype=dtype), empty(at.batch, dtype=torch.float32)
    channels, scale = (16, 1) if model.latent_input else (3, 8)
    return model(
        make(at.batch, 16, at.rows, at.columns), time, make(at.batch, 512, 4096), y=make(at.batch, 768),
        guidance=empty(at.batch, dtype=torch.float32),
        hint=make(at.batch, channels, at.rows * scale, at.columns * scale),
        control_type=[0] if model.num_union_modes else [],
    )  # fmt: skip


def sd35_large() -> torch.nn.Module:
    """Return Stability's ControlNet of SD 3.5 large: 19 blocks that see no text."""
    module: Any = importlib.import_module("ldm_patched.controlnet.dit_embedder")
    return module.ControlNetEmbedder(  # type: ignore[no-any-return]
        img_size=None, patch_size=2, in_chans=16, attention_head_dim=64, num_attention_heads=38,
        adm_in_channels=2048, num_layers=19, main_model_double=38, double_y_emb=False, device=None, dtype=None,
        operations=plain_operations(),
    )  # fmt: skip


def run_sd35_large(model: Any, dtype: torch.dtype, at: Setting) -> object:
    """SD 3.5 large's ControlNet; the hint is a latent."""
    make = partial(empty, dtype=dtype)
    latent, hint = make(at.batch, 16, at.rows, at.columns), make(at.batch, 16, at.rows, at.columns)
    return model(latent, empty(at.batch, dtype=torch.float32), y=make(at.batch, 2048), hint=hint)


def parts() -> Iterator[Part]:
    """Return the ControlNets of transformers that reForge has classes for."""
    for variant, layers, single, modes in (("", 5, 10, 10), ("_union2", 6, 0, 0), ("_single", 5, 0, 0)):
        yield Part("flux1", f"controlnet{variant}", partial(flux1, layers, single, modes), run_flux1, whole=2)
    yield Part("flux1", "controlnet_xlabs", partial(flux1, 2, 0, latent=False), run_flux1, whole=2)
    yield Part("sd35_large", "controlnet", sd35_large, run_sd35_large, whole=2)


if __name__ == "__main__":
    sys.exit(host_parts.main(sys.argv[1:], {"reforge": (parts,)}, use))
