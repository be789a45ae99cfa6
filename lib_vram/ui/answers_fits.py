"""What the page is answered about the request that its fields describe: what fits, and what a restart would change."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.result import Estimate
from lib_vram.guard.guard import reason_of
from lib_vram.message import Message, render, say
from lib_vram.plan.advice import Advice, advise
from lib_vram.plan.fit import largest
from lib_vram.plan.table import Correct, as_computed, cards_table, lighter_weights, size_table
from lib_vram.request import Mode, Request
from lib_vram.ui.access import Declined
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import restart_advice, what_fits
from lib_vram.ui.sections.what_fits import Fits

WAIT_SECONDS = 3.0
"""One answer is computed at a time, well within a second; who waits longer is told to ask again."""
WINDOWS = os.name == "nt"

_turn = threading.Lock()


def fits(guard: GuardLike, tab: Mode, form: dict[str, Any], language: str) -> dict[str, Any]:
    """Return what fits for the page's fields, as JSON and as the sections' HTML.

    Raises:
        Declined: other questions are being computed (429).
    """
    try:
        request = guard.host.request_from_form(tab, form)
    except BadInput as bad:
        return _unknown(reason_of(bad), language)
    correct = _correct(guard)
    result = correct(estimate(request), request)
    if result.verdict == "unknown":
        return _unknown(result.notes[0], language)
    with _one_at_a_time(language):
        found = compute(request, result, correct)
        advice = advise_for(request, result, guard.host.launch_arguments(), _variable())
    return {
        "known": True,
        "advice": [item.to_dict(language) for item in advice],
        "advice_html": restart_advice.advice_html(request, advice, result.verdict, language, windows=WINDOWS),
        "largest_size": found.largest_size.to_dict(),
        "largest_batch": found.largest_batch.to_dict(),
        "sizes": found.sizes.to_dict(),
        **found.cards.to_dict(),
        "weights": [item.to_dict() for item in found.weights],
        "fits_html": what_fits.fits_html(found, tab, language),
    }


@lru_cache(maxsize=16)
def compute(request: Request, result: Estimate, correct: Correct = as_computed) -> Fits:
    """Return everything that fits, from memory the second time as long as ``result`` is still its estimate."""
    return Fits(
        request=request,
        largest_size=largest(request, "size", correct=correct),
        largest_batch=largest(request, "batch", correct=correct),
        sizes=size_table(request, correct=correct),
        cards=cards_table(request, correct=correct),
        weights=lighter_weights(request),
    )


@lru_cache(maxsize=16)
def advise_for(
    request: Request, result: Estimate, arguments: tuple[str, ...], variable: str, windows: bool = WINDOWS
) -> tuple[Advice, ...]:
    """Return the restart advice, from memory the second time as long as ``result`` is still its estimate."""
    return advise(request, arguments, windows=windows, variable=variable)


def _correct(guard: GuardLike) -> Correct:
    """Return what the guard's own runs make of an estimate, so that no table contradicts the bar."""
    learned: Any = getattr(guard, "learned", None)
    return learned.corrected if learned is not None else as_computed


def _variable() -> str:
    """Return the name under which PyTorch reads the allocator's setting here: the newer one goes first."""
    return "PYTORCH_ALLOC_CONF" if os.environ.get("PYTORCH_ALLOC_CONF") else "PYTORCH_CUDA_ALLOC_CONF"


def _unknown(reason: Message, language: str) -> dict[str, Any]:
    html = what_fits.unknown_html(render(reason, language))
    return {"known": False, "fits_html": html, "advice_html": html}


@contextmanager
def _one_at_a_time(language: str) -> Iterator[None]:
    if not _turn.acquire(timeout=WAIT_SECONDS):
        raise Declined(429, render(say("advice.busy"), language))
    try:
        yield
    finally:
        _turn.release()
