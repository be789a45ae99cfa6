"""What torch knows of its current card, asked only when torch is loaded and already uses the card.

Nothing here imports torch or makes it touch a GPU: a first touch takes seconds and some 300 MiB, and
decides once and for all which cards the process sees.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import ModuleType

from lib_vram.machine.card import Card

OWN_CONTEXT_BYTES = 300 * 1024**2
"""What this process holds beside torch's own blocks when nobody tells: driver context and kernels.
The low end of the 0.3 to 0.6 GiB that users report (docs/how-it-computes.md), so that others are never
taken for less than they hold by more than that."""


@dataclass(frozen=True)
class TorchReading:
    """torch's current card: who it is, its memory, and what torch's allocator has taken of it."""

    name: str
    uuid: str | None
    pci: str | None
    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    spills: bool

    def card(self) -> Card:
        """Return the card, others' share being what is in use beyond this process's own."""
        used_bytes = self.total_bytes - self.free_bytes
        return Card(
            name=self.name,
            total_bytes=self.total_bytes,
            free_bytes=self.free_bytes,
            used_by_others_bytes=max(0, used_bytes - self.own_bytes),
            source="torch",
            uuid=self.uuid,
            spills=self.spills,
        )

    @property
    def own_bytes(self) -> int:
        """What this process holds, as far as torch can tell."""
        return self.reserved_bytes + OWN_CONTEXT_BYTES


def loaded_without_gpu() -> bool:
    """Whether torch is loaded and built for the CPU alone: then this process computes on no card at all."""
    version = getattr(_torch(), "version", None)
    return version is not None and not getattr(version, "cuda", None) and not getattr(version, "hip", None)


def read(index: int | None = None) -> TorchReading | None:
    """Return card ``index`` of torch, its current one by default; ``None`` when torch uses no card or fails."""
    torch = _torch()
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None:
        return None
    try:
        if not cuda.is_initialized():
            return None
        number = cuda.current_device() if index is None else index
        properties = cuda.get_device_properties(number)
        free_bytes, total_bytes = cuda.mem_get_info(number)
        uuid = getattr(properties, "uuid", None)
        return TorchReading(
            name=str(properties.name),
            uuid=f"GPU-{uuid}" if uuid else None,
            pci=_pci(properties),
            total_bytes=int(total_bytes),
            free_bytes=int(free_bytes),
            reserved_bytes=int(cuda.memory_reserved(number)),
            spills=os.name == "nt" and not getattr(torch.version, "hip", None),
        )
    except (RuntimeError, AssertionError, AttributeError, TypeError, ValueError):
        return None  # a card in a broken state raises on every call; whoever asks has other sources


def _torch() -> ModuleType | None:
    return sys.modules.get("torch")


def _pci(properties: object) -> str | None:
    """Return the PCI address as NVML writes it, ``00000000:65:00``, without the function."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return None
    domain, bus, device = (int(str(part)) for part in parts)
    return f"{domain:08X}:{bus:02X}:{device:02X}"
