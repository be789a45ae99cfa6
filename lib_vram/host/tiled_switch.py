"""Puts a way of working in tiles in the place of a module's ``forward`` for a while: of a VAE's decoder or encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lib_vram.guard.fail_open import fail_open, tell_once

MARK = "vram_guard_tile_size"
"""Attribute of a module whose ``forward`` is ours at the moment."""


@dataclass(frozen=True)
class Way:
    """How one half of a VAE works in tiles.

    ``supports`` is whether a module has the shape for it, ``run(module, given, tile_size)`` does it, and ``pixels``
    is how many pixels of the picture's side one of what is given stands for.
    """

    name: str
    supports: Callable[[Any], bool]
    run: Callable[[Any, Tensor, int], Tensor]
    pixels: int


def step_aside(part: Any) -> bool:
    """Whether another extension's tiling has ``part`` now (multidiffusion marks it with ``original_forward``)."""
    original = getattr(part, "original_forward", None)
    return original is not None and part.forward != original


@contextmanager
def tiled(part: Any, tile_size: int, way: Way) -> Iterator[bool]:
    """Within the block, ``part`` works on pictures larger than ``tile_size`` in tiles; yields whether it does.

    The replacement sits on this one object and is taken off when the block ends, however it ends.
    """
    if not _can_wrap(part, way):
        yield False
        return
    before = vars(part).get("forward")
    part.forward = _forward(part, part.forward, tile_size, way)
    setattr(part, MARK, tile_size)
    try:
        yield True
    finally:
        vars(part).pop(MARK, None)
        if before is None:
            vars(part).pop("forward", None)
        else:
            part.forward = before


def _forward(part: Any, original: Callable[..., Tensor], tile_size: int, way: Way) -> Callable[..., Tensor]:
    def forward(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fits = max(given.shape[2:]) * way.pixels <= tile_size
        made = None if args or kwargs or fits else _made(part, given, tile_size, way)
        return original(given, *args, **kwargs) if made is None else made

    return forward


@fail_open(instead=lambda *_: False)
def _can_wrap(part: Any, way: Way) -> bool:
    return MARK not in vars(part) and not step_aside(part) and way.supports(part)


def _made(part: Any, given: Tensor, tile_size: int, way: Way) -> Tensor | None:
    """Return the result, ``None`` from a module that is otherwise inside than it looks: it works whole then."""
    try:
        return way.run(part, given, tile_size)
    except (AttributeError, TypeError, LookupError) as fault:
        tell_once(way.name, fault)
        return None
