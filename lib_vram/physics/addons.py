"""What upscalers, face restorers, detectors and adapters need beside the diffusion model, each from its own profile.

They run as the hosts run them: upscalers tile by tile, face restorers on one face of 512 × 512 after
a detector has seen the whole picture, image encoders once. Their code was traced like the diffusion models' own
(``tools/trace_addons.py``); a model without a profile is stood in for by the most similar one, ``by_rule``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.component import ComponentMemory
from lib_vram.physics.minimum import minimum_and_comfortable
from lib_vram.physics.profile import Profile, load
from lib_vram.physics.program import EventTrace, Setting, expand

AddonKind = Literal[
    "esrgan", "compact", "swinir", "dat", "hat", "scunet", "gfpgan", "codeformer", "retinaface", "parsenet",
    "t2i_adapter_sd15", "t2i_adapter_sdxl", "clip_vision_l", "clip_vision_h", "clip_vision_g",
    "yolo_n", "yolo_s", "yolo_m", "yolo_x", "openpose_body", "openpose_hand", "openpose_face",
    "hed", "pidinet", "teed", "lineart", "lineart_anime", "mlsd", "normal_bae", "leres", "depth_anything",
    "midas", "uniformer", "manga_line", "mobile_sam",
]  # fmt: skip
AddonDtype = Literal["fp16", "fp32"]

FIXED = {
    "gfpgan": 512, "codeformer": 512, "parsenet": 512, "clip_vision_l": 224, "clip_vision_h": 224,
    "clip_vision_g": 224, "yolo_n": 640, "yolo_s": 640, "yolo_m": 640, "yolo_x": 640, "openpose_hand": 736,
    "openpose_face": 384, "mlsd": 512, "leres": 448, "mobile_sam": 1024,
}  # fmt: skip
"""Pixels: what is always computed at one size, whatever the picture's. OpenPose looks at hands at twice its 368."""

HEIGHTS = {"openpose_body": 184}
"""Pixels of height to which a picture is shrunk first: half of OpenPose's 368."""

LEAST_SIDES = {"retinaface": 640, "depth_anything": 518, "uniformer": 512}
"""Pixels of the shorter side to which a smaller picture is enlarged first (facexlib, Depth Anything, mmseg)."""
SHRUNK = frozenset(("depth_anything", "uniformer"))
"""For which a larger picture is shrunk to that as well."""

UNITS = {"depth_anything": 14, "uniformer": 16}
"""Pixels that count as one row or column in the profile: a patch of a transformer."""

WINDOWS = {
    "swinir": 8, "dat": 32, "hat": 16, "scunet": 64, "lineart_anime": 256, "openpose_body": 8, "uniformer": 32,
    "manga_line": 16,
}  # fmt: skip
"""Pixels to a multiple of which a tile or picture is padded."""

SCALE = 4
COLOURS = 3
COPIED = frozenset(("swinir", "scunet"))
"""Upscalers that put their tiles together on the card (``tiled_upscale_2``)."""

HIGH_MARGIN = {"fp16": 0.05, "fp32": 0.30}
"""Above the computed peak: these models were not compared with measurements, and fp32's workspace is known from one."""
RULE_MARGIN, RULE_LOW = 1.0, 0.25
"""For a model that another one stands in for: the peak may be twice as high, or a quarter."""


@dataclass(frozen=True)
class Addon:
    """One add-on at work once, on what is made of a picture of ``width`` × ``height`` pixels.

    ``tile`` is the side of a tile in pixels, 0 for the whole picture at once. ``shuffle`` is how many pixels a side the
    model folds into its channels first. ``by_rule`` says that the kind stands in for a similar model; ``parameters``
    is then, or for a smaller version, how many weights there are.
    """

    kind: AddonKind
    width: int
    height: int
    dtype: AddonDtype = "fp32"
    tile: int = 0
    alloc_conf: str = ""
    shuffle: int = 1
    by_rule: bool = False
    parameters: int | None = None

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            if getattr(self, name) < 1:
                raise BadInput(name, got=getattr(self, name), takes="1 or more")


def addon_trace(addon: Addon) -> EventTrace:
    """Return the blocks that ``addon`` takes and gives back.

    Raises:
        NotReady: there is no profile of it.
    """
    trace = expand(_profile(addon.kind, addon.dtype)[0], _setting(addon), "sdpa")
    conf = AllocatorConf.parse(addon.alloc_conf)
    return trace if not conf.divisions else replace(trace, sizes=tuple(map(conf.rounded, trace.sizes)))


@lru_cache(maxsize=512)
def addon_memory(addon: Addon) -> ComponentMemory:
    """Return what ``addon`` needs; its weights are ``weights_bytes``.

    Raises:
        NotReady: there is no profile of it.
        BadInput: ``alloc_conf`` is not one that PyTorch takes.
    """
    trace = addon_trace(addon)
    floor = trace.floor_bytes
    minimum, comfortable = minimum_and_comfortable(trace, AllocatorConf.parse(addon.alloc_conf), floor)
    dtype = _profile(addon.kind, addon.dtype)[1]
    low, high = trace.bare_floor_bytes, floor * (1 + HIGH_MARGIN[dtype])
    if addon.by_rule:
        low, high = int(RULE_LOW * low), floor * (1 + RULE_MARGIN)
    return ComponentMemory(
        weights_bytes=addon_weights_bytes(addon), floor_bytes=floor, minimum_bytes=minimum,
        comfortable_bytes=comfortable, low_bytes=low, high_bytes=int(high),
        source="rule" if addon.by_rule else "profile",
    )  # fmt: skip


def addon_weights_bytes(addon: Addon) -> int:
    """Return what the weights of ``addon`` take on the device.

    Raises:
        NotReady: there is no profile of it.
    """
    profile, dtype = _profile(addon.kind, addon.dtype)
    parameters = profile.parameters if addon.parameters is None else addon.parameters
    return parameters * (4 if dtype == "fp32" else 2)


def composed_bytes(addon: Addon) -> int:
    """Return what is on the card beside a tile: a picture, its enlarged result and the weights of overlaps."""
    if addon.kind not in COPIED:
        return 0
    scale = SCALE if addon.kind == "swinir" else 1
    return COLOURS * addon.width * addon.height * (1 + 2 * scale**2) * 4


@lru_cache(maxsize=64)
def _profile(kind: AddonKind, dtype: AddonDtype) -> tuple[Profile, AddonDtype]:
    """Return the profile and its type: that of fp32 for what only runs in fp32."""
    wanted: tuple[AddonDtype, ...] = ("fp16", "fp32") if dtype == "fp16" else ("fp32",)
    for found in wanted:
        for ending in ("_one", ""):
            profile = load(f"addon-{kind}-{found}{ending}")
            if profile is not None:
                return profile, found
    raise NotReady("kind", got=kind, takes="an add-on with a profile")


def _setting(addon: Addon) -> Setting:
    width, height = _seen(addon)
    if addon.tile:
        width, height = min(width, addon.tile), min(height, addon.tile)
    step, unit = WINDOWS.get(addon.kind, 1), UNITS.get(addon.kind, 1) * addon.shuffle
    rows, columns = (-(-side // step) * step for side in (height, width))
    return Setting(1, -(-rows // unit), -(-columns // unit))


def _seen(addon: Addon) -> tuple[int, int]:
    """Return the width and height at which the model sees the picture."""
    kind, width, height = addon.kind, addon.width, addon.height
    side, lines, least = FIXED.get(kind), HEIGHTS.get(kind), LEAST_SIDES.get(kind)
    if side is not None:
        return side, side
    if lines is not None:
        return max(1, width * lines // height), lines
    if least is not None and (kind in SHRUNK or min(width, height) < least):
        shorter = min(width, height)
        return -(-width * least // shorter), -(-height * least // shorter)
    return width, height
