"""The checklist: what to look at, quickest first, and what the machine can answer by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lib_vram import units
from lib_vram.diagnosis.context import Context
from lib_vram.message import Message, say
from lib_vram.request import Family, Request

NATIVE_PIXELS: dict[Family, int] = {"sd15": 512 * 768, "sd21": 768 * 768}
"""Pixels that a family was trained on, with some room for other shapes; the rest work around one megapixel."""
NATIVE_SIDES: dict[Family, int] = {"sd15": 512, "sd21": 768}
"""Sides of the square pictures that a family was trained on, in pixels; the rest 1024."""
MEGAPIXEL = 1024 * 1024
ROOM = 1.15
"""Over the native area: 832×1216 and its kin are the families' own shapes."""
IDLE_SHARE = 1 / 8
"""Of the card: what a desktop holds."""
RAM_BYTES = 8 * units.GIB
SWAP_BYTES = 4 * units.GIB
DISK_BYTES = 20 * units.GIB
"""Room with which loading a large checkpoint goes well."""


@dataclass(frozen=True)
class Check:
    """One line. ``done`` is ``None`` where only a person can tell; ``found`` is what the machine saw."""

    name: str
    done: bool | None
    found: Message | None = None

    @property
    def text(self) -> Message:
        """What should be so."""
        return say(f"symptoms.check_{self.name}")


def _idle(context: Context) -> Check:
    card = context.card
    if card is None or card.used_by_others_bytes is None:
        return Check("card_idle", None)
    held = card.used_by_others_bytes
    return Check("card_idle", held <= IDLE_SHARE * card.total_bytes, say("symptoms.found_others", held_bytes=held))


def _of_request(name: str, look: Callable[[Request], tuple[bool | None, str]]) -> Callable[[Context], Check]:
    def check(context: Context) -> Check:
        request = context.failed or context.last_good
        if request is None:
            return Check(name, None)
        done, value = look(request)
        return Check(name, done, say("symptoms.found_value", value=value) if value else None)

    return check


def is_native_size(request: Request) -> bool:
    """Whether the picture is no larger than what the model's family was trained on."""
    return request.width * request.height <= ROOM * NATIVE_PIXELS.get(request.model.family, MEGAPIXEL)


def native_size(request: Request) -> tuple[int, int] | None:
    """Return the model's own size in the shape of the picture, in pixels on multiples of 8; ``None`` when it has it.

    The area is that of the square on which the family was trained.
    """
    if is_native_size(request):
        return None
    share = NATIVE_SIDES.get(request.model.family, 1024) / (request.width * request.height) ** 0.5
    width, height = (max(64, round(side * share / 8) * 8) for side in (request.width, request.height))
    return width, height


def _extras(request: Request) -> tuple[bool | None, str]:
    extras = len(request.controlnets) + len(request.loras) + (request.refiner is not None)
    return (True, "") if not extras else (None, str(extras))


def _ask(name: str) -> Callable[[Context], Check]:
    return lambda context: Check(name, None)


def _room(name: str, free_bytes: int | None, wanted_bytes: int) -> Check:
    if free_bytes is None:
        return Check(name, None)
    return Check(name, free_bytes >= wanted_bytes, say("symptoms.found_bytes", free_bytes=free_bytes))


_LOW_MEMORY_FLAGS = ("--medvram", "--lowvram", "--medvram-sdxl", "--always-low-vram", "--reserve-vram")

_CHECKS: tuple[Callable[[Context], Check], ...] = (
    _idle,
    _ask("programs_closed"),
    _of_request("batch_one", lambda request: (request.batch_size == 1, str(request.batch_size))),
    _of_request("native_size", lambda request: (is_native_size(request), f"{request.width}×{request.height}")),
    _ask("restarted"),
    _of_request("attention", lambda request: (request.attention in ("sdpa", "xformers"), request.attention)),
    _of_request("tiled_vae", lambda request: (request.vae.tiled or None, "")),
    _of_request("half_precision", lambda request: (request.model.weights_dtype != "fp32", request.model.weights_dtype)),
    _of_request("extras_off", _extras),
    _of_request("offload", lambda request: (any(flag in _LOW_MEMORY_FLAGS for flag in request.host_args) or None, "")),
    _of_request("quantised", lambda request: (request.model.weights_dtype not in ("fp32", "fp16", "bf16") or None, "")),
    _ask("steps_apart"),
    lambda context: _room("ram", context.ram_free_bytes, RAM_BYTES),
)


def checklist(context: Context, swap_free_bytes: int | None = None) -> tuple[Check, ...]:
    """Return the list for the last generation and the machine of ``context``. Sizes in bytes, ``None`` not known."""
    return (
        *(check(context) for check in _CHECKS),
        _room("swap", swap_free_bytes, SWAP_BYTES),
        _room("disk", context.disk_free_bytes, DISK_BYTES),
        Check("lighter_or_cloud", None),
    )
