"""Looks at the card when somebody asks, and once a second while a generation runs; never waits for the device."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from lib_vram.errors import BadInput
from lib_vram.live.curve import ENDS, FIXED, START, Curve, Mark, Sample
from lib_vram.live.picture import Holding, Weights
from lib_vram.live.switches import Switches
from lib_vram.machine.card import Card
from lib_vram.machine.torch_memory import Snapshot, TorchMemory
from lib_vram.message import Message
from lib_vram.request import Request

if TYPE_CHECKING:
    from lib_vram.live.spill import SpillWatch
    from lib_vram.machine.programs import Ended, Program, ProgramReader
    from lib_vram.machine.shares import ShareReader

logger = logging.getLogger("vram_guard")

EVERY_SECONDS = 1.0
FRESH_SECONDS = 0.8
"""Whoever asks within this time is told what the last one was told."""
IDLE_WEIGHTS_SECONDS = 3.0
BUSY_WEIGHTS_SECONDS = 30.0
"""How often the models' parameters are counted while memory changes, some 20 ms for SDXL's 2500: while a generation
runs memory always does, but hosts move models where a phase begins, so they are counted there too."""
PROGRAMS_SECONDS = 3.0
"""How often processes are asked for what they are: under Windows that takes milliseconds for each."""
LOST_SECONDS = 5.0
"""A generation whose host is no longer at work for so long has ended without a word."""


class Watched(Protocol):
    """What is looked at: the part of a host that this needs."""

    def card(self) -> Card | None:
        """Return the card as it is now."""

    def torch_memory(self) -> TorchMemory | None:
        """Return what the host's allocator holds."""

    def snapshot(self) -> Snapshot | None:
        """Return the allocator's pieces."""

    def loaded_weights(self) -> tuple[Weights, ...]:
        """Return the loaded models."""

    def is_busy(self) -> bool:
        """Whether a generation is at work."""


class Watch:
    """The latest reading, the curve, and a thread that lives as long as a generation does."""

    def __init__(self, host: Watched, clock: Callable[[], float] = time.time) -> None:
        self._host = host
        self._clock = clock
        self._lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._programs_lock = threading.Lock()
        self._looked_at = float("-inf")
        self._holding = Holding(None, None)
        self._weights: tuple[Weights, ...] = ()
        self._weights_at = float("-inf")
        self._weights_for: int | None = None
        self._snapshot: Snapshot | None = None
        self._snapshot_for: int | None = None
        self._running = False
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._programs: tuple[Program, ...] = ()
        self._programs_at = float("-inf")
        self._phase_began = False
        self._begins = False
        self._warnings: tuple[Message, ...] = ()
        self.curve, self.switches = Curve(), Switches()

    # What is first needed once somebody looks is imported then: the start of the WebUI need not wait for it.

    @cached_property
    def reader(self) -> ProgramReader:
        """What names the programs."""
        from lib_vram.machine.programs import ProgramReader

        return ProgramReader()

    @cached_property
    def shares(self) -> ShareReader:
        """What knows their shares where the card's own source does not."""
        from lib_vram.machine.shares import ShareReader

        return ShareReader()

    @cached_property
    def _spill(self) -> SpillWatch:
        from lib_vram.live.spill import SpillWatch

        return SpillWatch()

    def now(self) -> Holding:
        """Return who holds the card, at most :data:`FRESH_SECONDS` old, and keep it in the curve."""
        with self._lock:
            if self._clock() - self._looked_at >= FRESH_SECONDS:
                self._look()
            return self._holding

    def pieces(self) -> Snapshot | None:
        """Return the allocator's pieces as they were when the card was last at rest; ``None`` when not known."""
        with self._lock:
            if self._running or self._host.is_busy():
                return self._snapshot
            memory = self._host.torch_memory()
            if memory is None:
                return None
            if self._snapshot is None or memory.changes is None or memory.changes != self._snapshot_for:
                self._snapshot, self._snapshot_for = self._host.snapshot(), memory.changes
            return self._snapshot

    def programs(self) -> tuple[Program, ...]:
        """Return the programs on the card as what they are, at most :data:`PROGRAMS_SECONDS` old."""
        holding = self.now()
        with self._programs_lock:
            if self._clock() - self._programs_at >= PROGRAMS_SECONDS:
                card = holding.card
                made_up = card is not None and card.source == "virtual"
                holders = card.holders if card else ()
                self._programs = self.reader.programs(holders, self.shares.shared(), made_up=made_up)
                self._programs_at = self._clock()
            return self._programs

    def warnings(self) -> tuple[Message, ...]:
        """Return what makes the generation at work slow, as it was when somebody last looked."""
        return self._warnings if self._running else ()

    def end(self, pid: int, started: float) -> Ended:
        """End a left-behind WebUI, and look at the programs anew the next time; see :meth:`ProgramReader.end`."""
        came = self.reader.end(pid, started)
        with self._programs_lock:
            self._programs_at = float("-inf")
        return came

    @property
    def is_running(self) -> bool:
        """Whether a generation is at work."""
        return self._running

    def heard(self, event: str, values: Mapping[str, Any]) -> None:
        """Take note of a generation's start, phase or end. Called on its thread, so it only leaves a mark."""
        name = values.get("name") if event == "phase" else event
        if event not in (START, "phase", *ENDS) or not isinstance(name, str):
            return
        self.curve.mark(Mark(self._clock(), name, values.get("request") if event == START else None))
        if event == START and values.get("request") is not None:
            self.switches.ran(values["request"].model.checkpoint)
        self._phase_began = True
        with self._state_lock:
            self._running = event not in ENDS
            self._begins = self._begins or event == START
            if self._running and self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="vram-guard-live", daemon=True)
                self._thread.start()
        self._wake.set()

    def computes(self, request: Request) -> None:
        """Take note that the generation at work computes ``request`` instead of what was asked for."""
        self.curve.mark(Mark(self._clock(), FIXED, request))

    def _follow(self) -> None:
        """Look at every mark and once a second until the generation is over."""
        seen_at_work = self._clock()
        running = True
        while running:
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            with self._lock:
                busy = self._look()
            seen_at_work = self._clock() if busy else seen_at_work
            with self._state_lock:
                running = self._running and self._clock() - seen_at_work < LOST_SECONDS
                if not running:
                    self._running, self._thread = False, None

    def _look(self) -> bool:
        """Read everything anew; return whether the host is at work. What cannot be read is not known."""
        self._looked_at, busy = self._clock(), False
        try:
            busy = self._host.is_busy()
            memory = self._host.torch_memory()
            self._count_weights(memory, busy)
            self._holding = Holding(self._card(), memory, self._weights)
            self.curve.add(Sample.of(self._looked_at, self._holding))
            self._look_for_spill()
        except Exception:  # a host's objects may be half made: then there is one reading less
            logger.debug("VRAM Guard could not read the card's state", exc_info=True)
        return busy

    def _card(self) -> Card | None:
        try:
            card = self._host.card()
        except BadInput:  # the virtual card is described wrongly; the page says so elsewhere
            return None
        return self.shares.filled(card) if card is not None else None

    def _look_for_spill(self) -> None:
        """Compare with the start of the generation at work."""
        from lib_vram.live.spill import Load, shared_of
        from lib_vram.machine import system

        if not self._running:
            self._spill.end()
            self._warnings = ()
            return
        shared = self.shares.shared()
        load = Load(self._holding, system.read({}), shared_of(shared, os.getpid(), known=bool(shared)))
        if self._begins:
            self._begins = False
            self._spill.begin(load)
        self._warnings = self._spill.warnings(load)

    def _count_weights(self, memory: TorchMemory | None, busy: bool) -> None:
        """Count the parameters again only when memory has changed, and seldom while a generation runs."""
        allocated_bytes = memory.allocated_bytes if memory else None
        age = self._looked_at - self._weights_at
        changed = memory is None or allocated_bytes != self._weights_for
        seldom = busy or memory is None  # without counters nothing tells whether anything has changed
        seldom = seldom and not self._phase_began
        if changed and age >= (BUSY_WEIGHTS_SECONDS if seldom else IDLE_WEIGHTS_SECONDS):
            self._phase_began = False
            self._weights_at, self._weights_for = self._looked_at, allocated_bytes
            self._weights = self._counted()

    def _counted(self) -> tuple[Weights, ...]:
        """Return the loaded models; those of the last count where one has weights that cannot be asked."""
        try:
            return self._host.loaded_weights()
        except Exception:  # the card's figures are to be had all the same
            logger.debug("VRAM Guard could not count the loaded models", exc_info=True)
            return self._weights
