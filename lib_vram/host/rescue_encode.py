"""Rescues a VAE encode on A1111, which has no tiles of its own for it: the same picture is encoded again in ours.

It fails where a large start picture or a picture enlarged by an image upscaler is turned into a latent. Only that is
done again, with the random numbers with which it began, so that the latent's noise is the one it would have had. Forge
and its kin encode again in tiles by themselves.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lib_vram.guard.fail_open import fail_open
from lib_vram.host.rescue import Rescuer, Step, Work
from lib_vram.host.rescue_decode import LATENT_FACTOR, OwnTiles, smaller
from lib_vram.host.tiled_run import CONDITION, ENCODE, half_of, loaded, third

Wrap = Callable[[Any, str, Callable[[Step], Step]], None]


def wrap(rescuer: Rescuer, wrap: Wrap) -> None:
    """Wrap, through ``wrap``, where A1111 encodes."""
    from modules import processing, sd_samplers_common

    for owner in (sd_samplers_common, processing):
        wrap(owner, ENCODE, functools.partial(_encoding, rescuer, third, _first))
    owner = getattr(processing, "StableDiffusionProcessing", None)
    wrap(owner, CONDITION, functools.partial(_encoding, rescuer, loaded, _second))


def _first(image: Any = None, *_rest: Any, **_named: Any) -> Any:
    return image


def _second(_p: Any = None, source_image: Any = None, *_rest: Any, **_named: Any) -> Any:
    return source_image


class Encoding(OwnTiles):
    """The tries of one encode, with our tiles after the first."""

    def __init__(self, rescuer: Rescuer, work: Work, picture: Any, encoder: Any) -> None:
        rows, columns = (int(side) for side in picture.shape[-2:])
        super().__init__(
            rescuer, work, encoder, "vae_encode", rows // LATENT_FACTOR * (columns // LATENT_FACTOR), max(rows, columns)
        )

    def can_tile(self) -> bool:
        """Whether the encoder has the shape that our tiles need and no other extension's tiling."""
        return _can_tile(self.half)

    @contextmanager
    def in_tiles(self) -> Iterator[None]:
        """Within the block the encoder works in the tiles of this try."""
        if self.tile is None:
            yield
            return
        from lib_vram.host import tiled_encode

        with smaller(self.half, self.tile, 1, tiled_encode.encode):
            yield


@fail_open(instead=lambda *_: False)
def _can_tile(encoder: Any) -> bool:
    from lib_vram.host import tiled_encode

    return tiled_encode.supports(encoder) and not tiled_encode.step_aside(encoder)


@dataclass(frozen=True)
class Randomness:
    """Where PyTorch's generators were: A1111 draws the latent's noise from the CPU's, SD 3's VAE from the card's."""

    cpu: Any = None
    card: Any = None

    @classmethod
    @fail_open(instead=lambda fault, kind: kind())
    def now(cls) -> Randomness:
        """Return where they are; empty without PyTorch."""
        torch = sys.modules.get("torch")
        if torch is None:
            return cls()
        on_card = torch.cuda.is_available() and torch.cuda.is_initialized()
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state() if on_card else None)

    @fail_open(instead=lambda *_: None)
    def again(self) -> None:
        """Put them back."""
        torch = sys.modules.get("torch")
        if torch is not None and self.cpu is not None:
            torch.set_rng_state(self.cpu)
        if torch is not None and self.card is not None:
            torch.cuda.set_rng_state(self.card)


def _encoding(rescuer: Rescuer, model_of: Callable[..., Any], picture_of: Callable[..., Any], original: Step) -> Step:
    @functools.wraps(original)
    def encoding(*arguments: Any, **named: Any) -> Any:
        encode = functools.partial(original, *arguments, **named)
        trying = _tries(rescuer, picture_of(*arguments, **named), model_of(*arguments, **named))
        if trying is None:
            return encode()
        began = Randomness.now()
        while True:
            with trying.in_tiles():
                result, failed = trying.attempt(encode)
            if not failed:
                return result
            trying.prepare()
            began.again()

    return encoding


@fail_open(instead=lambda *_: None)
def _tries(rescuer: Rescuer, picture: Any, model: Any) -> Encoding | None:
    """Return the tries of an encode of ``picture``, ``None`` for one that is left alone."""
    work = rescuer.current()
    if work is None or len(getattr(picture, "shape", ())) < 2:
        return None
    encoder = half_of(model, "encoder")
    return Encoding(rescuer, work, picture, encoder) if encoder is not None else None
