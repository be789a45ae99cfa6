"""What one model part needs at one size: the answer to a :class:`Component`, from its profile by replay."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from lib_vram.errors import BadInput, NotReady
from lib_vram.physics import in_step, tiles, video
from lib_vram.physics.allocator import SEGMENT_ROUNDING, AllocatorConf, CachingAllocator, segment_bytes
from lib_vram.physics.attention import PLENTY, SELF_SLICING, WAYS
from lib_vram.physics.cache import MEASURED, measured
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.physics.controlnets import variants
from lib_vram.physics.families import SHAPES
from lib_vram.physics.interval import interval
from lib_vram.physics.life import loaded
from lib_vram.physics.minimum import minimum_and_comfortable, runs_in
from lib_vram.physics.profile import Profile, load
from lib_vram.physics.program import KEPT_REPEATS, EventTrace, Setting, expand
from lib_vram.physics.quantised import LARGEST_LAYER, scratch_bytes
from lib_vram.physics.weights import BITS_PER_WEIGHT, vae_parameters, weights_bytes

CFG_PARTS = frozenset(("denoise", "controlnet"))
"""Parts that see cond and uncond as one batch."""

ONE_STYLE = {"text_encode": "forge"}
"""Parts whose profile is stored once, under this name."""

FUSED = frozenset(("sdpa", "xformers", "sage"))
"""Ways of attention that keep no scores."""

ALWAYS_FUSED = frozenset(("sd35_medium", "sd35_large"))
"""Families whose code in the hosts asks torch for fused attention, whatever the option says."""

LISTS = frozenset(("zimage", "lumina2"))
"""Families whose transformer diffusers runs over lists of pictures: several are computed as one long picture."""


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
    if component.dtype == "fp8":
        return _stored_in_fp8(component)
    conf = AllocatorConf.parse(component.alloc_conf)
    trace = component_trace(component)
    floor = most = trace.floor_bytes
    if _is_batch_of_pictures(component):
        most = component_trace(replace(component, batch=1)).floor_bytes * component.batch
    minimum, comfortable = minimum_and_comfortable(
        trace, conf, floor, _with_weights(component, conf), _guess(component)
    )
    if component.free_bytes is None and component.attention in SELF_SLICING and not _is_always_fused(component):
        minimum, trace = _least(component, conf, minimum)
        floor = trace.floor_bytes
    profile = _profile(component)
    cousin = component.code == "ldm" and "diffusers" in profile.name and component.part != "controlnet"
    low, high, _ = interval(component, trace, most, cousin=cousin)
    return ComponentMemory(
        weights_bytes=weights_bytes(profile.parameters, component.weights_dtype or component.dtype),
        floor_bytes=floor, minimum_bytes=minimum, comfortable_bytes=comfortable,
        low_bytes=low, high_bytes=high,
        source="rule" if cousin else "trace" if profile.name.startswith(MEASURED) else "profile",
    )  # fmt: skip


def _with_weights(component: Component, conf: AllocatorConf) -> CachingAllocator | None:
    """Return the allocator after the weights of diffusers' VAE were loaded: free tails of segments serve small blocks.

    All published figures of reserved are of such VAEs. Other models' segments have hardly any tails.
    """
    if component.code != "diffusers" or not component.part.startswith("vae"):
        return None
    item_bits = BITS_PER_WEIGHT[component.weights_dtype or component.dtype]
    return loaded_vae(SHAPES[component.family].vae, int(item_bits), conf)


@lru_cache(maxsize=16)
def loaded_vae(vae: str, bits: int, conf: AllocatorConf) -> CachingAllocator:
    """Return the allocator after the parameters of ``vae`` were loaded with ``bits`` each. It is for copies alone."""
    return loaded((count * bits // 8 for count in vae_parameters(vae)), conf).allocator


def _stored_in_fp8(component: Component) -> ComponentMemory:
    """Return what ``component`` needs with weights in fp8: it computes in the family's own type.

    Each layer's weights are made whole in that type right before they are multiplied with. The largest layer counts
    at the peak; in reality the two may lie apart, so that the low end is without it.
    """
    family, part, dtype = component.family, component.part, SHAPES[component.family].dtype
    memory = component_memory(replace(component, dtype=dtype, weights_dtype=component.weights_dtype or "fp8"))
    stored = SHAPES[family].vae if part.startswith("vae") else family
    more = scratch_bytes("fp8", LARGEST_LAYER.get((stored, part), 0), dtype)
    return replace(
        memory,
        floor_bytes=memory.floor_bytes + more,
        minimum_bytes=memory.minimum_bytes + segment_bytes(more),
        comfortable_bytes=memory.comfortable_bytes + segment_bytes(more),
        high_bytes=memory.high_bytes + more,
    )


def component_trace(component: Component) -> EventTrace:
    """Return the blocks that ``component`` takes and gives back, at its size and batch.

    Raises:
        NotReady: there is no profile of this part of this model yet.
    """
    trace = _in_step_trace(component) if component.in_step and tiles.is_tiled(component) else _profile_trace(component)
    conf = AllocatorConf.parse(component.alloc_conf)
    return trace if not conf.divisions else replace(trace, sizes=tuple(map(conf.rounded, trace.sizes)))


def _in_step_trace(component: Component) -> EventTrace:
    assert component.tile is not None  # it is tiled
    item_bytes = tiles.ITEM_BYTES.get(component.dtype, tiles.HALF_BYTES)
    size = (component.height, component.width)
    return in_step.in_step_trace(SHAPES[component.family].vae, component.part, size, component.tile, item_bytes)


def _profile_trace(component: Component) -> EventTrace:
    free = PLENTY if component.free_bytes is None else component.free_bytes
    host = "diffusers" if component.code == "diffusers" else component.host
    way = "sdpa" if _is_always_fused(component) else component.attention
    kept = None if _wants_every_turn(component) else KEPT_REPEATS
    trace = expand(_profile(component), setting_of(component), way, host, free, kept, shortened=component.shortened)
    return tiles.beside(trace, tiles.kept_bytes(component))


def _is_batch_of_pictures(component: Component) -> bool:
    """Whether diffusers' VAE decodes several pictures at once.

    Its attention leaves them in channels last, which convolutions take without a workspace; a single picture is
    ambiguous, and torch takes it for contiguous. diffusers 0.33 to 0.36 made the pictures contiguous again half way:
    there every picture takes what a single one does, and the interval reaches to that.
    """
    pictures = component.part == "vae_decode" and SHAPES[component.family].vae != "wan"
    return component.code == "diffusers" and pictures and component.batch > 1


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
    shape = SHAPES[component.family]
    width, height = component.width, component.height
    if component.tile is not None and component.part.startswith("vae"):
        width, height = min(width, component.tile), min(height, component.tile)
    doubled = component.cfg and component.part in CFG_PARTS
    batch = component.batch * (2 if doubled else 1)
    rows, columns = (max(1, side // shape.latent_pixels) for side in (height, width))
    if _is_list(component):
        return Setting(1, rows, columns, batch)
    frames = shape.latent_frames(component.frames) if component.part in CFG_PARTS else 1
    return Setting(batch, rows, columns, frames)


def _is_list(component: Component) -> bool:
    """Whether the code goes through a list of pictures. That of Z-Image's ControlNet is diffusers' everywhere."""
    if component.family not in LISTS:
        return False
    return component.part == "controlnet" or (component.code == "diffusers" and component.part == "denoise")


def is_ready(component: Component) -> bool:
    """Return whether there is a profile of ``component``, shipped or made on this machine."""
    try:
        _profile(component)
    except NotReady:
        return False
    return True


def _profile(component: Component) -> Profile:
    _refuse_unready(component)
    shape = SHAPES[component.family]
    stored = shape.vae if component.part.startswith("vae") else component.family
    dtype = "fp32" if component.dtype == "fp32" else "fp16"
    latents = shape.latent_frames(component.frames) if component.part.startswith("vae") else 1
    part = f"{component.part}_{component.variant}" if component.variant else component.part
    for style in _styles(component):
        name = f"{stored}-{part}-{dtype}-{style}"
        profile = video.for_frames(partial(_of_video, name), latents) if latents > 1 else load(name) or measured(name)
        if profile is not None:
            _refuse_closed(component, profile)
            return profile
    raise NotReady("part", got=component.part, takes=f"another: there is none of {component.family} yet")


def _refuse_closed(component: Component, profile: Profile) -> None:
    """Refuse a way of attention that would change the figures of a profile in which it is not left open."""
    fused = component.attention in FUSED or component.part == "text_encode" or _is_always_fused(component)
    if not fused and not profile.calls:
        raise NotReady("attention", got=component.attention, takes=f"sdpa or xformers for {component.family}")


def _wants_every_turn(component: Component) -> bool:
    """Whether a loop of equal blocks must be replayed as often as it turns: cut short, figures are up to 13 % off.

    UNets in the hosts' form give the same figures with two turns at all sizes that were tried, and so do text encoders
    and VAEs. Attention that slices itself is replayed dozens of times, and stays with two.
    """
    deep = component.code == "diffusers" or SHAPES[component.family].transformer
    return deep and component.part in CFG_PARTS and component.attention not in SELF_SLICING


def _guess(component: Component) -> int | None:
    """Return about what the minimum is, from a replay with two turns of each loop, where all of them are replayed."""
    if not _wants_every_turn(component):
        return None
    conf = AllocatorConf.parse(component.alloc_conf)
    host = "diffusers" if component.code == "diffusers" else component.host
    way = "sdpa" if _is_always_fused(component) else component.attention
    trace = expand(_profile(component), setting_of(component), way, host, shortened=component.shortened)
    return minimum_and_comfortable(trace, conf, trace.floor_bytes)[0]


def _is_always_fused(component: Component) -> bool:
    return component.code == "ldm" and component.part == "denoise" and component.family in ALWAYS_FUSED


def _of_video(name: str, latents: int) -> Profile | None:
    """Return the profile of the VAE at work on a video of ``latents`` latent frames."""
    return load(f"{name}_f{latents}")


def _styles(component: Component) -> tuple[str, ...]:
    """Return the forms of the code to look for, the right one first."""
    one = setting_of(component).batch == 1
    diffusers = ("diffusers_one", "diffusers") if one else ("diffusers",)
    if component.code == "diffusers":
        return diffusers
    shape = SHAPES[component.family]
    if not shape.transformer:
        style = ONE_STYLE.get(component.part, "forge" if component.host == "neo" else component.host)
        return (f"{style}_one", style) if one else (style,)
    hosts = dict.fromkeys((component.host, "forge", "neo", *(("reforge",) if component.part == "controlnet" else ())))
    return (*(name for host in hosts for name in ((f"{host}_one", host) if one else (host,))), *diffusers)


def _refuse_unready(component: Component) -> None:
    shape = SHAPES[component.family]
    if component.frames != 1 and shape.frames_per_latent == 1:
        raise BadInput("frames", got=component.frames, takes=f"1; {component.family} makes pictures, not videos")
    if component.code == "diffusers" and component.attention not in WAYS["diffusers"]:
        known = ", ".join(WAYS["diffusers"])
        raise BadInput("attention", got=component.attention, takes=f"{known}: diffusers' code has no other")
    if component.variant and (component.part != "controlnet" or component.variant not in variants(component.family)):
        known = ", ".join(variants(component.family)) if component.part == "controlnet" else ""
        raise BadInput("variant", got=component.variant, takes=known or f"none for {component.family} {component.part}")
    if _is_list(component) and component.batch > 1 and component.attention not in FUSED:
        raise NotReady("attention", got=component.attention, takes="sdpa or xformers for several pictures in a list")
