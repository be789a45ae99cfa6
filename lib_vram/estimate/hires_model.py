"""A second pass with a checkpoint of its own: the host loads it as it loads any, in place of the first one.

The first pass and the decode before an image upscaler are the first model's; the prompts are read again by the second
model's text encoders, and from then on everything is its work (``sample_hr_pass`` in the hosts' modules/processing.py).
"""

from __future__ import annotations

from lib_vram.estimate.flags import runs_on
from lib_vram.estimate.residency import Placed, place
from lib_vram.estimate.timeline import timeline
from lib_vram.estimate.weights import weights_of
from lib_vram.estimate.work import Work
from lib_vram.request import Request

SECOND_PASS = ("hires_upscale", "hires_sampling")
ANEW = ("text_encode",)
"""What comes before the second pass and is done again for it."""


def has_hires_model(request: Request) -> bool:
    """Whether the second pass, if there is one, has a checkpoint of its own that can be computed."""
    model = request.hires_model
    second = request.hires is not None and request.mode == "txt2img"
    return second and model is not None and runs_on(request.host, model.family)


def of_first_model(request: Request, works: tuple[Work, ...]) -> tuple[Work, ...]:
    """Return those of ``works`` that the first model does."""
    if not has_hires_model(request):
        return works
    end = next((place for place, work in enumerate(works) if work.phase == "hires_sampling"), len(works))
    return tuple(work for work in works[:end] if work.phase != "hires_upscale" or _is_before(work))


def _is_before(work: Work) -> bool:
    """Whether a work between the passes is done before the checkpoints change: all but the encode."""
    return getattr(work.component, "part", "") != "vae_encode"


def with_hires_model(request: Request, works: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """Return ``works``, of the first model, with the second pass and all after it by ``request.hires_model``."""
    model = request.hires_model
    if model is None or not has_hires_model(request):
        return works
    of_second = request.replace(model=model, hires_model=None)
    weights = weights_of(of_second)
    if weights is None:
        return works
    kept = {id(work) for work in of_first_model(request, tuple(placed.work for placed in works))}
    own = place(of_second, timeline(of_second), weights)
    start = next((index for index, placed in enumerate(own) if placed.work.phase in SECOND_PASS), len(own))
    again = (placed for placed in own[:start] if placed.work.phase in ANEW)
    after = (placed for placed in own[start:] if placed.work.phase != "hires_upscale" or not _is_before(placed.work))
    return (*(placed for placed in works if id(placed.work) in kept), *again, *after)
