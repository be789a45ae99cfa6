"""Our tiles in one run of A1111 or reForge, which have none of their own: where these hosts decode and encode.

The VAE's two halves are wrapped for the length of each call only, so a model that is swapped in during the run is
covered and none is left wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lib_vram.guard.fail_open import fail_open
from lib_vram.host.patches import Run

ENCODE = "images_tensor_to_samples"
"""The hosts' function from pictures to latents; ``modules.processing`` has it by this name as well."""
CONDITION = "img2img_image_conditioning"
"""The hosts' method in which models for inpainting and InstructPix2Pix encode once more."""


def own_tiles(run: Run, tile_size: int) -> None:
    """Decode and encode in tiles of at most ``tile_size`` pixels a side, until ``run`` ends."""
    from modules import processing, sd_samplers_common

    decode = sd_samplers_common.samples_to_images_tensor
    run.of_run.set_attribute(sd_samplers_common, "samples_to_images_tensor", _decoding(decode, run, tile_size))
    for owner, name, model_of in (
        (sd_samplers_common, ENCODE, third),
        (processing, ENCODE, third),
        (getattr(processing, "StableDiffusionProcessing", None), CONDITION, loaded),
    ):
        original = vars(owner).get(name) if owner is not None else None
        if callable(original):
            run.of_run.set_attribute(owner, name, _encoding(original, run, tile_size, model_of))


def _decoding(original: Callable[..., Any], run: Run, tile_size: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def samples_to_images_tensor(
        sample: Any, approximation: Any = None, model: Any = None, *rest: Any, **named: Any
    ) -> Any:
        from lib_vram.host import tiled_decode

        with _in_tiles(tiled_decode, half_of(model, "decoder") if run.active else None, tile_size):
            return original(sample, approximation, model, *rest, **named)

    return samples_to_images_tensor


def _encoding(
    original: Callable[..., Any], run: Run, tile_size: int, model_of: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def encoding(*arguments: Any, **named: Any) -> Any:
        from lib_vram.host import tiled_encode

        encoder = half_of(model_of(*arguments, **named), "encoder") if run.active else None
        with _in_tiles(tiled_encode, encoder, tile_size):
            return original(*arguments, **named)

    return encoding


@contextmanager
def _in_tiles(way: Any, half: Any, tile_size: int) -> Iterator[None]:
    with ExitStack() as stack:
        if half is not None:
            stack.enter_context(way.tiled(half, tile_size))
        yield


def third(_image: Any = None, _approximation: Any = None, model: Any = None, *_rest: Any, **_named: Any) -> Any:
    """Return the model that the hosts' encoding function is called with."""
    return model


def loaded(*_arguments: Any, **_named: Any) -> None:
    """Return no model: the one that is loaded."""


@fail_open(instead=lambda *_: None)
def half_of(model: Any, name: str) -> Any:
    """Return a half of the VAE of ``model``, of the loaded one when ``None``; ``None`` where it has no such half."""
    from modules import shared

    return getattr((model or shared.sd_model).first_stage_model, name, None)
