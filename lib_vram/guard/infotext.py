"""The one line that goes into a picture's infotext, in English whatever the page's language.

It is a record, not a setting: nothing registers it for pasting. It holds no comma, colon, quote,
backslash or line break, so the hosts' own quoting rule leaves it as it is and every parser reads it back whole.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

from lib_vram.estimate.result import Estimate
from lib_vram.guard.refusal import figures
from lib_vram.request import Request
from lib_vram.units import MIB

KEY = "VRAM Guard"
_UNSAFE = re.compile(r"[^\w .;()><=+*/%-]", re.ASCII)


def changes_line(original: Request, changed: Request) -> str:
    """Return what a fix changed: ``batch 4x1 -> 1x4; VAE tiled 768``."""
    parts = [
        "idle models unloaded" if original.idle_models and not changed.idle_models else "",
        _named(original, changed, "live preview", "live_preview"),
        _named(original, changed, "attention", "attention"),
        _reserve(original, changed),
        _batch(original, changed),
        _vae(original, changed),
        _apart(original, changed),
        _never_oom_unet(original, changed),
        _controlnets(original, changed),
        _named(original, changed, "upscaler tile", "upscaler_tile"),
        _storage(original, changed),
        _hires(original, changed),
        _size(original, changed),
    ]
    return _safe("; ".join(part for part in parts if part))


def warning_line(estimate: Estimate) -> str:
    """Return what a run that was let through was warned of: ``would not fit; vae decode needs 9.4 GiB of 7.1 GiB``."""
    binding = estimate.binding
    if binding is None:
        return "would not fit"
    need, room = figures(estimate)
    return _safe(f"would not fit; {binding.name.replace('_', ' ')} needs {need} of {room}")


def record(parameters: MutableMapping[str, Any], line: str) -> None:
    """Add ``line`` to what is recorded of this run in ``parameters``, the host's infotext fields; none for ``""``."""
    lines = [text for text in (parameters.get(KEY, ""), _safe(line).strip()) if text]
    if lines:
        parameters[KEY] = "; ".join(lines)


def _safe(text: str) -> str:
    return _UNSAFE.sub(" ", text)


def _arrow(name: str, before: Any, after: Any) -> str:
    return f"{name} {before} -> {after}"


def _named(original: Request, changed: Request, name: str, field: str) -> str:
    before, after = getattr(original, field), getattr(changed, field)
    return _arrow(name, before, after) if before != after else ""


def _reserve(original: Request, changed: Request) -> str:
    before, after = (-(-item.forge.inference_memory_bytes // MIB) for item in (original, changed))
    return _arrow("kept free", before, f"{after} MiB") if before != after else ""


def _controlnets(original: Request, changed: Request) -> str:
    before, after = (sum(unit.low_vram for unit in item.controlnets) for item in (original, changed))
    return "ControlNet low VRAM" if after > before else ""


def _storage(original: Request, changed: Request) -> str:
    before, after = original.model.storage_dtype, changed.model.storage_dtype
    return f"weights stored in {after}" if after is not None and after != before else ""


def _batch(original: Request, changed: Request) -> str:
    before, after = ((item.batch_size, item.batch_count) for item in (original, changed))
    return _arrow("batch", f"{before[0]}x{before[1]}", f"{after[0]}x{after[1]}") if before != after else ""


def _vae(original: Request, changed: Request) -> str:
    if changed.vae != original.vae and changed.vae.tiled:
        return f"VAE tiled {changed.vae.tile_size}" if changed.vae.tile_size else "VAE tiled"
    return "VAE tiled" if changed.forge.never_oom_vae and not original.forge.never_oom_vae else ""


def _apart(original: Request, changed: Request) -> str:
    return "cond and uncond apart" if original.batch_cond_uncond and not changed.batch_cond_uncond else ""


def _never_oom_unet(original: Request, changed: Request) -> str:
    return "UNet always offloaded" if changed.forge.never_oom_unet and not original.forge.never_oom_unet else ""


def _hires(original: Request, changed: Request) -> str:
    before, after = original.hires_size(), changed.hires_size()
    if original.hires == changed.hires or before is None:
        return ""
    if changed.hires is None or after is None:
        return "hires off"
    if original.hires and original.hires.width == original.hires.height == 0:
        return _arrow("hires", f"{original.hires.scale:g}", f"{changed.hires.scale:g}")
    return _arrow("hires", f"{before[0]}x{before[1]}", f"{after[0]}x{after[1]}")


def _size(original: Request, changed: Request) -> str:
    before, after = ((item.width, item.height) for item in (original, changed))
    return _arrow("size", f"{before[0]}x{before[1]}", f"{after[0]}x{after[1]}") if before != after else ""
