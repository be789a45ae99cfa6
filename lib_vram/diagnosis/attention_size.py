"""Which attention, at which size of picture, asks for a block as large as the one that failed.

Attention that is not fused writes a score for each pair of tokens: batch × heads × tokens² × bytes. So a request says
by itself what it was, when it is such a product.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.message import Message, say
from lib_vram.request import Request

TOLERANCE = 0.004
"""torch prints two decimals of a GiB."""
SMALLEST_BYTES = 1024**3 // 2
"""Below this nearly every size is near some product, and the answer would be a guess."""


@dataclass(frozen=True)
class Attention:
    """One place where scores are made: ``tokens`` are the picture's pixels over ``pixels_per_token`` squared."""

    model: str
    heads: int
    pixels_per_token: int


PLACES: tuple[Attention, ...] = (
    Attention("sd15", 8, 8),  # its first blocks work on the whole latent
    Attention("sd21", 5, 8),
    Attention("sdxl", 10, 16),
    Attention("vae", 1, 8),  # the middle of every SD VAE
)
"""Heads and resolution of the largest attention, from the models' own configurations (v1-inference, sd_xl_base)."""


def score_bytes(place: Attention, width: int, height: int, batch: int, itemsize: int) -> int:
    """Return the bytes of one score matrix."""
    tokens = (width // place.pixels_per_token) * (height // place.pixels_per_token)
    return batch * place.heads * tokens * tokens * itemsize


def attention_evidence(requested_bytes: int | None, request: Request | None) -> tuple[Message, ...]:
    """Return which attention the failed request was, as far as the picture's size is known or follows."""
    if requested_bytes is None or requested_bytes < SMALLEST_BYTES:
        return ()
    if request is not None:
        return _of_request(requested_bytes, request)
    return _of_any(requested_bytes)


def _near(size_bytes: int, requested_bytes: int) -> bool:
    return abs(size_bytes - requested_bytes) <= TOLERANCE * requested_bytes


def _of_request(requested_bytes: int, request: Request) -> tuple[Message, ...]:
    sizes = [(request.width, request.height)]
    hires = request.hires_size()
    sizes += [hires] if hires else []
    for width, height in sizes:
        for place in PLACES:
            if place.model not in ("vae", request.model.family):
                continue
            for batch in sorted({1, 2, request.batch_size, 2 * request.batch_size}):
                for itemsize in (2, 4):
                    if _near(score_bytes(place, width, height, batch, itemsize), requested_bytes):
                        return (_said(place, width, height),)
    return ()


def _of_any(requested_bytes: int) -> tuple[Message, ...]:
    """Without a request: the square picture with whole latent rows whose scores are exactly this large."""
    for place in PLACES[:3]:
        for batch, itemsize in ((2, 2), (1, 2), (2, 4), (1, 4)):
            tokens = (requested_bytes / (batch * place.heads * itemsize)) ** 0.5
            side = round(tokens**0.5) * place.pixels_per_token
            exact = side % 64 == 0 and 512 <= side <= 8192
            if exact and _near(score_bytes(place, side, side, batch, itemsize), requested_bytes):
                return (say("diagnosis.evidence_attention_square", model=place.model, side=side),)
    return ()


def _said(place: Attention, width: int, height: int) -> Message:
    key = "diagnosis.evidence_attention_vae" if place.model == "vae" else "diagnosis.evidence_attention"
    tokens = (width // place.pixels_per_token) * (height // place.pixels_per_token)
    return say(key, width=width, height=height, tokens=tokens, heads=place.heads)
