"""Forge Neo's reference pictures: those of its script *ImageStitch*, and the picture of img2img itself.

Flux.1 Kontext, Flux.2 Klein and Qwen-Image-Edit see them as latents beside the one that is made (``ref_latents`` in
backend/args.py). Neo tells Kontext and the edit models by the names of their files.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lib_vram.host.asked import Asked

SCRIPT = "ImageStitch"
"""The script's class: its title is translated in bundles."""
STEP = 64
"""Pixels to a multiple of which the script rounds both sides of a picture."""
USUAL_LIMIT = 1024
"""Pixels of the longer side to which the script resizes, unless its slider says otherwise."""
EDIT_PIXELS, EDIT_STEP = 1024 * 1024, 32
"""What Qwen-Image-Edit's pictures are resized to where the option for it is on."""

MARK, MARK_WITHIN = "base64,", 100
"""What stands before a picture in a data URL, and within how many letters of its beginning."""
HEAD_LETTERS = 64 * 1024
"""Of base64: a hook must not take the time to decode whole pictures, some 20 ms for each that is large."""

Size = tuple[int, int]


def stitched(p: Any) -> tuple[Size, ...]:
    """Return the sizes of the script's pictures as it encodes them, ``()`` where it is off or not there."""
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", None) or []
    script = next((item for item in scripts if type(item).__name__ == SCRIPT), None)
    if script is None or script.args_from is None or not p.script_args:
        return ()
    enabled, pictures, most = (*p.script_args[script.args_from : script.args_to], None, None, None)[:3]
    if not enabled or not isinstance(pictures, (list, tuple)):
        return ()
    limit = int(most) if isinstance(most, (int, float)) else 0
    return tuple(_rounded(size, limit) for size in map(_size_of, pictures) if size is not None)


def on_page(sizes: Iterable[Size]) -> tuple[Size, ...]:
    """Return the sizes to which the script brings pictures of ``sizes``, with its own limit as it comes."""
    return tuple(_rounded(size, USUAL_LIMIT) for size in sizes)


def _size_of(picture: Any) -> Size | None:
    """Return the size of a picture, with or without its caption, or as the API's text."""
    picture = picture[0] if isinstance(picture, (list, tuple)) and picture else picture
    size = _size_in(picture) if isinstance(picture, str) else getattr(picture, "size", None)
    return (int(size[0]), int(size[1])) if isinstance(size, tuple) and len(size) == 2 else None


def _size_in(text: str) -> Size | None:
    """Return the size of a picture in the API's text, which may be long: as a rule its beginning says it."""
    place = text.find(MARK, 0, MARK_WITHIN)
    start = place + len(MARK) if place >= 0 else 0
    return _size_of_encoded(text[start : start + HEAD_LETTERS]) or _size_of_encoded(text[start:])


def _size_of_encoded(text: str) -> Size | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(base64.b64decode(text))) as picture:
            return picture.size
    except (binascii.Error, ValueError, OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _rounded(size: Size, limit: int) -> Size:
    """Return the size to which the script brings a picture (``preprocess``)."""
    longer = max(size)
    if 0 < limit < longer:
        size = int(size[0] * limit / longer), int(size[1] * limit / longer)
    return max(STEP, round(size[0] / STEP) * STEP), max(STEP, round(size[1] / STEP) * STEP)


def seen(want: Asked, family: str, path: str | None, option: Callable[[str, Any], Any]) -> tuple[Size, ...]:
    """Return the sizes of the pictures that the model at ``path`` sees in ``want``; ``option`` reads Neo's settings."""
    if not takes(family, path, option):
        return ()
    own: Sequence[Size] = ((want.width, want.height),) if want.mode == "img2img" else ()
    return tuple(_for_editing((*own, *want.references), family, option))


def takes(family: str, path: str | None, option: Callable[[str, Any], Any]) -> bool:
    """Whether the model of ``family`` at ``path`` takes reference pictures, as Neo decides it."""
    name = os.path.abspath(path or "").lower()
    if family.startswith("flux2_klein"):
        return not option("klein_no_reference", False)
    return (family == "flux1" and "kontext" in name) or (family == "qwen_image" and "qwen" in name and "edit" in name)


def _for_editing(sizes: Iterable[Size], family: str, option: Callable[[str, Any], Any]) -> Iterable[Size]:
    for width, height in sizes:
        if family != "qwen_image" or not option("qwen_vae_resize", False):
            yield width, height
            continue
        scale = math.sqrt(EDIT_PIXELS / (width * height))
        yield round(width * scale / EDIT_STEP) * EDIT_STEP, round(height * scale / EDIT_STEP) * EDIT_STEP
