"""Reference pictures, whose latents go through a transformer beside the one that is made: Flux Kontext and its like.

The transformer sees one long row of tokens, those of the references behind the picture's own; so it needs what a
picture of as many tokens needs. Each reference goes through the VAE's encoder once, before sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lib_vram.physics.component import Component
from lib_vram.physics.families import SHAPES
from lib_vram.request import Family, Request

TAKES_REFERENCES: frozenset[Family] = frozenset(("flux1", "flux2_klein_4b", "flux2_klein_9b", "qwen_image"))
"""Families with versions that were trained with reference pictures (Kontext, Klein, Edit)."""
TOKEN_PIXELS = 16
"""Pixels of a side that make one token, in all of them: 8 for a row of the latent, 2 rows a patch."""


def reference_sizes(request: Request) -> Iterator[tuple[int, int]]:
    """Yield width and height of the references that are encoded and sampled with, cut to whole tokens."""
    if request.model.family in TAKES_REFERENCES:
        for picture in request.reference_images:
            yield _whole(picture.width), _whole(picture.height)


def reference_tokens(request: Request) -> int:
    """Return how many tokens the references come to."""
    return sum((width // TOKEN_PIXELS) * (height // TOKEN_PIXELS) for width, height in reference_sizes(request))


def reference_latent_bytes(request: Request) -> int:
    """Return the size of the references' latents, in fp32."""
    shape = SHAPES[request.model.family]
    pixels = shape.latent_pixels
    cells = sum((width // pixels) * (height // pixels) for width, height in reference_sizes(request))
    return 4 * shape.latent_channels * cells


def with_references(request: Request, component: Component) -> Component:
    """Return the denoiser so much taller that it has the references' tokens as well; other parts as they are."""
    tokens = reference_tokens(request) if component.part == "denoise" else 0
    if not tokens:
        return component
    rows = -(-tokens // -(-component.width // TOKEN_PIXELS))
    return replace(component, height=component.height + TOKEN_PIXELS * rows)


def _whole(side: int) -> int:
    return max(TOKEN_PIXELS, side // TOKEN_PIXELS * TOKEN_PIXELS)
