"""Each program's share of a card, from whichever source tells it: NVML, Windows' counters, the Linux kernel's files."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lib_vram.machine.card import Card, Holder
from lib_vram.machine.drm import DrmReader
from lib_vram.machine.processes import name_of

if TYPE_CHECKING:
    from lib_vram.machine.pdh import PdhReader


class ShareReader:
    """Adds to a card what its own source leaves open about its holders."""

    def __init__(
        self,
        pdh: PdhReader | None = None,
        drm: DrmReader | None = None,
        name: Callable[[int], str] = name_of,
        own: int | None = None,
        platform: str = sys.platform,
    ) -> None:
        self._pdh = pdh if pdh is not None or platform != "win32" else _pdh()
        self._drm = drm or DrmReader()
        self._name = name
        self._own = os.getpid() if own is None else own
        self._platform = platform
        self._names: dict[int, str] = {}

    def filled(self, card: Card) -> Card:
        """Return ``card`` with its holders' shares, and others' share by them, where another source knows these."""
        if card.source == "virtual" or any(item.used_bytes is not None for item in card.holders):
            return card
        shares = self._shares()
        if not shares:
            return card
        holders = tuple(
            Holder(pid, self._named(pid, card), size) for pid, size in sorted(shares.items(), key=lambda item: -item[1])
        )
        own_bytes = shares.get(self._own)
        if own_bytes is None or card.free_bytes is None:
            return dataclasses.replace(card, holders=holders)
        others_bytes = max(0, card.total_bytes - card.free_bytes - own_bytes)
        return dataclasses.replace(card, holders=holders, used_by_others_bytes=others_bytes)

    def shared(self) -> Mapping[int, int]:
        """Return what the driver has moved to RAM, by process (Windows)."""
        found = self._pdh.shares() if self._pdh is not None else None
        return found.shared if found else {}

    def _shares(self) -> Mapping[int, int]:
        if self._pdh is not None:
            found = self._pdh.shares()
            return found.dedicated if found else {}
        return self._drm.shares() if self._platform.startswith("linux") else {}

    def _named(self, pid: int, card: Card) -> str:
        """Return the name of a process, asked once: NVML's where it has one."""
        if pid not in self._names:
            if len(self._names) > 512:
                self._names.clear()
            known = next((item.name for item in card.holders if item.pid == pid and item.name), "")
            self._names[pid] = known or self._name(pid)
        return self._names[pid]


def _pdh() -> PdhReader:
    from lib_vram.machine.pdh import PdhReader

    return PdhReader()
