"""The cards of this machine, from whichever source knows them best."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from lib_vram.machine import amd, torch_cuda, torch_other
from lib_vram.machine.card import Card
from lib_vram.machine.nvml import Gpu, NvmlReader
from lib_vram.machine.torch_cuda import TorchReading
from lib_vram.machine.virtual import VARIABLE, parse_virtual
from lib_vram.machine.visible import visible

__all__ = ["CardReader", "cards", "current_card", "parse_virtual"]


class CardReader:
    """Brings the sources together: the virtual card, NVML, torch, and the amdgpu driver's files."""

    def __init__(
        self,
        nvml: NvmlReader | None = None,
        torch_reading: Callable[[int | None], TorchReading | None] = torch_cuda.read,
        amd_cards: Callable[[], tuple[Card, ...]] = amd.cards,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._nvml = nvml or NvmlReader()
        self._torch_reading = torch_reading
        self._amd_cards = amd_cards
        self._environment = environment
        self._last: tuple[tuple[Gpu, ...], int | None, Card] | None = None

    def cards(self) -> tuple[Card, ...]:
        """Return every card; a virtual one, which takes the others' place in a generation, first.

        Raises:
            BadInput: ``VRAM_GUARD_DEVICE`` is set and describes no card.
        """
        virtual = self._virtual()
        real = tuple(gpu.card for gpu in self._nvml.gpus()) + self._amd_cards()
        if not real:
            reading = self._torch_reading(None)
            card = reading.card() if reading else torch_other.read()
            real = (card,) if card else ()
        return (virtual, *real) if virtual else real

    def current_card(self, index: int | None = None) -> Card | None:
        """Return the card that this process computes on, or would; ``None`` when there is none.

        ``index`` is torch's number of the card where a host does not use torch's current one.
        What NVML and torch say is at most a second old.

        Raises:
            BadInput: ``VRAM_GUARD_DEVICE`` is set and describes no card.
        """
        virtual = self._virtual()
        if virtual:
            return virtual
        gpus, last = self._nvml.gpus(), self._last
        if gpus and last and last[0] is gpus and last[1] == index:
            return last[2]
        card = self._real(gpus, index)
        self._last = (gpus, index, card) if card else None
        return card

    def _virtual(self) -> Card | None:
        text = self._environment.get(VARIABLE, "").strip()
        return parse_virtual(text) if text else None

    def _real(self, gpus: tuple[Gpu, ...], index: int | None) -> Card | None:
        reading = self._torch_reading(index)
        if reading:
            gpu = _same(gpus, reading)
            return _merged(gpu, reading) if gpu else reading.card()
        other = torch_other.read(index)
        if other:
            return other
        if torch_cuda.loaded_without_gpu() and not torch_other.uses_directml():
            return None
        seen = visible(gpus, self._environment)
        if seen:
            return seen[min(index or 0, len(seen) - 1)].card
        return next(iter(self._amd_cards()), None)


def _same(gpus: tuple[Gpu, ...], reading: TorchReading) -> Gpu | None:
    """Return the card that torch means: by UUID, else by its place on the bus, else when it is the only one."""
    for gpu in gpus:
        if reading.uuid and gpu.card.uuid and gpu.card.uuid.lower() == reading.uuid.lower():
            return gpu
    for gpu in gpus:
        # Compared without the leading zeros, of which NVML writes four or eight.
        if reading.pci and gpu.pci and gpu.pci.endswith(reading.pci[-10:]):
            return gpu
    alone = len(gpus) == 1 and not reading.uuid and not reading.pci and gpus[0].card.name == reading.name
    return gpus[0] if alone else None


def _merged(gpu: Gpu, reading: TorchReading) -> Card:
    """Return torch's figures of the memory, which leave out what the driver keeps, with NVML's of the processes."""
    own_bytes = max(gpu.own_bytes or reading.own_bytes, reading.reserved_bytes)
    used_bytes = reading.total_bytes - reading.free_bytes
    return dataclasses.replace(
        gpu.card,
        total_bytes=reading.total_bytes,
        free_bytes=reading.free_bytes,
        used_by_others_bytes=max(0, used_bytes - own_bytes),
    )


_READER = CardReader()


def cards() -> tuple[Card, ...]:
    """Return every card of this machine; see :meth:`CardReader.cards`."""
    return _READER.cards()


def current_card(index: int | None = None) -> Card | None:
    """Return the card that this process computes on; see :meth:`CardReader.current_card`."""
    return _READER.current_card(index)
