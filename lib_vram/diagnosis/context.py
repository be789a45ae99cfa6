"""What a session knows beside the error text: what ran, what had worked, and the state of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lib_vram.machine.card import Card
from lib_vram.message import Message, say
from lib_vram.request import Request

_COMPARED = (
    "model.family", "model.checkpoint", "model.weights_dtype", "width", "height", "batch_size", "frames", "cfg_scale",
    "hires.scale", "hires.width", "hires.height", "hires.upscaler", "vae.dtype", "vae.tiled", "attention",
    "batch_cond_uncond", "live_preview", "mode",
)  # fmt: skip
"""Fields that decide how much memory a generation needs."""
_COUNTED = ("controlnets", "loras")
_LABELS = {
    "model.family": "Model", "model.checkpoint": "Checkpoint", "model.weights_dtype": "dtype", "width": "Width",
    "height": "Height", "batch_size": "Batch size", "frames": "Frames", "cfg_scale": "CFG Scale",
    "hires.scale": "Upscale by", "hires.width": "Resize width to", "hires.height": "Resize height to",
    "hires.upscaler": "Upscaler", "vae.dtype": "VAE dtype", "vae.tiled": "Tiled VAE", "attention": "Attention",
    "batch_cond_uncond": "Batch cond/uncond", "live_preview": "Live preview", "mode": "txt2img/img2img",
    "controlnets": "ControlNet", "loras": "LoRA", "refiner": "Refiner",
}  # fmt: skip
"""Their names as the WebUIs label the controls, which is in English in every language."""


@dataclass(frozen=True)
class Context:
    """All optional; ``None`` means not known. Sizes in bytes."""

    host: str | None = None
    failed: Request | None = None
    """The generation that failed."""
    last_good: Request | None = None
    """The last one of this session that ended well."""
    good_runs: int = 0
    card: Card | None = None
    ram_free_bytes: int | None = None
    ram_total_bytes: int | None = None
    disk_free_bytes: int | None = None


def changes(before: Request, after: Request) -> tuple[tuple[str, Any, Any], ...]:
    """Return the fields that decide about memory and differ, with both values."""
    found = [(path, _value(before, path), _value(after, path)) for path in _COMPARED]
    found += [(name, len(getattr(before, name)), len(getattr(after, name))) for name in _COUNTED]
    found.append(("refiner", before.refiner is not None, after.refiner is not None))
    return tuple(item for item in found if item[1] != item[2])


def _value(request: Request, path: str) -> Any:
    value: Any = request
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def symptom_by_context(context: Context) -> str | None:
    """Return the row that the session itself points to, ``None`` when it points to none."""
    if context.failed is None:
        return None
    if context.failed.frames > 1:
        return "video"
    if context.last_good is None:
        return None
    return "changed" if changes(context.last_good, context.failed) else "worked-then-failed"


def context_evidence(context: Context) -> tuple[Message, ...]:
    """Return what the session adds to the text."""
    said: list[Message] = []
    if context.failed is not None and context.last_good is not None:
        said += _compared(context.last_good, context.failed)
    card = context.card
    if card is not None and card.used_by_others_bytes and card.used_by_others_bytes > card.total_bytes // 8:
        said.append(
            say(
                "diagnosis.evidence_others_now", others_bytes=card.used_by_others_bytes, capacity_bytes=card.total_bytes
            )
        )
    return tuple(said)


def _compared(before: Request, after: Request) -> list[Message]:
    found = changes(before, after)
    if not found:
        return [say("diagnosis.evidence_same_worked")]
    shown = ", ".join(f"{_LABELS[path]} {_shown(old)} → {_shown(new)}" for path, old, new in found[:6])
    return [say("diagnosis.evidence_changed", changes=shown)]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "✓" if value else "✕"
    return "-" if value is None else str(value)
