"""The refiner: a second checkpoint that takes over for the last steps, in place of the first.

The hosts load it as they load any checkpoint (``apply_refiner`` in modules/sd_samplers_common.py): the first one
leaves the card, so the phase is the sampling of a request with the refiner as its model. It takes over in the last
pass: with a second pass, in that one, which is what the hosts' option says unless it is changed.
"""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.flags import runs_on
from lib_vram.estimate.residency import Placed, place
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import ModelWeights, weights_of
from lib_vram.request import ModelSpec, Request

STAYS = ("vae_decode", "detailer")
"""Phases after the refiner's."""


def all_placed(request: Request, weights: ModelWeights) -> tuple[Placed, ...]:
    """Return all pieces of work of ``request`` with what is on the device meanwhile, the refiner's among them."""
    works = place(request, timeline(request), weights)
    refined = _refined(request)
    other = weights_of(refined) if refined is not None else None
    if refined is None or other is None:
        return works
    own = tuple(
        replace(placed, work=replace(placed.work, phase="refiner_sampling"))
        for placed in place(refined, timeline(refined), other)
        if placed.work.worker == "unet"
    )
    first = next((index for index, placed in enumerate(works) if placed.work.phase in STAYS), len(works))
    return (*works[:first], *own, *works[first:])


def _refined(request: Request) -> Request | None:
    """Return the request as the refiner sees it, ``None`` where there is none. It takes no ControlNets."""
    if request.refiner is None or not runs_on(request.host, request.refiner.family):
        return None
    second = request.hires_size() if request.mode == "txt2img" else None
    width, height = second or (request.width, request.height)
    model = ModelSpec(request.refiner.family, weights_dtype=request.model.weights_dtype)
    return request.replace(
        model=model, width=width, height=height, mode="txt2img", hires=None, refiner=None, detailer=None, controlnets=()
    )
