"""The rungs that change how the host works and leave the picture's size, batch and passes alone."""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.flags import uses_two_halves
from lib_vram.message import Message, say
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
"""What may take the place of an attention that keeps score matrices. Both come with every PyTorch that the hosts
take; xformers may not be installed, and needs no less than SDPA."""

RESERVE_STEP_BYTES = GIB
"""The reserve is searched in these steps, and then cut down to what it must be: see :func:`finer_reserves`."""
FINE_RESERVE_STEP_BYTES = 64 * MIB


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


def _attention_cost(attention: Candidate) -> Cost:
    return "time" if attention == "sub_quad" else "nothing"


ATTENTION = Adjustment(
    id="attention",
    field=named("attention"),
    costs=_attention_cost,
    candidates=lambda request: CHEAPER_ATTENTION.get(request.attention, ()),
    apply=lambda request, attention: request.replace(attention=attention),
    value=lambda request: request.attention,
    text=lambda _before, after: say(f"plan.attention_{after.attention}"),
    either=True,
)


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
)
