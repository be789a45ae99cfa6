"""What one model part needs at one size: the answer to a :class:`Component`, from its profile by replay."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics.allocator import SEGMENT_ROUNDING, AllocatorConf
from lib_vram.physics.attention import PLENTY, SELF_SLICING
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.physics.minimum import minimum_and_comfortable, runs_in
from lib_vram.physics.profile import Profile, load
from lib_vram.physics.program import EventTrace, Setting, expand
from lib_vram.physics.weights import weights_bytes

LATENT_PIXELS = 8
"""Pixels of the picture per latent row and column, for SD 1.5 and SDXL."""

READY_FAMILIES = ("sd15", "sdxl")

CFG_PARTS = frozenset(("denoise", "controlnet"))
"""Parts that see cond and uncond as one batch."""

SHARED_PARTS = {"sdxl": {"vae_decode": "sd15", "vae_encode": "sd15"}}
"""SDXL's VAE has the shape of SD 1.5's."""

ONE_STYLE = {"text_encode": "forge"}
"""Parts whose profile is stored once, under this name."""

HIGH_MARGIN = 0.02
"""Above the computed peak: the largest error against published half-precision measurements is 0.3 %; six times that."""

FP32_HIGH_MARGIN = 0.30
"""fp32 profiles have the workspace of the one published case (see ``tools/trace_profiles.py``), 42 % of what half
precision takes; 30 % above their peak reaches past the peak with all of it."""


@lru_cache(maxsize=512)
def component_memory(component: Component) -> ComponentMemory:
    """Return what ``component`` needs.

    Attention that slices itself by free memory has no one need. With ``free_bytes`` the figures
    are for the slices that this much makes; without it, floor and minimum are for the least
    with which it gets by, and comfortable is what it takes when it need not slice.

    Raises:
        NotReady: there is no profile of this part of this model yet.
        BadInput: ``alloc_conf`` is not one that PyTorch takes.
    """
    conf = AllocatorConf.parse(component.alloc_conf)
    trace = component_trace(component)
    floor = most = trace.floor_bytes
    minimum, comfortable = minimum_and_comfortable(trace, conf, floor)
    if component.free_bytes is None and component.attention in SELF_SLICING:
        minimum, trace = _least(component, conf, minimum)
        floor = trace.floor_bytes
    margin = FP32_HIGH_MARGIN if component.dtype == "fp32" else HIGH_MARGIN
    parameters = _profile(component).parameters
    return ComponentMemory(
        weights_bytes=weights_bytes(parameters, component.weights_dtype or component.dtype),
        floor_bytes=floor, minimum_bytes=minimum, comfortable_bytes=comfortable,
        low_bytes=trace.bare_floor_bytes, high_bytes=int(most * (1 + margin)), source="profile",
    )  # fmt: skip


def component_trace(component: Component) -> EventTrace:
    """Return the blocks that ``component`` takes and gives back, at its size and batch.

    Raises:
        NotReady: there is no profile of this part of this model yet.
    """
    free = PLENTY if component.free_bytes is None else component.free_bytes
    return expand(_profile(component), setting_of(component), component.attention, component.host, free)


def _least(component: Component, conf: AllocatorConf, high_bytes: int) -> tuple[int, EventTrace]:
    """Return the smallest device found on which self-slicing attention gets by, and what it does there."""
    low, high, best = 0, high_bytes, component_trace(component)
    while high - low > SEGMENT_ROUNDING:
        middle = (low + high) // 2
        trace = component_trace(replace(component, free_bytes=middle))
        if trace.floor_bytes <= middle and runs_in(trace, middle, conf):
            high, best = middle, trace
        else:
            low = middle
    return high, best


def setting_of(component: Component) -> Setting:
    """Return the batch and the latent's sides at which ``component`` runs."""
    width, height = component.width, component.height
    if component.tile is not None and component.part.startswith("vae"):
        width, height = min(width, component.tile), min(height, component.tile)
    doubled = component.cfg and component.part in CFG_PARTS
    return Setting(component.batch * (2 if doubled else 1), height // LATENT_PIXELS, width // LATENT_PIXELS)


def _profile(component: Component) -> Profile:
    _refuse_unready(component)
    family = SHARED_PARTS.get(component.family, {}).get(component.part, component.family)
    dtype = "fp32" if component.dtype == "fp32" else "fp16"
    if component.code == "ldm":
        code = ONE_STYLE.get(component.part, component.host)
    else:
        code = component.code if component.batch > 1 else f"{component.code}_one"
    profile = load(f"{family}-{component.part}-{dtype}-{code}")
    if profile is None:
        raise NotReady("part", got=component.part, takes=f"vae_decode or vae_encode for the {component.code} code; "
                       "its other parts are not ready yet")  # fmt: skip
    return profile


def _refuse_unready(component: Component) -> None:
    if component.family not in READY_FAMILIES:
        raise NotReady("family", got=component.family,
                       takes=f"one that is ready: {' or '.join(READY_FAMILIES)}")  # fmt: skip
    if component.frames != 1:
        raise BadInput("frames", got=component.frames, takes=f"1; {component.family} makes pictures, not videos")
    if component.dtype == "fp8":
        raise BadInput("dtype", got="fp8", takes="fp32, fp16 or bf16; fp8 is a type of weights, not of activations")
    if component.code != "ldm" and component.attention != "sdpa":
        raise NotReady("attention", got=component.attention, takes=f"sdpa for the {component.code} code")
