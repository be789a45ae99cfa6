"""The rungs that change how the host works and leave the picture's size, batch and passes alone."""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.diffusers import VAE_SLICING, Placement, placement, with_placement
from lib_vram.estimate.flags import has_flag, uses_two_halves
from lib_vram.estimate.named import upscaler_tile
from lib_vram.estimate.timeline import CPU_UPSCALERS, uses_latent_upscaler
from lib_vram.message import Message, say
from lib_vram.plan.levers import LeverName
from lib_vram.plan.result import Cost
from lib_vram.plan.rung import Adjustment, Candidate, always, named
from lib_vram.request import Attention, Request
from lib_vram.units import GIB, MIB

PREVIEWS_THAT_COST = ("full", "taesd")
"""Live previews that a decoder makes on the card; the approximations are a multiplication of the latent."""

CHEAPER_ATTENTION: dict[Attention, tuple[Attention, ...]] = {
    "math": ("sdpa", "sub_quad"),
    "split": ("sdpa", "sub_quad"),
    "sub_quad": ("sdpa",),
}
"""What may take the place of an attention that keeps score matrices: both come with every PyTorch that hosts take."""
XFORMERS: Attention = "xformers"
"""Where it is installed: it never keeps a score matrix, while A1111's SDPA keeps the VAE's whole."""

RESERVE_STEP_BYTES = GIB
"""The reserve is searched in these steps, and then cut down to what it must be: see :func:`finer_reserves`."""
FINE_RESERVE_STEP_BYTES = 64 * MIB


WHOLE_WEIGHTS = ("fp32", "fp16", "bf16")
"""Weights that become smaller when they are stored in fp8."""
UPSCALER_TILES = (512, 384, 256, 192, 128, 96, 64)
"""Sides of an upscaler's tile in pixels, on the hosts' own sliders (*Tile size for ESRGAN upscalers*, up to 512)."""


def _idle_bytes(request: Request) -> int:
    return sum(model.bytes for model in request.idle_models)


FREE_IDLE_MODELS = Adjustment(
    id="free_idle_models",
    field=named("idle_models"),
    costs=always("nothing"),
    candidates=lambda request: ((),) if request.idle_models else (),
    apply=lambda request, kept: request.replace(idle_models=kept),
    value=lambda request: len(request.idle_models),
    text=lambda before, _after: say("plan.free_idle_models", idle_bytes=_idle_bytes(before)),
)


def _previews(request: Request) -> tuple[str, ...]:
    return ("approx",) if request.live_preview in PREVIEWS_THAT_COST else ()


LIVE_PREVIEW = Adjustment(
    id="live_preview",
    field=named("live_preview"),
    costs=always("nothing"),
    candidates=_previews,
    apply=lambda request, preview: request.replace(live_preview=preview),
    value=lambda request: request.live_preview,
    text=lambda before, _after: say(f"plan.live_preview_{before.live_preview}"),
)


def _attentions(request: Request) -> tuple[Attention, ...]:
    cheaper = CHEAPER_ATTENTION.get(request.attention, ())
    if request.host == "diffusers":
        cheaper = cheaper[:1]  # it has no sub-quadratic attention
    if XFORMERS not in request.more_attention or request.attention == XFORMERS:
        return cheaper
    return (*cheaper[:1], XFORMERS, *cheaper[1:])  # of those that cost nothing, the one that comes with PyTorch first


def _attention_cost(attention: Candidate) -> Cost:
    return "time" if attention == "sub_quad" else "nothing"


ATTENTION = Adjustment(
    id="attention",
    field=named("attention"),
    costs=_attention_cost,
    candidates=_attentions,
    apply=lambda request, attention: request.replace(attention=attention),
    value=lambda request: request.attention,
    text=lambda _before, after: say(f"plan.attention_{after.attention}"),
    either=True,
)


def _can_be_sliced(request: Request) -> tuple[bool, ...]:
    whole = request.host == "diffusers" and request.batch_size > 1 and not has_flag(request, VAE_SLICING)
    return (True,) if whole else ()


VAE_SLICED = Adjustment(
    id="vae_sliced",
    field=named("host_args"),
    costs=always("time"),
    candidates=_can_be_sliced,
    apply=lambda request, _sliced: request.replace(host_args=(*request.host_args, VAE_SLICING)),
    value=lambda request: has_flag(request, VAE_SLICING),
    text=lambda _before, _after: say("plan.vae_sliced"),
)


def _offload(name: LeverName, way: Placement, before: tuple[Placement, ...]) -> Adjustment:
    """Return the rung that places a pipeline of diffusers in another way than those ``before`` it."""

    def candidates(request: Request) -> tuple[Placement, ...]:
        return (way,) if request.host == "diffusers" and placement(request) in before else ()

    return Adjustment(
        id=name,
        field=named("host_args"),
        costs=always("time"),
        candidates=candidates,
        apply=with_placement,
        value=placement,
        text=lambda _before, _after: say(f"plan.{name}"),
    )


OFFLOAD = _offload("offload", "model", ("whole",))
OFFLOAD_LAYERS = _offload("offload_layers", "sequential", ("whole", "model"))


def _apart(request: Request) -> tuple[bool, ...]:
    return (False,) if request.batch_cond_uncond and uses_two_halves(request) else ()


COND_UNCOND_APART = Adjustment(
    id="cond_uncond_apart",
    field=named("batch_cond_uncond"),
    costs=always("time"),
    candidates=_apart,
    apply=lambda request, together: request.replace(batch_cond_uncond=together),
    value=lambda request: request.batch_cond_uncond,
    text=lambda _before, _after: say("plan.cond_uncond_apart"),
)


def _units_at_hand(request: Request) -> tuple[int, ...]:
    """Return the places of the ControlNets that stay on the card beside the UNet."""
    units = enumerate(request.controlnets)
    return tuple(place for place, unit in units if unit.kind == "controlnet" and not unit.low_vram)


def _with_low_vram(request: Request, how_many: int) -> Request:
    chosen = _units_at_hand(request)[:how_many]
    units = enumerate(request.controlnets)
    return request.replace(
        controlnets=tuple(replace(unit, low_vram=True) if place in chosen else unit for place, unit in units)
    )


def _low_vram_text(before: Request, after: Request) -> Message:
    changed = len(_units_at_hand(before)) - len(_units_at_hand(after))
    if changed == 1:
        return say("plan.controlnet_low_vram")
    return say("plan.controlnets_low_vram", units=changed)


CONTROLNET_LOW_VRAM = Adjustment(
    id="controlnet_low_vram",
    field=named("controlnets.low_vram"),
    costs=always("time"),
    candidates=lambda request: tuple(range(1, len(_units_at_hand(request)) + 1)),
    apply=_with_low_vram,
    value=lambda request: sum(unit.low_vram for unit in request.controlnets),
    text=_low_vram_text,
)


def _upscaler_tiles(request: Request) -> tuple[int, ...]:
    """Return smaller tiles where a network enlarges the picture of the first pass; 0 is the whole picture at once."""
    want = request.hires if request.mode == "txt2img" else None
    if want is None or uses_latent_upscaler(request) or want.upscaler.lower() in CPU_UPSCALERS:
        return ()
    now = upscaler_tile(request) or max(request.width, request.height)
    return tuple(tile for tile in UPSCALER_TILES if tile < now)


def _upscaler_tile_text(before: Request, after: Request) -> Message:
    now = upscaler_tile(before)
    if now == 0:
        return say("plan.upscaler_tiled", tile=upscaler_tile(after))
    return say("plan.upscaler_tile", before=now, tile=upscaler_tile(after))


UPSCALER_TILE = Adjustment(
    id="upscaler_tile",
    field=named("upscaler_tile"),
    costs=always("time"),
    candidates=_upscaler_tiles,
    apply=lambda request, tile: request.replace(upscaler_tile=tile),
    value=upscaler_tile,
    text=_upscaler_tile_text,
    by_need=True,
)


def _fp8(request: Request) -> tuple[str, ...]:
    whole = request.model.storage_dtype is None and request.model.weights_dtype in WHOLE_WEIGHTS
    return ("fp8",) if whole else ()


FP8_STORAGE = Adjustment(
    id="fp8_storage",
    field=named("model.storage_dtype"),
    costs=always("detail"),
    candidates=_fp8,
    apply=lambda request, dtype: request.replace(model=replace(request.model, storage_dtype=dtype)),
    value=lambda request: request.model.storage_dtype,
    text=lambda _before, _after: say("plan.fp8_storage"),
    either=True,  # a layer is unpacked while it works, which costs more than it saves where most is swapped
)


def _with_reserve(request: Request, size_bytes: int) -> Request:
    return request.replace(forge=replace(request.forge, inference_memory_bytes=size_bytes))


def _reserve(request: Request) -> int:
    return request.forge.inference_memory_bytes


def _reserves(request: Request) -> tuple[int, ...]:
    """Return larger reserves, up to one that leaves no room for weights."""
    now, most = _reserve(request), request.device.total_bytes
    steps = range(1, max(0, most - now) // RESERVE_STEP_BYTES + 1)
    return (*(now + step * RESERVE_STEP_BYTES for step in steps), *((most,) if most > now else ()))


def finer_reserves(before: Request, size_bytes: int) -> tuple[int, ...]:
    """Return the reserves from that of ``before`` up to ``size_bytes``, in steps small enough to waste nothing."""
    return (*range(_reserve(before) + FINE_RESERVE_STEP_BYTES, size_bytes, FINE_RESERVE_STEP_BYTES), size_bytes)


RESERVE = Adjustment(
    id="reserve",
    field=named("forge.inference_memory_bytes"),
    costs=always("time"),
    candidates=_reserves,
    apply=_with_reserve,
    value=_reserve,
    text=lambda before, after: say("plan.reserve", before_bytes=_reserve(before), after_bytes=_reserve(after)),
    by_need=True,
)
