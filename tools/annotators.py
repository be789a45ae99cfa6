"""ControlNet preprocessors out of A1111's ControlNet extension, for ``tools/trace_addons.py --annotators DIR``.

``DIR`` is a checkout of sd-webui-controlnet, whose ``annotator`` folder has the networks' code; Forge's and its
relatives' is the same. Needs timm 0.6 or later, einops, opencv, and for UniFormer addict and yapf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

POINTS = 64
"""Points at which Segment Anything's generator asks for masks at a time."""


def use(folder: Path) -> None:
    """Make the extension's ``annotator`` importable without a WebUI around it."""
    sys.path.insert(0, str(folder))
    cpu = torch.device("cpu")
    devices = SimpleNamespace(get_device_for=lambda _: cpu, device=cpu)
    for name, values in (("modules", {"devices": devices}), ("annotator.annotator_path", {"models_path": "models"})):
        module = ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module
    import_module("annotator")


def _annotator(module: str, name: str) -> Any:
    return getattr(import_module(f"annotator.{module}"), name)


def midas() -> nn.Module:
    """Depth by DPT over a ResNet and a ViT-B."""
    make = _annotator("midas.midas.dpt_depth", "DPTDepthModel")
    return make(path=None, backbone="vitb_rn50_384", non_negative=True).eval()  # type: ignore[no-any-return]


def midas_infer(model: Any, picture: torch.Tensor) -> object:
    """One pass; what the hooks of the middle layers have seen stays to the end of it."""
    result = model(picture)
    model.pretrained.activations.clear()
    return result


def uniformer() -> nn.Module:
    """Segmentation by UPerNet over a UniFormer."""
    make = _annotator("uniformer.inference", "init_segmentor")
    config = Path(sys.modules["annotator"].__path__[0]) / "uniformer" / "upernet_global_small.py"
    return make(str(config), None, device="cpu").eval()  # type: ignore[no-any-return]


def uniformer_infer(model: Any, picture: torch.Tensor) -> object:
    """The scores of 150 kinds of thing for every pixel."""
    return functional.softmax(model.encode_decode(picture, None), dim=1)


def manga_line() -> nn.Module:
    """Lines of a printed drawing."""
    return _annotator("manga_line", "res_skip")().eval()  # type: ignore[no-any-return]


def mobile_sam() -> nn.Module:
    """Segment Anything with a small encoder."""
    from controlnet_aux.segment_anything import sam_model_registry

    return sam_model_registry["vit_t"](checkpoint=None).eval()  # type: ignore[no-any-return]


def mobile_sam_infer(model: Any, picture: torch.Tensor) -> object:
    """The picture once, then as many points at a time as the generator takes, at three masks each."""
    seen = model.image_encoder(picture)
    points = torch.empty(POINTS, 1, 2, device=picture.device), torch.empty(POINTS, 1, device=picture.device)
    sparse, dense = model.prompt_encoder(points=points, boxes=None, masks=None)
    masks, scores = model.mask_decoder(
        image_embeddings=seen, image_pe=model.prompt_encoder.get_dense_pe(), sparse_prompt_embeddings=sparse,
        dense_prompt_embeddings=dense, multimask_output=True,
    )  # fmt: skip
    return model.postprocess_masks(masks, picture.shape[-2:], (512, 512)), scores


MADE_ON_META = frozenset(("midas",))
"""Whose modules hold methods of their own parts, so that they cannot be moved."""
FROM_EXTENSION: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, torch.Tensor], object] | None]] = {
    "midas": (midas, midas_infer),
    "uniformer": (uniformer, uniformer_infer),
    "manga_line": (manga_line, None),
}
"""What can only be traced where the extension's code is: how each is made, and how it is run."""
