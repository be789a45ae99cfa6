"""Regenerates the profiles of upscalers, face restorers, detectors, adapters: their public code on meta tensors.

    python tools/trace_addons.py [--annotators DIR] [--forge DIR] [KIND …]     writes .../profiles/addon-*.json

Needs torch, spandrel, spandrel_extra_arches, facexlib, diffusers and transformers; no weights, no GPU. The numbers of
each model are those of its published files: 4x-UltraSharp and R-ESRGAN 4x+ (RRDBNet), realesr-general-x4v3,
SwinIR-L x4, DAT x4, HAT x4, ScuNET, GFPGAN 1.4, CodeFormer, RetinaFace-R50, T2I-Adapter, OpenCLIP ViT-H/14 as the image
encoder of IP-Adapter; those of ``tools/detectors.py`` need what it says. What cannot run in half precision (SwinIR,
DAT, HAT), or never does (detectors), has a profile in fp32 alone.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.fx.experimental._config
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.host import tracing
from lib_vram.host.tracing import DTYPES, GivenUp, LoadedPart, _tensors, _without_crumbs, trace_part
from lib_vram.physics.addons import FIXED, UNITS
from lib_vram.physics.cache import MEASURED
from lib_vram.physics.fitting import DoesNotFit, check_events, fit
from lib_vram.physics.profile import FOLDER, Profile
from lib_vram.physics.program import Setting
from lib_vram.physics.raw import RawTrace
from lib_vram.physics.trace import trace
from tools import annotators, detectors

SIZES = ((2, 192, 128), (4, 64, 256), (6, 128, 320), (3, 256, 192), (1, 128, 448))
"""Batch, rows and columns to trace at; the last one checks."""
PATCHES = ((2, 36, 24), (4, 22, 48), (6, 14, 40), (3, 8, 60), (1, 4, 56))
"""The same for what counts in patches."""
SINGLE = {
    "uniformer": tuple(Setting(1, 32, columns) for columns in (32, 48, 64, 40, 56)),
}
"""Sizes of what always has one shorter side, in its unit."""
STEPS = {"lineart_anime": 256}
"""What sides must be a multiple of, where it is more than the sizes' own."""


def settings_of(kind: str) -> dict[str, Any]:
    """Return the sizes to trace a kind at: batch and rows and columns in pixels, fixed where the model's are."""
    side, step = FIXED.get(kind), STEPS.get(kind, 64) // 64
    sizes = PATCHES if kind in UNITS else tuple((batch, rows * step, columns * step) for batch, rows, columns in SIZES)
    if side is not None:
        sizes = tuple((batch, side, side) for batch in (2, 4, 6, 3, 1))
    *settings, checked = (Setting(*size) for size in sizes)
    return {"settings": tuple(settings), "checked": checked}


@dataclass(frozen=True)
class Kind:
    """One add-on: its module, and how the hosts run it on what is made of ``channels`` × rows × columns."""

    make: Callable[[], nn.Module]
    call: Callable[[Any, torch.Tensor], object] = lambda model, picture: model(picture)
    channels: int = 3
    dtypes: tuple[str, ...] = tuple(DTYPES)
    whole: bool = False
    """Whether it takes results of its middle layers, so that none can be left out of a trace."""
    ready: bool = False
    """Whether it is made in the mode in which it runs."""
    single: bool = False
    """Whether it is traced with one picture alone, and as it is made: its parts hold on to one another."""


def _of_spandrel(place: str, name: str, package: str = "spandrel") -> Any:
    """Return a network's class; spandrel 0.4 renamed the folders that they are in."""
    architecture, module = place.split(".")
    folder = f"{package}.architectures.{architecture}"
    inner = "__arch" if find_spec(f"{folder}.__arch") else "arch"
    return getattr(import_module(f"{folder}.{inner}.{module}"), name)


def _esrgan() -> nn.Module:
    return _of_spandrel("ESRGAN.RRDB", "RRDBNet", "spandrel")()


def _compact() -> nn.Module:
    return _of_spandrel("Compact.SRVGG", "SRVGGNetCompact", "spandrel")(
        num_feat=64, num_conv=32, upscale=4, act_type="prelu"
    )


def _swinir() -> nn.Module:
    return _of_spandrel("SwinIR.SwinIR", "SwinIR")(
        embed_dim=240, depths=[6] * 9, num_heads=[8] * 9, window_size=8, mlp_ratio=2, upscale=4,
        upsampler="nearest+conv", resi_connection="3conv",
    )  # fmt: skip


def _dat() -> nn.Module:
    return _of_spandrel("DAT.DAT", "DAT", "spandrel")(
        embed_dim=180, split_size=[8, 32], depth=[6] * 6, num_heads=[6] * 6, upscale=4
    )


def _hat() -> nn.Module:
    return _of_spandrel("HAT.HAT", "HAT", "spandrel")(
        embed_dim=180, depths=[6] * 6, num_heads=[6] * 6, window_size=16, mlp_ratio=2, upscale=4
    )


def _scunet() -> nn.Module:
    return _of_spandrel("SCUNet.SCUNet", "SCUNet", "spandrel")()


def _gfpgan() -> nn.Module:
    return _of_spandrel("GFPGAN.gfpganv1_clean_arch", "GFPGANv1Clean", "spandrel")()


def _codeformer() -> nn.Module:
    return _of_spandrel("CodeFormer.codeformer", "CodeFormer", "spandrel_extra_arches")()


def _retinaface() -> nn.Module:
    from facexlib.detection.retinaface import RetinaFace

    return RetinaFace(network_name="resnet50", half=False, device="cpu")


def _detect(model: Any, picture: torch.Tensor) -> object:
    features = model.fpn(list(model.body(picture).values()))
    features = [model.ssh1(features[0]), model.ssh2(features[1]), model.ssh3(features[2])]
    boxes = torch.cat([model.BboxHead[place](item) for place, item in enumerate(features)], dim=1)
    classes = torch.cat([model.ClassHead[place](item) for place, item in enumerate(features)], dim=1)
    return boxes, classes.softmax(dim=-1)


def _t2i(channels: int, *, xl: bool) -> Callable[[], nn.Module]:
    """A T2I-Adapter of TencentARC in Forge's own class, which A1111's extension has too; diffusers' takes 12 % more."""

    def make() -> nn.Module:
        adapter: Any = import_module("backend.nn.cnets.t2i_adapter").Adapter
        return adapter(  # type: ignore[no-any-return]
            cin=channels, channels=[320, 640, 1280, 1280], nums_rb=2, ksize=1, sk=True, use_conv=False, xl=xl
        )

    return make


def _image(model: Any, picture: torch.Tensor) -> object:
    return model(picture, output_hidden_states=True)


def _detector(make: Callable[[], nn.Module], channels: int = 3, *, whole: bool = False) -> Kind:
    return Kind(make, channels=channels, dtypes=("fp32",), whole=whole, ready=True)


KINDS = {
    "esrgan": Kind(_esrgan),
    "compact": Kind(_compact),
    "swinir": Kind(_swinir),
    "dat": Kind(_dat),
    "hat": Kind(_hat),
    "scunet": Kind(_scunet, dtypes=("fp32",)),
    "gfpgan": Kind(_gfpgan, lambda model, picture: model(picture, return_rgb=False)),
    "codeformer": Kind(_codeformer, lambda model, picture: model(picture, weight=0.5)),
    "retinaface": Kind(_retinaface, _detect),
    "t2i_adapter_sd15": Kind(_t2i(192, xl=False), ready=True),
    "t2i_adapter_sdxl": Kind(_t2i(768, xl=True), ready=True),
    "clip_vision_l": Kind(detectors.clip_vision(1024, 4096, 24, 768), _image),
    "clip_vision_h": Kind(detectors.clip_vision(1280, 5120, 32, 1024), _image),
    "clip_vision_g": Kind(detectors.clip_vision(1664, 8192, 48, 1280), _image),
    "parsenet": _detector(detectors.parsenet),
    "yolo_n": _detector(detectors.yolo("yolov8n-seg")),
    "yolo_s": _detector(detectors.yolo("yolov8s-seg")),
    "yolo_m": _detector(detectors.yolo("yolov8m-seg")),
    "yolo_x": _detector(detectors.yolo("yolov8x-seg")),
    "openpose_body": _detector(detectors.openpose("body")),
    "openpose_hand": _detector(detectors.openpose("hand")),
    "openpose_face": _detector(detectors.openpose("face")),
    "hed": _detector(detectors.hed),
    "pidinet": _detector(detectors.pidinet),
    "teed": _detector(detectors.teed),
    "lineart": _detector(detectors.lineart),
    "lineart_anime": _detector(detectors.lineart_anime),
    "mlsd": _detector(detectors.mlsd, 4),
    "normal_bae": _detector(detectors.normal_bae),
    "leres": _detector(detectors.leres),
    "depth_anything": _detector(detectors.depth_anything, whole=True),
    "mobile_sam": Kind(annotators.mobile_sam, annotators.mobile_sam_infer, dtypes=("fp32",), single=True),
}


def of_extension() -> dict[str, Kind]:
    """Return the preprocessors whose code A1111's ControlNet extension brings."""
    found = {}
    for name, (make, call) in annotators.FROM_EXTENSION.items():
        kind = Kind(make, channels=1 if name == "manga_line" else 3, dtypes=("fp32",), single=True)
        found[name] = kind if call is None else replace(kind, call=call)
    return found


def part_of(name: str, kind: Kind) -> LoadedPart:
    """Return an add-on in the form in which the tracer takes it."""
    module = kind.make()  # on the CPU: some ask a tensor for a value while they are made
    if not kind.ready:
        module.eval()
    unit = UNITS.get(name, 1)

    def run(model: nn.Module, at: Setting, dtype: torch.dtype) -> object:
        picture = torch.empty(at.batch, kind.channels, unit * at.rows, unit * at.columns, dtype=dtype, device="meta")
        return kind.call(model, picture)

    return LoadedPart("denoise", module, run, **settings_of(name))


def traced_single(name: str, kind: Kind, dtype: str) -> Profile:
    """Return the profile of an add-on at work on one picture."""
    with torch.device("meta" if name in annotators.MADE_ON_META else "cpu"):
        module = kind.make()
    nn.Module.to(module, device="meta", dtype=DTYPES[dtype]).eval()
    resident, unit = _tensors(module), UNITS.get(name, 1)

    def at(setting: Setting) -> RawTrace:
        sides = unit * setting.rows, unit * setting.columns
        run = functools.partial(torch.empty, 1, kind.channels, *sides, dtype=DTYPES[dtype], device="meta")
        with mock.patch.object(torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True):
            with torch.no_grad():
                kind.call(module, run())  # hooks keep what they saw until the next picture
            return trace(lambda: kind.call(module, run()), resident=resident, leave_open=False)

    sizes = SINGLE.get(name) or (*settings_of(name)["settings"], settings_of(name)["checked"])
    *fitted, checked = [replace(setting, batch=1) for setting in sizes]
    traces = _without_crumbs([(setting, at(setting)) for setting in (*fitted, checked)])
    parameters = sum(item.numel() for item in module.parameters())
    profile = fit(f"addon-{name}-{dtype}_one", parameters, fitted, [trace for _, trace in traces[:-1]])
    check_events(profile, *traces[-1])
    return profile


def traced(name: str, kind: Kind, dtype: str) -> tuple[Profile, ...]:
    """Return the profiles of an add-on."""
    if kind.single:
        return (traced_single(name, kind, dtype),)
    with mock.patch.object(tracing, "WORTH_CUTTING", sys.maxsize if kind.whole else tracing.WORTH_CUTTING):
        return trace_part(f"addon-{name}-{dtype}", part_of(name, kind), dtype)


def _kinds(asked: list[str]) -> tuple[dict[str, Kind], list[str]]:
    """Return the kinds that can be traced with the code that is there, and which of them are asked for."""
    kinds, names = dict(KINDS), list(asked)
    if "--annotators" in names:
        place = names.index("--annotators")
        annotators.use(Path(names[place + 1]).resolve())
        kinds |= of_extension()
        del names[place : place + 2]
    if "--forge" in names:
        place = names.index("--forge")
        sys.path.insert(0, str(Path(names[place + 1]).resolve()))
        del names[place : place + 2]
    return kinds, names


def main(asked: list[str]) -> int:
    """Write the profiles; 1 when one could not be made."""
    failed, kinds, asked = 0, *_kinds(asked)
    for name, kind in kinds.items():
        if asked and name not in asked:
            continue
        for dtype in kind.dtypes:
            try:
                made = traced(name, kind, dtype)
            except (GivenUp, DoesNotFit, ImportError) as fault:
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
