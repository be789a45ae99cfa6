"""One model part at work: the question and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lib_vram.physics.kernels import Shortened
from lib_vram.request import Attention, Dtype, Family, WeightsDtype

Part = Literal["text_encode", "denoise", "vae_decode", "vae_encode", "controlnet"]
Code = Literal["ldm", "diffusers"]
Source = Literal["profile", "trace", "rule"]
CodeHost = Literal["forge", "a1111", "neo"]
"""Whose form of the ``ldm`` code runs: Forge's, AUTOMATIC1111's under autocast, or Forge Neo's."""


@dataclass(frozen=True)
class Component:
    """One part of one model at one size. ``width`` and ``height`` in pixels of the picture.

    ``batch`` is the number of pictures; with ``cfg`` the part sees twice as many.
    ``tile`` is the side of a VAE tile in pixels, ``None`` for the whole picture at once. ``in_step`` says that tiles go
    through the VAE together, layer by layer, and not one after the other.
    """

    family: Family
    part: Part
    width: int
    height: int
    batch: int = 1
    frames: int = 1
    dtype: Dtype = "fp16"
    attention: Attention = "sdpa"
    code: Code = "ldm"
    cfg: bool = True
    tile: int | None = None
    alloc_conf: str = ""
    weights_dtype: WeightsDtype | None = None
    host: CodeHost = "forge"
    free_bytes: int | None = None
    """What the device has free for activations when the part starts. Only attention that slices itself by
    free memory (``split``, ``sub_quad``) looks at it; ``None`` finds the least with which it gets by."""
    shortened: Shortened | None = None
    """What makes self-attention look at fewer tokens: token merging, HyperTile."""
    in_step: bool = False
    variant: str = ""
    """Which of several published ControlNets of the family (``physics/controlnets.py``)."""


@dataclass(frozen=True)
class ComponentMemory:
    """What one part needs, activations alone except ``weights_bytes``. All sizes in bytes.

    ``floor_bytes`` is the peak of allocated, ``minimum_bytes`` the smallest device limit at
    which the replay succeeds, ``comfortable_bytes`` the peak of reserved without a limit.
    ``low_bytes`` to ``high_bytes`` is where the real peak of allocated is expected.
    """

    weights_bytes: int
    floor_bytes: int
    minimum_bytes: int
    comfortable_bytes: int
    low_bytes: int
    high_bytes: int
    source: Source
