"""Detectors and ControlNet preprocessors for ``tools/trace_addons.py``: their public code, with the published numbers.

Needs torchvision, opencv, ultralytics, controlnet-aux, facexlib, timm and transformers. The hosts run all of them in
fp32, one picture at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn


def parsenet() -> nn.Module:
    """The face parser of facexlib, which the hosts load beside every face restorer."""
    from facexlib.parsing.parsenet import ParseNet

    return ParseNet(in_size=512, out_size=512, parsing_ch=19).eval()


def yolo(name: str) -> Callable[[], nn.Module]:
    """A detector of ultralytics as its predictor runs it: normalisation folded into the convolutions.

    The head stays in training mode, in which it gives its maps out as they are: making boxes of them asks for values.
    """

    def make() -> nn.Module:
        from ultralytics.nn.tasks import SegmentationModel

        model: Any = SegmentationModel(f"{name}.yaml", verbose=False).eval()
        for layer in model.modules():
            if hasattr(layer, "bn"):
                layer.bn = nn.Identity()
        model.model[-1].train()
        return model  # type: ignore[no-any-return]

    return make


def openpose(part: str) -> Callable[[], nn.Module]:
    """One of OpenPose's three networks: body, hand or face."""

    def make() -> nn.Module:
        from controlnet_aux.open_pose.face import FaceNet
        from controlnet_aux.open_pose.model import bodypose_model, handpose_model

        return {"body": bodypose_model, "hand": handpose_model, "face": FaceNet}[part]().eval()

    return make


def hed() -> nn.Module:
    """Soft edges."""
    from controlnet_aux.hed import ControlNetHED_Apache2

    return ControlNetHED_Apache2().eval()


def pidinet() -> nn.Module:
    """Soft edges by pixel differences."""
    from controlnet_aux.pidi.model import pidinet as make

    return make().eval()


def teed() -> nn.Module:
    """Soft edges by a tiny network."""
    from controlnet_aux.teed.ted import TED

    return TED().eval()


def lineart() -> nn.Module:
    """Lines of a photograph."""
    from controlnet_aux.lineart import Generator

    return Generator(3, 1, 3).eval()


def lineart_anime() -> nn.Module:
    """Lines of a drawing."""
    from controlnet_aux.lineart_anime import UnetGenerator

    norm = functools.partial(nn.InstanceNorm2d, affine=False, track_running_stats=False)
    return UnetGenerator(3, 1, 8, 64, norm_layer=norm, use_dropout=False).eval()


def mlsd() -> nn.Module:
    """Straight lines."""
    from controlnet_aux.mlsd.models.mbv2_mlsd_large import MobileV2_MLSD_Large

    return MobileV2_MLSD_Large().eval()


def normal_bae() -> nn.Module:
    """Surface normals."""
    from types import SimpleNamespace

    from controlnet_aux.normalbae.nets.NNET import NNET

    return NNET(SimpleNamespace(
        mode="client", architecture="BN", pretrained="scannet", sampling_ratio=0.4, importance_ratio=0.7
    )).eval()  # fmt: skip


def leres() -> nn.Module:
    """Depth by a ResNeXt-101."""
    from controlnet_aux.leres.leres.multi_depth_model_woauxi import RelDepthModel

    return RelDepthModel(backbone="resnext101").depth_model.eval()


def depth_anything() -> nn.Module:
    """Depth by a ViT-L of DINOv2: version 1 and 2 are the same network."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, image_size=518, patch_size=14,
        out_indices=[5, 12, 18, 24], reshape_hidden_states=False, apply_layernorm=True, attn_implementation="sdpa",
    )  # fmt: skip
    return DepthAnythingForDepthEstimation(DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=1024, neck_hidden_sizes=[256, 512, 1024, 1024],
        fusion_hidden_size=256, head_hidden_size=32, patch_size=14,
    )).eval()  # fmt: skip


def clip_vision(width: int, inner: int, layers: int, projection: int) -> Callable[[], nn.Module]:
    """An image encoder of CLIP."""

    def make() -> nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

        return CLIPVisionModelWithProjection(CLIPVisionConfig(
            hidden_size=width, intermediate_size=inner, projection_dim=projection, num_hidden_layers=layers,
            num_attention_heads=16, patch_size=14, image_size=224, hidden_act="gelu", attn_implementation="sdpa",
        )).eval()  # fmt: skip

    return make
