"""Our accordion in the tabs txt2img and img2img: the choices of one generation, in the order of its argument."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lib_vram.guard.argument import (
    ATTENTIONS,
    DEFAULT_TILE_SIZE,
    NAMES,
    PREVIEWS,
    RESERVE_LIMITS_MB,
    TILE_SIZE_LIMITS,
    TILE_SIZE_STEP,
    UPSCALER_TILE_LIMITS,
    UPSCALER_TILE_STEP,
)
from lib_vram.message import sentence

ELEMENTS = {"mode": "run", "reserve_mb": "reserve", "unload_idle": "unload", "live_preview": "preview",
            "fp8_weights": "fp8"}  # fmt: skip
"""Ends of the element ids that are shorter than the argument's name."""
TEXTS = {
    "tiled": ("guard.tiled", "guard.tiled_info"),
    "tile_size": ("guard.tile_size", ""),
    "apart": ("guard.apart", "guard.apart_info"),
}
"""Label and explanation of the controls that are not in the texts as ``levers.<name>``, ``levers.<name>_info``."""

SLIDERS = {
    "tile_size": (TILE_SIZE_LIMITS, TILE_SIZE_STEP, DEFAULT_TILE_SIZE),
    "reserve_mb": (RESERVE_LIMITS_MB, 1, 0),
    "upscaler_tile": (UPSCALER_TILE_LIMITS, UPSCALER_TILE_STEP, 0),
}
CHOICES = {"live_preview": PREVIEWS, "attention": ATTENTIONS}


def controls(tab: str, language: str, shown: Collection[str]) -> list[Any]:
    """Return the controls of ``tab``, visible those whose names are in ``shown``. They are made where this is called.

    A WebUI's API takes their values as the defaults of the argument, so every one is made on every host.
    """
    made = [_control(name, tab, language, name in shown, "tile_size" in shown) for name in NAMES]
    for control in made:
        control.do_not_save_to_config = True
    return made


def elem_id(tab: str, name: str) -> str:
    """Return the element id of the control for ``name``."""
    return f"{tab}_vram_guard_{ELEMENTS.get(name, name)}"


def _control(name: str, tab: str, language: str, visible: bool, has_size: bool) -> Any:
    import gradio as gr

    if name == "mode":
        return gr.Textbox(label="run", value="", visible=False, elem_id=elem_id(tab, name))
    label, info = TEXTS.get(name, (f"levers.{name}", f"levers.{name}_info"))
    if name == "tiled" and not has_size:
        info = "guard.tiled_info_host"
    common: dict[str, Any] = {"label": sentence(label, language), "visible": visible, "elem_id": elem_id(tab, name)}
    if info:
        common["info"] = sentence(info, language)
    return _of_kind(gr, name, language, common)


def _of_kind(gr: Any, name: str, language: str, common: dict[str, Any]) -> Any:
    if name in SLIDERS:
        (low, high), step, value = SLIDERS[name]
        return gr.Slider(minimum=low, maximum=high, step=step, value=value, **common)
    if name in CHOICES:
        named = [(sentence(f"levers.{name}_{value or 'as_set'}", language), value) for value in CHOICES[name]]
        return gr.Radio(choices=named, value="", **common)
    return gr.Checkbox(value=False, **common)
