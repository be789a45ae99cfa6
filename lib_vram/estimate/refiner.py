"""The refiner: a second checkpoint that takes over for the last steps, in place of the first.

The hosts load it as they load any checkpoint (``apply_refiner`` in modules/sd_samplers_common.py): the first one
leaves the card, so the phase is the sampling of a request with the refiner as its model. With a second pass it takes
over in that one, unless the hosts' option (``hires_fix_refiner_pass``) says the first.
"""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.diffusers import beside_each_other, keeps_pipelines
from lib_vram.estimate.flags import runs_on
from lib_vram.estimate.hires_model import with_hires_model
from lib_vram.estimate.residency import Placed, place, with_part
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import ModelWeights, weights_of
from lib_vram.request import ModelSpec, Request

STAYS = ("vae_decode", "detailer")
"""Phases after the refiner's."""


def all_placed(request: Request, weights: ModelWeights) -> tuple[Placed, ...]:
    """Return all pieces of work of ``request`` with what is on the device meanwhile, the refiner's among them."""
    works = with_hires_model(request, place(request, timeline(request), weights))
    refined = _refined(request)
    other = weights_of(refined) if refined is not None else None
    if refined is None or other is None:
        return works
    own = tuple(
        replace(placed, work=replace(placed.work, phase="refiner_sampling"))
        for placed in place(refined, timeline(refined), other)
        if placed.work.worker == "unet"
    )
    if keeps_pipelines(request):
        refiner_bytes, base_bytes = beside_each_other(request, weights, refined, other)
        works = tuple(with_part(placed, "refiner", refiner_bytes) for placed in works)
        own = tuple(with_part(placed, "refiner", base_bytes) for placed in own)
    first = next((index for index, placed in enumerate(works) if placed.work.phase in STAYS), len(works))
    return (*works[:first], *own, *works[first:])


def _refined(request: Request) -> Request | None:
    """Return the request as the refiner sees it, ``None`` where there is none. It takes no ControlNets."""
    if request.refiner is None or not runs_on(request.host, request.refiner.family):
        return None
    last = request.mode == "txt2img" and request.refiner.refined_pass == "second"
    width, height = (request.hires_size() if last else None) or (request.width, request.height)
    refiner = request.refiner
    model = ModelSpec(refiner.family, refiner.checkpoint, request.model.weights_dtype)
    return request.replace(
        model=model, width=width, height=height, mode="txt2img", hires=None, hires_model=None, refiner=None,
        detailer=None, controlnets=(), text_encoders=(),
    )  # fmt: skip
