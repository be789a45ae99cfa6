"""What upscalers, face restorers and adapters need beside the diffusion model, each from its own traced profile.

They run as the hosts run them: upscalers tile by tile, face restorers on one face of 512 × 512 after
a detector has seen the whole picture, image encoders once. What has no profile is said in
:data:`NOT_COUNTED`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.component import ComponentMemory
from lib_vram.physics.minimum import minimum_and_comfortable
from lib_vram.physics.profile import Profile, load
from lib_vram.physics.program import Setting, expand

AddonKind = Literal[
    "esrgan", "compact", "swinir", "dat", "hat", "gfpgan", "codeformer", "retinaface",
    "t2i_adapter_sd15", "t2i_adapter_sdxl", "clip_vision_h",
]  # fmt: skip

UPSCALERS = frozenset(("esrgan", "compact", "swinir", "dat", "hat"))
RESTORERS = frozenset(("gfpgan", "codeformer"))

SIDES = {"gfpgan": 512, "codeformer": 512, "clip_vision_h": 224}
"""Pixels: what is always computed at one size, whatever the picture's."""

WINDOWS = {"swinir": 8, "dat": 32, "hat": 16}
"""Pixels to a multiple of which a tile is padded."""

TILE, OVERLAP = 192, 8
"""Pixels: the hosts' default tile and overlap for every upscaler (``ESRGAN_tile``, ``SWIN_tile``, ``DAT_tile``)."""

SCALE = 4
COLOURS = 3

NOT_COUNTED = frozenset((
    "yolo", "mediapipe", "sam", "openpose", "depth_anything", "midas", "zoe", "oneformer", "lineart", "hed", "scunet",
    "ldsr", "lllite",
))  # fmt: skip
"""Detectors and preprocessors without a profile; each runs alone, before or after sampling, and most are small."""

HIGH_MARGIN = {"fp16": 0.05, "fp32": 0.30}
"""Above the computed peak: these models were not compared with measurements, and fp32's workspace is known from one."""

_LORA_COPIES = 3
"""Of the layer at hand while a LoRA is put into it: what is added, that times its strength, and the layer's copy (in
A1111 the sum). Read in Forge's ``merge_lora_to_weight`` and A1111's ``network_apply_weights`` and ``calc_updown``."""


def addon_memory(kind: AddonKind, width: int, height: int, batch: int = 1, dtype: str = "fp16", *,
                 tile: int | None = TILE, alloc_conf: str = "") -> ComponentMemory:  # fmt: skip
    """Return what ``kind`` needs for pictures of ``width`` × ``height`` pixels, as it is given them.

    ``tile`` is the side of an upscaler's tile, 0 or ``None`` for the whole picture at once. bf16 counts as fp16.

    Raises:
        NotReady: there is no profile of it.
        BadInput: a size is not above 0, or ``alloc_conf`` is not one that PyTorch takes.
    """
    for name, value in (("width", width), ("height", height), ("batch", batch)):
        if value < 1:
            raise BadInput(name, got=value, takes="1 or more")
    return _memory(kind, width, height, batch, "fp32" if dtype == "fp32" else "fp16", tile or 0, alloc_conf)


def restore_memory(kind: AddonKind, width: int, height: int, dtype: str = "fp32", *,
                   alloc_conf: str = "") -> ComponentMemory:  # fmt: skip
    """Return what a face restorer needs with its detector, which looks at the whole picture first.

    Both models are on the card together; the hosts run both in fp32.

    Raises:
        NotReady: there is no profile of it.
    """
    found = addon_memory("retinaface", width, height, dtype="fp32", alloc_conf=alloc_conf)
    made = addon_memory(kind, width, height, dtype=dtype, alloc_conf=alloc_conf)
    larger = max(found, made, key=lambda item: item.minimum_bytes)
    return replace(larger, weights_bytes=found.weights_bytes + made.weights_bytes)


def upscaler_kind(name: str) -> AddonKind | None:
    """Return the kind of an upscaler from its name in the hosts, ``None`` for one that computes nothing here.

    Latent and plain resizing take no model; of ``ScuNET`` and ``LDSR`` there is no profile. Any other name is
    that of a file, and nearly all files are of ESRGAN's shape.
    """
    lower = name.lower()
    if not lower or lower.startswith(("latent", "none", "lanczos", "nearest", "scunet", "ldsr")):
        return None
    if "general" in lower and "esrgan" in lower:
        return "compact"
    if lower.startswith("swinir"):
        return "swinir"
    if lower.startswith("dat "):
        return "dat"
    return "hat" if lower.startswith("hat") else "esrgan"


def upscaler_dtype(name: str) -> Literal["fp16", "fp32"]:
    """Return the type in which the hosts run an upscaler: only those of the R-ESRGAN family are loaded in half.

    DAT, HAT and SwinIR cannot run in half (spandrel's ``supports_half``), and ``ESRGAN`` is loaded as it is.
    """
    return "fp16" if name.lower().startswith("r-esrgan") else "fp32"


def lora_scratch_bytes(layer_parameters: int, *, itemsize: int = 2, merges_in_fp32: bool = False) -> int:
    """Return what putting a LoRA into a layer of ``layer_parameters`` takes meanwhile.

    A1111 does it once, when the LoRA is loaded, in the weights' own type; Forge once in fp32, or, for quantised
    weights and *LoRA on the fly*, at every use of the layer in the type that is computed in. Backups of the weights
    are kept in RAM by both.
    """
    return _LORA_COPIES * (4 if merges_in_fp32 else itemsize) * layer_parameters


@lru_cache(maxsize=256)
def _memory(kind: AddonKind, width: int, height: int, batch: int, dtype: str, tile: int,
            alloc_conf: str) -> ComponentMemory:  # fmt: skip
    setting = _setting(kind, width, height, batch, tile)
    profile, dtype = _profile(kind, dtype, one=batch == 1)
    conf = AllocatorConf.parse(alloc_conf)
    trace = expand(profile, setting, "sdpa")
    floor = trace.floor_bytes
    minimum, comfortable = minimum_and_comfortable(trace, conf, floor)
    itemsize = 4 if dtype == "fp32" else 2
    beside = _beside(kind, width, height, batch, itemsize)
    return ComponentMemory(
        weights_bytes=profile.parameters * itemsize,
        floor_bytes=floor + beside, minimum_bytes=minimum + beside, comfortable_bytes=comfortable + beside,
        low_bytes=trace.bare_floor_bytes + beside, high_bytes=int((floor + beside) * (1 + HIGH_MARGIN[dtype])),
        source="profile",
    )  # fmt: skip


def _profile(kind: AddonKind, dtype: str, *, one: bool) -> tuple[Profile, str]:
    """Return the profile and its type: that of fp32 for what only runs in fp32."""
    for found in dict.fromkeys((dtype, "fp32")):
        for ending in ("_one", "") if one else ("",):
            profile = load(f"addon-{kind}-{found}{ending}")
            if profile is not None:
                return profile, found
    raise NotReady("kind", got=kind, takes="an add-on with a profile")


def _setting(kind: AddonKind, width: int, height: int, batch: int, tile: int) -> Setting:
    side = SIDES.get(kind)
    if side is not None:
        return Setting(batch, side, side)
    if kind in UPSCALERS and tile:
        width, height = min(width, tile), min(height, tile)
    window = WINDOWS.get(kind, 1)
    return Setting(batch, -(-height // window) * window, -(-width // window) * window)


def _beside(kind: AddonKind, width: int, height: int, batch: int, itemsize: int) -> int:
    """Return what is on the card beside a tile: SwinIR's picture, its enlarged result and the weights of overlaps."""
    if kind != "swinir":
        return 0
    return batch * COLOURS * width * height * (1 + 2 * SCALE**2) * itemsize
