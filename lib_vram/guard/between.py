"""Frees memory between two generations, as far as the user has chosen that in the settings; nothing by default.

It happens at the start of the next generation, which holds the host's queue then, so that nothing else is at work;
after running out of memory at once as well, when nothing waits.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal

from lib_vram.errors import HostFault
from lib_vram.guard.fail_open import fail_open
from lib_vram.live.pieces import Pieces
from lib_vram.machine.torch_memory import Snapshot
from lib_vram.request import Request
from lib_vram.units import MIB

if TYPE_CHECKING:
    from lib_vram.host.base import Host

logger = logging.getLogger("vram_guard")

When = Literal["pieces", "after_oom", "before_switch"]
CHOICES: tuple[When, ...] = ("pieces", "after_oom", "before_switch")

STUCK_BYTES = 512 * MIB
STUCK_SHARE = 0.15
"""Memory is in pieces when as much as both of these, the latter of what is reserved, lies between things in use."""

_OUT_OF_MEMORY = ("out of memory", "outofmemoryerror", "alloc_failed")


class Between:
    """What is done before the run that begins, by what was chosen and what the last one came to."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ran_out = False

    def failed(self, text: str) -> None:
        """Take note that a run failed with ``text``; after running out of memory, free it in a moment if chosen."""
        if not any(part in text.lower() for part in _OUT_OF_MEMORY):
            return
        self._ran_out = True
        if "after_oom" in self._host.settings().free_between:
            threading.Thread(target=self._free_now, name="vram-guard-free", daemon=True).start()

    def before(self, request: Request) -> When | None:
        """Free what is chosen before the run of ``request``; return why, ``None`` when nothing was to be done."""
        chosen = self._host.settings().free_between
        ran_out, self._ran_out = self._ran_out, False
        if not chosen:
            return None
        if "before_switch" in chosen and self._host.switches_checkpoint(request):
            return self._done("before_switch", "models")
        if "pieces" in chosen and is_in_pieces(self._host.snapshot()):
            return self._done("pieces", "models")
        if "after_oom" in chosen and ran_out:
            return self._done("after_oom", "cache")
        return None

    def _done(self, why: When, level: Literal["cache", "models"]) -> When:
        self._host.make_room(level)
        logger.info("VRAM Guard freed memory before this run (%s), as the settings say", why)
        return why

    @fail_open(instead=lambda *_: None)
    def _free_now(self) -> None:
        try:
            self._host.free("cache")
            self._ran_out = False
        except HostFault:
            logger.debug("the next run frees memory: one has begun already")


def is_in_pieces(snapshot: Snapshot | None) -> bool:
    """Whether so much lies between things in use that the next large picture may not find one block."""
    if snapshot is None:
        return False
    found = Pieces.of(snapshot)
    reserved_bytes = sum(size for segment in snapshot.segments for size, _ in segment)
    return found.matters and found.stuck_bytes >= max(STUCK_BYTES, STUCK_SHARE * reserved_bytes)
