"""The scripts of a processing object and their arguments: finding them, reading them, replacing one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lib_vram.errors import BadInput
from lib_vram.guard.argument import TITLE, RunArgument
from lib_vram.host.asked import ControlNet, name_or_none
from lib_vram.request import SIZE_LIMITS, Detailer

if TYPE_CHECKING:
    from lib_vram.host.patches import Patches

CONTROLNET = "controlnet"
ADETAILER = "adetailer"
TILED_VAE = "tiled vae"
ENCODER_TILE, DECODER_TILE = 1, 2
"""Positions of the encoder's tile, in pixels, and of the decoder's, in latent pixels, in that script's arguments."""


def script_titled(p: Any, title: str) -> Any | None:
    """Return the always-on script of that title (lower case), ``None`` when ``p`` has none."""
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", None) or []
    return next((script for script in scripts if script.title().lower() == title.lower()), None)


def arguments_of(p: Any, title: str) -> tuple[Any, ...]:
    """Return the arguments that the script of that title will get, ``()`` when there is no such script."""
    script = script_titled(p, title)
    if script is None or script.args_from is None or not p.script_args:
        return ()
    return tuple(p.script_args[script.args_from : script.args_to])


def with_arguments(p: Any, title: str, values: Mapping[int, Any], fields: Patches | None = None) -> bool:
    """Give the script of that title other arguments, by position, on a copy; whether there is such a script.

    The host hands one list of arguments to every run of an API server, so it is never changed in place. With
    ``fields``, those of the run, each is taken back when the same ``p`` runs again, unless somebody has changed it.
    """
    script = script_titled(p, title)
    if script is None or script.args_from is None:
        return False
    placed = {script.args_from + position: value for position, value in values.items()}
    before = {position: p.script_args[position] for position in placed}
    _replace(p, placed)
    if fields is not None:
        owner_of = weakref.ref(p)
        fields.call_when_undone(lambda: _take_back(owner_of(), placed, before))
    return True


def _replace(p: Any, values: Mapping[int, Any]) -> None:
    arguments = list(p.script_args)
    for position, value in values.items():
        arguments[position] = value
    p.script_args = type(p.script_args)(arguments) if isinstance(p.script_args, (list, tuple)) else arguments


def _take_back(p: Any, ours: Mapping[int, Any], before: Mapping[int, Any]) -> None:
    """Give ``p`` its own arguments back where ours still are."""
    now = p.script_args if p is not None else ()
    still = {place: before[place] for place, value in ours.items() if place < len(now) and now[place] is value}
    if still:
        _replace(p, still)


def own_argument(p: Any) -> RunArgument:
    """Return our own script's argument, the default one when it is missing or not usable."""
    try:
        return RunArgument.of(arguments_of(p, TITLE))
    except BadInput:
        return RunArgument()


def controlnets(p: Any) -> tuple[ControlNet, ...]:
    """Return the enabled ControlNet units with a model, from unit objects or the API's dicts."""
    return tuple(_controlnet(p, unit) for _, unit in enabled_units(p))


def _controlnet(p: Any, unit: Any) -> ControlNet:
    values = _values(unit)
    resolution = values.get("processor_res")
    if values.get("pixel_perfect"):
        resolution = min(p.width, p.height)
    usable = isinstance(resolution, (int, float)) and SIZE_LIMITS[0] <= resolution <= SIZE_LIMITS[1]
    return ControlNet(
        str(values["model"]), is_low_vram(unit), name_or_none(values.get("module")) or "none",
        int(resolution) if usable and resolution else None,
    )  # fmt: skip


def detailer(p: Any) -> Detailer | None:
    """Return what ADetailer will do in this run, the largest crop of its tabs; ``None`` where it does nothing."""
    first, *rest = arguments_of(p, ADETAILER) or (None,)
    tabs = [tab for tab in (first, *rest) if isinstance(tab, Mapping)]
    if first is False or (first is None and not tabs):
        return None
    active = [tab for tab in tabs if tab.get("ad_tab_enable", True) and name_or_none(tab.get("ad_model"))]
    crops = [_crop(p, tab) for tab in active]
    return max(crops, key=lambda crop: crop.width * crop.height, default=None)


def _crop(p: Any, tab: Mapping[str, Any]) -> Detailer:
    """ADetailer repaints at the picture's own size, unless a tab has one of its own."""
    own = tab.get("ad_use_inpaint_width_height")
    sides = [tab.get(f"ad_inpaint_{name}") if own else None for name in ("width", "height")]
    width, height = (
        side if isinstance(side, int) and SIZE_LIMITS[0] <= side <= SIZE_LIMITS[1] else getattr(p, name)
        for side, name in zip(sides, ("width", "height"))
    )
    return Detailer(width, height, str(tab["ad_model"]))


def enabled_units(p: Any) -> tuple[tuple[int, Any], ...]:
    """Return the same units as they are, each with its position among the script's arguments."""
    return tuple((place, unit) for place, unit in enumerate(arguments_of(p, CONTROLNET)) if _is_enabled(unit))


def is_low_vram(unit: Any) -> bool:
    """Whether *Low VRAM* of a unit is ticked."""
    values = _values(unit)
    return bool(values.get("low_vram", values.get("lowvram", False)))


def _is_enabled(unit: Any) -> bool:
    values = _values(unit)
    return name_or_none(values.get("model")) is not None and bool(values.get("enabled", isinstance(unit, Mapping)))


def _values(unit: Any) -> Mapping[str, Any]:
    return unit if isinstance(unit, Mapping) else getattr(unit, "__dict__", {})


def tiled_vae_tile(p: Any) -> int | None:
    """Return multidiffusion's tile in pixels when its *Tiled VAE* is on for this run: of its two tiles the larger one.

    The encoder's counts only where a picture is encoded: in img2img, and before a second pass by an image upscaler.
    """
    arguments = arguments_of(p, TILED_VAE)
    if len(arguments) <= DECODER_TILE or not arguments[0]:
        return None
    tile = int(arguments[DECODER_TILE]) * 8
    return max(tile, int(arguments[ENCODER_TILE])) if _encodes(p) else tile


def _encodes(p: Any) -> bool:
    enlarges = getattr(p, "enable_hr", False) and not str(getattr(p, "hr_upscaler", "")).lower().startswith("latent")
    return bool(getattr(p, "init_images", None) or enlarges)


def with_tiled_vae_tile(p: Any, tile: int, fields: Patches | None = None) -> None:
    """Give *Tiled VAE* tiles of at most ``tile`` pixels for this run; ``fields`` as in :func:`with_arguments`."""
    arguments = arguments_of(p, TILED_VAE)
    sizes = {ENCODER_TILE: tile, DECODER_TILE: tile // 8}
    smaller = {place: size for place, size in sizes.items() if size < int(arguments[place])}
    with_arguments(p, TILED_VAE, smaller, fields)
