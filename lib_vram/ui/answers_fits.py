"""What the page is answered about the request that its fields describe: what fits, and what a restart would change."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lib_vram.errors import BadInput, NotReady
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.result import Estimate
from lib_vram.guard.guard import reason_of
from lib_vram.message import Message, render, say
from lib_vram.plan.advice import advise
from lib_vram.plan.fit import largest
from lib_vram.plan.table import Correct, as_computed, cards_table, lighter_weights, size_table
from lib_vram.request import Mode, Request
from lib_vram.ui.access import Declined
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.sections import restart_advice, what_fits
from lib_vram.ui.sections.what_fits import Fits

WAIT_SECONDS = 3.0
"""One answer is computed at a time; who waits longer is told to ask again."""
ANSWER_SECONDS = 0.8
"""Of one answer, for all that is in it: large pictures with attention by score matrices take a tenth of a second for
each cell. What is not computed by then is said to be open, and the page asks again at once."""
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
    correct = _correct(guard, request)
    result = correct(estimate(request), request)
    if result.verdict == "unknown":
        return _unknown(result.notes[0], language)
    try:
        with _one_at_a_time(language):
            return _answer(guard, tab, request, result, correct, language)
    except NotReady:  # it will not fit as far as it is known, and not all of it is
        return _unknown(result.notes[0], language)


def _answer(
    guard: GuardLike, tab: Mode, request: Request, result: Estimate, correct: Correct, language: str
) -> dict[str, Any]:
    found = compute(request, correct, ANSWER_SECONDS)
    answer = {
        "known": True,
        "complete": found.is_complete,
        "largest_size": found.largest_size.to_dict(),
        "largest_batch": found.largest_batch.to_dict(),
        "sizes": found.sizes.to_dict(),
        **found.cards.to_dict(),
        "weights": [item.to_dict() for item in found.weights],
        "fits_html": what_fits.fits_html(found, tab, language),
    }
    if found.is_complete:  # one thing after the other: the page asks again at once
        is_open = guard.host.is_open_to_others()
        given = request.host_args if is_open else guard.host.launch_arguments()
        advice = advise(request, given, windows=WINDOWS, variable=_variable(), correct=correct)
        shown = restart_advice.advice_html(
            request, advice, result.verdict, language, windows=WINDOWS, only_memory=is_open
        )
        answer |= {"advice": [item.to_dict(language) for item in advice], "advice_html": shown}
    return answer


def compute(request: Request, correct: Correct = as_computed, seconds: float | None = None) -> Fits:
    """Return everything that fits; after ``seconds`` the rest stays open. Remembered piece by piece."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    return Fits(
        request=request,
        largest_size=largest(request, "size", correct=correct, until=until),
        largest_batch=largest(request, "batch", correct=correct, until=until),
        cards=cards_table(request, correct=correct, until=until),
        weights=lighter_weights(request, correct=correct, until=until),
        sizes=size_table(request, correct=correct, until=until),
    )


def _correct(guard: GuardLike, request: Request) -> Correct:
    """Return what the guard's own runs make of an estimate, so that no table contradicts the bar."""
    learned: Any = getattr(guard, "learned", None)
    return (learned.correct_of(request) if learned is not None else None) or as_computed


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
