"""What torch knows of a device that is not CUDA's: Apple's MPS, Intel's XPU, DirectML. Asked only when torch is loaded.

========  =============================  ==========================================
device    known                          not known
========  =============================  ==========================================
MPS       what Apple recommends at most  what others hold, and so what is free
XPU       total and free                 who holds the rest
DirectML  nothing about memory           everything: other sources may see the card
CPU       there is no card
========  =============================  ==========================================
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from lib_vram.machine.card import Card
from lib_vram.machine.torch_cuda import OWN_CONTEXT_BYTES
from lib_vram.message import Message, say

DIRECTML = "torch_directml"
FAULTS = (RuntimeError, AssertionError, AttributeError, TypeError, ValueError)
"""What torch raises for a device in a broken state, or of a version that lacks a function."""


def read(index: int | None = None) -> Card | None:
    """Return the MPS or XPU device that torch computes on, ``None`` when it computes on neither."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        return _mps(torch) or _xpu(torch, index)
    except FAULTS:
        return None


def uses_directml() -> bool:
    """Whether this process computes through DirectML, with a torch that is built for the CPU."""
    return DIRECTML in sys.modules


def why_no_card() -> Message:
    """Return, for people, why nothing is known of a card."""
    return say("guard.no_card_directml" if uses_directml() else "guard.no_card")


def _mps(torch: ModuleType) -> Card | None:
    backends: Any = getattr(torch, "backends", None)
    mps = getattr(backends, "mps", None)
    if mps is None or not mps.is_available():
        return None
    total_bytes = int(torch.mps.recommended_max_memory())
    return Card("Apple GPU", total_bytes, None, None, "torch") if total_bytes > 0 else None


def _xpu(torch: ModuleType, index: int | None) -> Card | None:
    xpu: Any = getattr(torch, "xpu", None)
    if xpu is None or not xpu.is_available() or not xpu.is_initialized():
        return None  # a first touch takes seconds and memory
    number = xpu.current_device() if index is None else index
    properties = xpu.get_device_properties(number)
    total_bytes = int(properties.total_memory)
    free_bytes = _xpu_free_bytes(xpu, number)
    others_bytes = None
    if free_bytes is not None:
        own_bytes = int(xpu.memory_reserved(number)) + OWN_CONTEXT_BYTES
        others_bytes = max(0, total_bytes - free_bytes - own_bytes)
    return Card(str(properties.name), total_bytes, free_bytes, others_bytes, "torch")


def _xpu_free_bytes(xpu: Any, number: int) -> int | None:
    """Return what is free, ``None`` before torch 2.6 and with drivers that do not say it."""
    try:
        return int(xpu.mem_get_info(number)[0])
    except FAULTS:
        return None
