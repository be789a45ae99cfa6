"""Rescues a VAE decode: the latents are there, so only the decode is done again, in tiles, and nothing is sampled.

A1111 gives up when the VAE runs out of memory; there our own tiles (``tiled_decode``) decode the picture that failed.
Forge and its kin decode again in tiles of their own. Three of them do so inside the ``except`` block, where the
traceback still holds the tensors of the failed decode, so that the tiles have less room than they need; none knows a
disguised failure; and each batch of a run is first tried whole again. That is mended here: frames are cleared before
the tiles, what they do not recognise goes into tiles all the same, and a size that ran out once goes there at once.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lib_vram.estimate.result import PhaseName
from lib_vram.guard import rescue as thinking
from lib_vram.guard.fail_open import fail_open
from lib_vram.guard.rescue import Lesson, Rung
from lib_vram.host import rescue_levers as levers
from lib_vram.host.rescue import Rescuer, Step, Trying, Work
from lib_vram.message import say
from lib_vram.request import Request

Wrap = Callable[[Any, str, Callable[[Step], Step]], None]

LATENT_FACTOR = 8
FIRST_TILE, SMALLEST_TILE = 768, 256
"""Pixels: our own slider's default and the least that is worth its overlap."""
OWN_MARK = "vram_guard_tile_size"
"""Attribute of a half of the VAE that works in our tiles already, with their side (``tiled_switch.MARK``)."""
HOSTS_LINE, HOSTS_TEXT = "VAE tiled", "plan.vae_tiled_by_host"
HOSTS_TILE, HOSTS_SMALL_TILE, HOSTS_SMALL_OVERLAP = 64, 32, 8
"""Latent pixels: what the hosts' own tiled decode takes by itself, and half of it for the last try."""
HOSTS_LEAST_SIDE = 16
"""Latent pixels: with a shorter side the hosts' tiles end in an error."""

_VAES: dict[str, tuple[str, str]] = {
    "forge": ("backend.patcher.vae", "decode_inner"),
    "neo": ("backend.patcher.vae", "decode"),
    "classic": ("ldm_patched.modules.sd", "decode_inner"),
    "reforge": ("ldm_patched.modules.sd", "decode"),
}
"""Module of the class ``VAE`` and its method that decodes whole and falls back to tiles."""


def wrap(rescuer: Rescuer, wrap: Wrap) -> None:
    """Wrap, through ``wrap``, where the host of ``rescuer`` decodes."""
    place = _VAES.get(rescuer.host.name)
    if place is None:
        from modules import sd_samplers_common

        from lib_vram.host import rescue_encode

        wrap(sd_samplers_common, "samples_to_images_tensor", functools.partial(_decoding, rescuer))
        rescue_encode.wrap(rescuer, wrap)
        return
    kind = _vae_class(place[0])
    wrap(kind, place[1], functools.partial(_vae_decoding, rescuer))
    for name in ("decode_tiled_", "decode_tiled_3d", "encode_tiled_", "encode_tiled_3d"):
        wrap(kind, name, functools.partial(_in_hosts_tiles, rescuer))


def _vae_class(module: str) -> Any:
    try:
        return importlib.import_module(module).VAE
    except (ImportError, AttributeError):  # a version that keeps its VAE elsewhere decodes as it does by itself
        return None


def latent_pixels(sample: Any) -> int:
    """Return the pixels of one latent: what decides about the memory of its decode."""
    return int(sample.shape[-2]) * int(sample.shape[-1])


# A1111: our own tiles


class OwnTiles(Trying):
    """The tries of one decode or encode, with our tiles after the first.

    ``half`` is the VAE's decoder or encoder, ``pixels`` counts those of one latent, ``longest`` is the picture's longer
    side in pixels. An encode needs less than a decode of the same size: what ran out in one goes in tiles in both.
    """

    def __init__(self, rescuer: Rescuer, work: Work, half: Any, phase: PhaseName, pixels: int, longest: int) -> None:
        super().__init__(rescuer, work, phase)
        self.half = half
        self.pixels = pixels
        self.longest = longest

    def can_tile(self) -> bool:
        """Whether ``half`` has the shape that our tiles need and no other extension's tiling."""
        return can_tile(self.half)

    @property
    def tile(self) -> int | None:
        """The side of the tiles in pixels; ``None`` for a step as the host does it.

        What ran out may have been another part than ``half``, which our tiles may not be for.
        """
        from_pixels = self.work.tiles_from
        if from_pixels is None or self.pixels < from_pixels or not self.can_tile():
            return None
        return self.work.tile

    def next_rung(self, request: Request | None, lesson: Lesson) -> Rung:
        """Return the rung, with the tile that the next try takes."""
        from lib_vram.guard.rescue_rungs import next_rung, tile_of

        rung = next_rung(request, lesson, self.tried, in_tiles=True)
        now = self.work.tile or vars(self.half).get(OWN_MARK)
        tile = next_tile(self.longest, now, tile_of(rung.request)) if self.can_tile() else None
        if tile is None or tile == now:
            return Rung(request)
        self.work.tile, self.work.tiles_from = tile, min(self.work.tiles_from or self.pixels, self.pixels)
        return Rung(rung.request, f"VAE tiled {tile}", (say("plan.vae_tiled", tile=tile),))


def _decoding(rescuer: Rescuer, original: Step) -> Step:
    @functools.wraps(original)
    def samples_to_images_tensor(
        sample: Any, approximation: Any = None, model: Any = None, *rest: Any, **named: Any
    ) -> Any:
        decode = functools.partial(original, sample, approximation, model, *rest, **named)
        trying = _own_tiles(rescuer, sample, model)
        if trying is None:
            return decode()
        while True:
            with in_tiles(trying.half, trying.tile):
                result, failed = trying.attempt(decode)
            if not failed:
                return result
            trying.prepare()

    return samples_to_images_tensor


@fail_open(instead=lambda *_: None)
def _own_tiles(rescuer: Rescuer, sample: Any, model: Any) -> OwnTiles | None:
    """Return the tries of a decode of ``sample``, ``None`` for one that is left alone."""
    from modules import shared

    work = rescuer.current()
    if work is None or not hasattr(sample, "shape"):
        return None
    decoder = getattr((model or shared.sd_model).first_stage_model, "decoder", None)
    if decoder is None:
        return None
    longest = max(sample.shape[-2:]) * LATENT_FACTOR
    return OwnTiles(rescuer, work, decoder, "vae_decode", latent_pixels(sample), longest)


@fail_open(instead=lambda *_: False)
def can_tile(decoder: Any) -> bool:
    """Whether ``decoder`` has the shape that our tiles need and no other extension's tiling."""
    from lib_vram.host import tiled_decode

    return tiled_decode.supports(decoder) and not tiled_decode.step_aside(decoder)


def next_tile(longest: int, now: int | None, wanted: int | None) -> int | None:
    """Return the side in pixels of the next try's tiles, smaller than the picture and than ``now``; ``None``: no such.

    ``wanted`` is the plan's. Half of what failed comes next, down to :data:`SMALLEST_TILE`.
    """
    most = min(longest, now) if now is not None else longest
    if most <= SMALLEST_TILE:
        return now
    tile = wanted if wanted is not None and wanted < most else FIRST_TILE if now is None else now // 2
    while tile >= most:
        tile //= 2
    return max(SMALLEST_TILE, tile)


@contextmanager
def in_tiles(decoder: Any, tile: int | None) -> Iterator[None]:
    """Within the block ``decoder`` decodes in tiles of ``tile`` pixels, smaller than a tiling of ours around it."""
    if tile is None:
        yield
        return
    from lib_vram.host import tiled_decode

    with smaller(decoder, tile, LATENT_FACTOR, tiled_decode.decode):
        yield


@contextmanager
def smaller(half: Any, tile: int, factor: int, run: Callable[[Any, Any, int], Any]) -> Iterator[None]:
    """Within the block ``half`` works through ``run`` in tiles of ``tile`` pixels, ``factor`` for each it is given."""
    before, whole = vars(half).get("forward"), half.forward

    def forward(given: Any, *arguments: Any, **named: Any) -> Any:
        if arguments or named or max(given.shape[2:]) * factor <= tile:
            return whole(given, *arguments, **named)
        return run(half, given, tile)

    half.forward = forward
    try:
        yield
    finally:
        if before is None:
            vars(half).pop("forward", None)
        else:
            half.forward = before


# Forge and its kin: the hosts' tiles


class HostsTiles(Trying):
    """The tries of one decode, with the host's tiles after the first, and smaller ones after those."""

    def __init__(self, rescuer: Rescuer, work: Work, samples: Any) -> None:
        super().__init__(rescuer, work, "vae_decode")
        self.can_tile = len(samples.shape) == 4 and min(samples.shape[-2:]) >= HOSTS_LEAST_SIDE
        self.pixels = latent_pixels(samples)
        self.failed_before = work.tiles_from is not None and self.pixels >= work.tiles_from
        self.tile = HOSTS_TILE if self.failed_before and self.can_tile else None

    def next_rung(self, request: Request | None, lesson: Lesson) -> Rung:
        """Return the rung, with the host's tiles for what it changes."""
        rung = super().next_rung(request, lesson)
        if not self.can_tile:
            return Rung(request)
        self.tile = HOSTS_SMALL_TILE if self.work.fell_back or self.tile is not None else HOSTS_TILE
        return Rung(rung.request, HOSTS_LINE, (say(HOSTS_TEXT),))

    def lesson_of(self, error: Exception) -> Lesson | None:
        """Return what ``error`` teaches; the host's tiles may fail, for their own reasons, because memory ran out."""
        lesson = super().lesson_of(error)
        if lesson is None and self.work.fell_back and self.tile is None:
            return Lesson(self.phase)
        return lesson

    def decode(self, vae: Any, samples: Any, whole: Callable[[], Any]) -> Any:
        """Decode as far as it has come: whole, in the host's tiles, in smaller ones."""
        if self.tile is None:
            self.work.decodes_whole = True
            try:
                return whole()
            finally:
                self.work.decodes_whole = False
        sizes = {} if self.tile == HOSTS_TILE else _small_tiles()
        return vae.decode_tiled(samples, **sizes).to(vae.output_device)

    @fail_open(instead=lambda *_: None)
    def remember(self) -> None:
        """Remember a size that ran out, for the batches to come; tell it when the host has fallen back by itself."""
        if self.work.fell_back or self.tried:
            self.work.tiles_from = min(self.work.tiles_from or self.pixels, self.pixels)
        if self.work.fell_back and not self.tried:
            self.rescuer.saved(self.work, self.phase, HOSTS_LINE, (say(HOSTS_TEXT),))


def _small_tiles() -> dict[str, int]:
    return {"tile_x": HOSTS_SMALL_TILE, "tile_y": HOSTS_SMALL_TILE, "overlap": HOSTS_SMALL_OVERLAP}


def _vae_decoding(rescuer: Rescuer, original: Step) -> Step:
    @functools.wraps(original)
    def decode(vae: Any, *arguments: Any, **named: Any) -> Any:
        samples = next(iter((*arguments, *named.values())), None)  # each host has a name of its own for them
        whole = functools.partial(original, vae, *arguments, **named)
        trying = _hosts_tiles(rescuer, samples)
        if trying is None:
            return whole()
        while True:
            result, failed = trying.attempt(functools.partial(trying.decode, vae, samples, whole))
            if not failed:
                trying.remember()
                return result
            trying.prepare()

    return decode


@fail_open(instead=lambda *_: None)
def _hosts_tiles(rescuer: Rescuer, samples: Any) -> HostsTiles | None:
    """Return the tries of a decode of ``samples``, ``None`` outside of runs."""
    work = rescuer.current()
    if work is None:
        return None
    work.fell_back = False
    return HostsTiles(rescuer, work, samples)


def _in_hosts_tiles(rescuer: Rescuer, original: Step) -> Step:
    """Return the host's tiled decode or encode, which first lets go of the failure because of which it is called."""

    @functools.wraps(original)
    def in_tiles_of_host(*arguments: Any, **named: Any) -> Any:
        work = rescuer.current()
        if work is not None:
            _let_go(rescuer, work, sys.exc_info()[1])
        return original(*arguments, **named)

    return in_tiles_of_host


@fail_open(instead=lambda *_: None)
def _let_go(rescuer: Rescuer, work: Work, failure: BaseException | None) -> None:
    """Clear what ``failure``, which is being handled now, still holds; note that a whole decode has fallen back."""
    if work.decodes_whole and not _always_tiled():
        work.fell_back = True
    if failure is not None and thinking.lesson_of(failure, "vae_decode") is not None:
        levers.release(failure)
        rescuer.host.empty_caches()


def _always_tiled() -> bool:
    """Whether the host decodes in tiles by its own or its user's choice."""
    names = ("backend.memory_management", "ldm_patched.modules.model_management")
    return any(getattr(sys.modules.get(name), "VAE_ALWAYS_TILED", False) for name in names)
