"""What flags at the start make of the memory managers of Forge's line.

====================================  ====================================================================
flag                                  what it does (backend/memory_management.py, ldm_patched's)
====================================  ====================================================================
``--always-high-vram``, Neo           every model is loaded whole; the denoiser is on the card from the
``--highvram``                        start and never leaves it, because that is where it is sent away to
``--always-gpu``, Neo ``--gpu-only``  the same, and the text encoders and the VAE stay too
``--always-low-vram``, Neo            text encoders work on the CPU; weights are split as without it.
``--lowvram``                         Classic takes it by itself for cards of 4 GiB or less, unless
                                      ``--always-normal-vram`` says not to
``--always-no-vram``, Neo             text encoders work on the CPU, and all weights are swapped
``--novram``
``--always-offload-from-vram``,       all other models leave before one is loaded; reForge and Neo call it
``--disable-smart-memory``            by the second name, and reForge has the first to no effect
``--vae-in-cpu``, Neo ``--cpu-vae``   the VAE works on the CPU
``--clip-in-cpu`` (Classic), Neo      text encoders work on the CPU
``--cpu-text-enc``
``--cuda-malloc``, Neo                added to the allocator's setting: see :func:`lib_vram.estimate.flags
``--expandable-segments``             .set_conf`
====================================  ====================================================================

What changes no weight on the card is named in a note: ``--pin-shared-memory``, ``--cuda-stream``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from lib_vram.estimate.flags import TITLES, has_flag, of_forge_line, unet_dtype
from lib_vram.message import Message, say
from lib_vram.request import HostName, Request
from lib_vram.units import GIB

State = Literal["high", "gpu", "low", "none", "leave", "vae", "text", "pins", "streams", "inert"]
Flags = Mapping[State, tuple[str, ...]]

_ALWAYS: Flags = {
    "high": ("--always-high-vram",), "gpu": ("--always-gpu",), "low": ("--always-low-vram",),
    "none": ("--always-no-vram",), "leave": ("--always-offload-from-vram",), "vae": ("--vae-in-cpu",),
    "pins": ("--pin-shared-memory",), "streams": ("--cuda-stream",), "inert": ("--always-normal-vram",),
}  # fmt: skip
FLAGS: Mapping[HostName, Flags] = {
    "forge": _ALWAYS,
    "reforge": {
        **_ALWAYS, "leave": ("--disable-smart-memory",),
        "inert": ("--always-normal-vram", "--always-offload-from-vram"),
    },
    "classic": {**_ALWAYS, "text": ("--clip-in-cpu",), "inert": ()},
    "neo": {
        "high": ("--highvram",), "gpu": ("--gpu-only",), "low": ("--lowvram",), "none": ("--novram", "--neveroom"),
        "leave": ("--disable-smart-memory",), "vae": ("--cpu-vae",), "text": ("--cpu-text-enc",),
        "pins": ("--pin-shared-memory",), "streams": ("--cuda-stream",), "inert": ("--normalvram",),
    },
}  # fmt: skip
"""Read in backend/args.py, ldm_patched/modules/args_parser.py and where these are used (June 2025 to August 2026)."""

SMALL_CARD_BYTES = 4 * GIB
"""Classic: "your GPU seems to have 4GB or less"."""
EVERYWHERE = frozenset(("unet", "text_encoders", "vae"))


@dataclass(frozen=True)
class Launched:
    """How the manager works for as long as it runs. ``stays`` are names of models that never leave the card."""

    stays: frozenset[str] = frozenset()
    whole: bool = False
    """Every model is loaded whole, whether there is room for it or not."""
    swapped: bool = False
    """No weights stay on the card: each layer is brought in for its turn."""
    all_leave: bool = False
    """All other models leave the card before one is loaded."""
    text_on_cpu: bool = False
    vae_on_cpu: bool = False


AS_USUAL = Launched()


def launched(request: Request) -> Launched:
    """Return how the memory manager of ``request``'s host was started."""
    small = request.host == "classic" and request.device.total_bytes <= SMALL_CARD_BYTES
    return _launched(request.host, request.host_args, small) if of_forge_line(request) else AS_USUAL


@lru_cache(maxsize=256)
def _launched(host: HostName, arguments: tuple[str, ...], small_card: bool) -> Launched:
    has = {name: any(flag in arguments for flag in flags) for name, flags in FLAGS[host].items()}
    low = has["low"] or (small_card and "--always-normal-vram" not in arguments)
    none = has["none"] and not has["low"]
    high = (has["high"] or has["gpu"]) and not low and not none
    stays = frozenset(("unet",)) if high else frozenset()
    return Launched(
        stays=stays | EVERYWHERE if has["gpu"] else stays,
        whole=high,
        swapped=none,
        all_leave=has["leave"] or (none and host in ("forge", "classic")),
        text_on_cpu=has.get("text", False) or ((low or none) and not has["gpu"]),
        vae_on_cpu=has["vae"],
    )


def flag_notes(request: Request, *, swaps: bool) -> Iterator[Message]:
    """Yield what flags do that the phases do not show; ``swaps`` is whether weights are brought in layer by layer."""
    if not of_forge_line(request):
        return
    kept = launched(request)
    if kept.text_on_cpu:
        yield say("estimate.text_on_cpu_by_flag")
    if kept.vae_on_cpu:
        yield say("estimate.vae_on_cpu_by_flag")
    if kept.whole:
        yield say("estimate.whole_by_flag", flag=_present(request, "high", "gpu"))
    pins, streams, inert = (_present(request, name) for name in ("pins", "streams", "inert"))
    if pins and swaps:
        yield say("estimate.flag_pins", flag=pins)
    if streams and swaps:
        yield say("estimate.flag_streams", flag=streams)
    if inert:
        yield say("estimate.flag_inert", flag=inert, host=TITLES[request.host])


def a1111_flag_notes(request: Request) -> Iterator[Message]:
    """Yield what A1111's flags for precision do that the numbers do not show (modules/devices.py, shared_init.py).

    ``--precision full`` switches autocast off and leaves the weights as they are, so half-precision layers are given
    fp32 and the run ends in an error; only fp8 storage brings a cast of its own (``manual_cast``).
    """
    if request.host != "a1111":
        return
    halves = not has_flag(request, "--no-half") and unet_dtype(request) != "fp8"
    if has_flag(request, "--precision", "full") and halves:
        yield say("estimate.precision_full_alone")
    if has_flag(request, "--precision", "half"):
        yield say("estimate.precision_half")


def _present(request: Request, *states: State) -> str:
    flags = (flag for state in states for flag in FLAGS[request.host].get(state, ()))
    return " ".join(flag for flag in flags if has_flag(request, flag))
