"""Regenerates the profiles of upscalers, face restorers and adapters, by tracing their public code on meta tensors.

    python tools/trace_addons.py [KIND …]     writes lib_vram/physics/profiles/addon-*.json

Needs torch, spandrel, spandrel_extra_arches, facexlib, diffusers and transformers; no weights, no GPU. The numbers of
each model are those of its published files: 4x-UltraSharp and R-ESRGAN 4x+ (RRDBNet), realesr-general-x4v3,
SwinIR-L x4, DAT x4, HAT x4, GFPGAN 1.4, CodeFormer, RetinaFace-R50, T2I-Adapter, OpenCLIP ViT-H/14 as the image
encoder of IP-Adapter. What cannot run in half precision (SwinIR, DAT, HAT) has a profile in fp32 alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.host.tracing import DTYPES, GivenUp, LoadedPart, trace_part
from lib_vram.physics.addons import SIDES
from lib_vram.physics.cache import MEASURED
from lib_vram.physics.profile import FOLDER
from lib_vram.physics.program import Setting


def settings_of(kind: str) -> dict[str, Any]:
    """Return the sizes to trace a kind at: batch and rows and columns in pixels, fixed where the model's are."""
    side = SIDES.get(kind)
    if side is not None:
        return {"settings": tuple(Setting(batch, side, side) for batch in (2, 4, 6, 3)),
                "checked": Setting(1, side, side)}  # fmt: skip
    sizes = ((2, 192, 128), (4, 64, 256), (6, 128, 320), (3, 256, 192))
    return {"settings": tuple(Setting(*size) for size in sizes), "checked": Setting(1, 128, 448)}


@dataclass(frozen=True)
class Kind:
    """One add-on: its module, and how the hosts run it on what is made of ``channels`` × rows × columns."""

    make: Callable[[], nn.Module]
    call: Callable[[Any, torch.Tensor], object] = lambda model, picture: model(picture)
    channels: int = 3


def _esrgan() -> nn.Module:
    from spandrel.architectures.ESRGAN.arch.RRDB import RRDBNet

    return RRDBNet()


def _compact() -> nn.Module:
    from spandrel.architectures.Compact.arch.SRVGG import SRVGGNetCompact

    return SRVGGNetCompact(num_feat=64, num_conv=32, upscale=4, act_type="prelu")


def _swinir() -> nn.Module:
    from spandrel.architectures.SwinIR.arch.SwinIR import SwinIR

    return SwinIR(embed_dim=240, depths=[6] * 9, num_heads=[8] * 9, window_size=8, mlp_ratio=2, upscale=4,
                  upsampler="nearest+conv", resi_connection="3conv")  # fmt: skip


def _dat() -> nn.Module:
    from spandrel.architectures.DAT.arch.DAT import DAT

    return DAT(embed_dim=180, split_size=[8, 32], depth=[6] * 6, num_heads=[6] * 6, upscale=4)


def _hat() -> nn.Module:
    from spandrel.architectures.HAT.arch.HAT import HAT

    return HAT(embed_dim=180, depths=[6] * 6, num_heads=[6] * 6, window_size=16, mlp_ratio=2, upscale=4)


def _gfpgan() -> nn.Module:
    from spandrel.architectures.GFPGAN.arch.gfpganv1_clean_arch import GFPGANv1Clean

    return GFPGANv1Clean()


def _codeformer() -> nn.Module:
    from spandrel_extra_arches.architectures.CodeFormer.arch.codeformer import CodeFormer

    return CodeFormer()


def _retinaface() -> nn.Module:
    from facexlib.detection.retinaface import RetinaFace

    return RetinaFace(network_name="resnet50", half=False, device="cpu")


def _detect(model: Any, picture: torch.Tensor) -> object:
    features = model.fpn(list(model.body(picture).values()))
    features = [model.ssh1(features[0]), model.ssh2(features[1]), model.ssh3(features[2])]
    boxes = torch.cat([model.BboxHead[place](item) for place, item in enumerate(features)], dim=1)
    classes = torch.cat([model.ClassHead[place](item) for place, item in enumerate(features)], dim=1)
    return boxes, classes.softmax(dim=-1)


def _t2i(kind: str, channels: list[int], factor: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from diffusers import T2IAdapter

        return T2IAdapter(in_channels=3, channels=channels, num_res_blocks=2, downscale_factor=factor,
                          adapter_type=kind)  # fmt: skip

    return make


def _vit_h() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    return CLIPVisionModelWithProjection(CLIPVisionConfig(
        hidden_size=1280, intermediate_size=5120, projection_dim=1024, num_hidden_layers=32, num_attention_heads=16,
        patch_size=14, image_size=224, hidden_act="gelu", attn_implementation="sdpa",
    ))  # fmt: skip


KINDS = {
    "esrgan": Kind(_esrgan),
    "compact": Kind(_compact),
    "swinir": Kind(_swinir),
    "dat": Kind(_dat),
    "hat": Kind(_hat),
    "gfpgan": Kind(_gfpgan, lambda model, picture: model(picture, return_rgb=False)),
    "codeformer": Kind(_codeformer, lambda model, picture: model(picture, weight=0.5)),
    "retinaface": Kind(_retinaface, _detect),
    "t2i_adapter_sd15": Kind(_t2i("full_adapter", [320, 640, 1280, 1280], 8)),
    "t2i_adapter_sdxl": Kind(_t2i("full_adapter_xl", [320, 640, 1280, 1280], 16)),
    "clip_vision_h": Kind(_vit_h, lambda model, picture: model(picture, output_hidden_states=True)),
}


def part_of(name: str, kind: Kind) -> LoadedPart:
    """Return an add-on in the form in which the tracer takes it."""
    module = kind.make().eval()  # on the CPU: some ask a tensor for a value while they are made

    def run(model: nn.Module, at: Setting, dtype: torch.dtype) -> object:
        picture = torch.empty(at.batch, kind.channels, at.rows, at.columns, dtype=dtype, device="meta")
        return kind.call(model, picture)

    return LoadedPart("denoise", module, run, **settings_of(name))


def main(asked: list[str]) -> int:
    """Write the profiles; 1 when one could not be made."""
    failed = 0
    for name, kind in KINDS.items():
        if asked and name not in asked:
            continue
        for dtype in DTYPES:
            try:
                made = trace_part(f"addon-{name}-{dtype}", part_of(name, kind), dtype)
            except (GivenUp, ImportError) as fault:
                print(f"{name} {dtype}: {fault}")
                failed = 1
                continue
            for profile in made:
                data = profile.to_json() | {"name": profile.name.removeprefix(MEASURED)}
                text = json.dumps(data, sort_keys=True, separators=(",", ":")) + "\n"
                path = FOLDER / f"{data['name']}.json"
                path.write_text(text, encoding="utf-8", newline="\n")
                print(f"{path.name}: {len(text)} bytes, {profile.parameters} weights")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
