"""Follows each generation from hook to hook and keeps what it took.

On the generation's own thread a hook reads torch's counters and notes the time: a tenth of a millisecond. A thread
of the recorder's own reads in between, computes what had been expected, writes the file and learns from it.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate
from lib_vram.learning import counters, store
from lib_vram.learning.correct import apply
from lib_vram.learning.counters import Counters
from lib_vram.learning.durations import Durations, Known
from lib_vram.learning.faults import MOVED_BYTES, fault_of, rescued_fault
from lib_vram.learning.lessons import Lessons, lessons_of
from lib_vram.learning.peaks import Peak, Stretch, merged
from lib_vram.learning.record import Machine, Outcome, Rescue, Run, kept_of, phase_records
from lib_vram.learning.store import Store
from lib_vram.machine.card import Card
from lib_vram.request import Request

logger = logging.getLogger("vram_guard")

SAMPLE_SECONDS = 0.2
DEVICE_SECONDS = 1.0
"""How often NVML is asked: it takes a lock in the driver that generations wait for."""
MOST_WAITING = 100
"""Runs that wait to be written; with more, the disk does not keep up and the newest is dropped."""
MOST_MACHINES = 64
"""Machines whose lessons are kept in memory: a question can name any flags."""

Estimator = Callable[[Request], Estimate]


@dataclass
class _Open:
    """The run at work."""

    run: int | None
    request: Request
    steps: int | None
    at: float
    began_at: float
    index: int | None
    stretch: Stretch
    measured: dict[str, tuple[float, Peak]] = field(default_factory=dict)
    by_stretch: bool = True
    context_bytes: int | None = None
    inner: int = 0
    rescued_in: str | None = None
    rescued_from: str = ""
    """The text of the error that it was first rescued from, where that is known."""
    others_bytes: int = 0
    """The most that other programs were seen to hold."""


@dataclass(frozen=True)
class _Ended:
    """A run as it is handed over to be written."""

    open: _Open
    outcome: Outcome
    seconds: float
    error: str


class Recorder:
    """One for a host. Nothing is started or made before the first run."""

    def __init__(
        self, kept: Store, machine: Callable[[Request], Machine], estimate: Estimator,
        card: Callable[[], Card | None], read: Callable[[int | None], Counters | None] = counters.read,
    ) -> None:  # fmt: skip
        self.store = kept
        self._machine, self._estimate, self._card, self._read = machine, estimate, card, read
        self._lock = threading.Lock()
        self._open: _Open | None = None
        self._queue: queue.Queue[_Ended | Rescue | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._known: dict[str, tuple[Lessons, Durations]] = {}
        self._start_at = time.time()

    # what the guard tells

    def opened(self, request: Request | None) -> None:
        """Note that a run is about to begin; one that never ended is given up. ``None``: nothing is known of it."""
        index = counters.device_index()
        reading = self._read(index)
        now = time.monotonic()
        with self._lock:
            stretch = Stretch("load", now, reading)
            self._open = _Open(None, request, None, time.time(), now, index, stretch) if request is not None else None

    def runs(self, run: Any, request: Request, *, steps: int | None = None) -> None:
        """Note that ``run``, the host's object, will compute ``request``: the run at work, or one inside it."""
        with self._lock:
            at_work = self._open
            if at_work is None:
                return
            if at_work.run is None:
                at_work.run, at_work.request, at_work.steps = id(run), request, steps
            elif at_work.run != id(run):
                at_work.inner += 1
                self._turn(at_work, "detailer", self._read(at_work.index), time.monotonic())
                return
        self._start()

    def dropped(self) -> None:
        """Note that a run ended of which nothing is to be kept: refused, or stopped before it began."""
        with self._lock:
            self._open = None

    def phase(self, name: str) -> None:
        """Note that the run at work has come to the stretch ``name`` (of :data:`lib_vram.learning.record.COVERS`)."""
        with self._lock:
            at_work = self._open
            if at_work is not None and at_work.by_stretch and not at_work.inner and name != at_work.stretch.phase:
                self._turn(at_work, name, self._read(at_work.index), time.monotonic())

    def measured(self, name: str, peak: Peak, context_bytes: int | None) -> None:
        """Take over what a phase took on the virtual card, which measures by itself; the names are the phases' own."""
        now = time.monotonic()
        with self._lock:
            at_work = self._open
            if at_work is not None:
                at_work.by_stretch, at_work.context_bytes = False, context_bytes
                at_work.measured[name] = (now - at_work.stretch.began_at, peak)
                at_work.stretch = Stretch(name, now, None)

    def ended(self, run: Any, outcome: Outcome = "done") -> None:
        """Note that ``run`` came to its end; one that was never begun here is passed over."""
        with self._lock:
            at_work = self._open
            if at_work is None:
                return
            if at_work.run != id(run):
                at_work.inner = max(0, at_work.inner - 1)
                return
        self._close(outcome)

    def failed(self, text: str) -> None:
        """Note that the run at work ended with the error ``text``."""
        self._close("failed", text)

    def rescued(self, phase: str, text: str) -> None:
        """Note that the run at work ran out in ``phase`` with the error ``text`` and goes on another way."""
        with self._lock:
            if self._open is not None and self._open.rescued_in is None:
                self._open.rescued_in, self._open.rescued_from = phase, text

    def keep_rescue(self, rescue: Rescue) -> None:
        """Keep ``rescue``, and that the run at work is no measure of anything any more."""
        with self._lock:
            if self._open is not None:
                self._open.rescued_in = self._open.rescued_in or rescue.phase
                rescue = replace(rescue, family=rescue.family or self._open.request.model.family)
        self._put(rescue)
        self._start()

    # what is known

    def lessons(self, request: Request) -> Lessons:
        """Return what this machine's runs teach about ``request``: what was learned by the last run's end."""
        return self._of(self._machine(request).key)[0]

    def _of(self, key: str) -> tuple[Lessons, Durations]:
        found = self._known.get(key)
        return found if found is not None else self._learn(key)

    def _learn(self, key: str) -> tuple[Lessons, Durations]:
        runs = self.store.runs(key)
        found = lessons_of(runs), Durations(runs)
        while len(self._known) >= MOST_MACHINES and key not in self._known:
            self._known.pop(next(iter(self._known), ""), None)
        self._known[key] = found
        return found

    def seconds(self, request: Request, steps: int | None) -> Known | None:
        """Return how long ``request`` took on this machine before; ``None`` where it was never run like this."""
        return self._of(self._machine(request).key)[1].of(kept_of(request), steps)

    def forget(self) -> bool:
        """Erase every run and every lesson; return whether all of it is gone."""
        done = self.store.erase()
        self._known = {}
        return done

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Let what waits be written, and wait for it."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._put(None)
            thread.join(timeout_seconds)
        atexit.unregister(self.close)

    def settle(self, timeout_seconds: float = 30.0) -> None:
        """Wait until nothing waits to be written."""
        end = time.monotonic() + timeout_seconds
        while self._queue.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.001)

    # on the generation's thread

    @staticmethod
    def _turn(at_work: _Open, name: str, reading: Counters | None, now: float) -> None:
        """End the stretch at work and begin the next one; the lock is held."""
        done = at_work.stretch
        seconds, peak = now - done.began_at, done.end(reading)
        if done.phase in at_work.measured:
            before_seconds, before = at_work.measured[done.phase]
            seconds, peak = before_seconds + seconds, merged(before, peak)
        at_work.measured[done.phase] = (seconds, peak)
        at_work.stretch = Stretch(name, now, reading)

    def _close(self, outcome: Outcome, error: str = "") -> None:
        now = time.monotonic()
        with self._lock:
            at_work, self._open = self._open, None
            if at_work is None or at_work.run is None:
                return
            if at_work.by_stretch:
                self._turn(at_work, "", self._read(at_work.index), now)
        self._put(_Ended(at_work, outcome, now - at_work.began_at, error))

    def _put(self, item: _Ended | Rescue | None) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            logger.debug("a run is not kept: the disk is too slow")

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="vram-guard-learning", daemon=True)
                self._thread.start()
                atexit.unregister(self.close)
                atexit.register(self.close)

    # on its own

    def _work(self) -> None:
        device_at = 0.0
        while True:
            try:
                item = self._queue.get(timeout=SAMPLE_SECONDS if self._open is not None else 1.0)
            except queue.Empty:
                device_at = self._sampled(device_at)
                continue
            try:
                if item is None:
                    return
                self._keep(item)
            except Exception:  # a run that cannot be kept must not keep later ones from it
                logger.exception("VRAM Guard could not keep what a generation took")
            finally:
                self._queue.task_done()

    def _sampled(self, device_at: float) -> float:
        """Read as :meth:`_sample` does; what fails costs one reading, not the thread."""
        try:
            return self._sample(device_at)
        except Exception:  # a driver in a broken state can raise anything
            logger.debug("VRAM Guard could not read the card in the middle of a run", exc_info=True)
            return time.monotonic()

    def _sample(self, device_at: float) -> float:
        """Read in the middle of a run; return when the whole card was last asked about."""
        at_work = self._open
        if at_work is None or not at_work.by_stretch:
            return 0.0
        stretch, now = at_work.stretch, time.monotonic()
        reading = self._read(at_work.index)
        with self._lock:
            if reading is not None and at_work.stretch is stretch:
                stretch.sample(reading)
        if now - device_at < DEVICE_SECONDS:
            return device_at
        self._sample_device(at_work, stretch, reading)
        return now

    def _sample_device(self, at_work: _Open, stretch: Stretch, reading: Counters | None) -> None:
        try:
            card = self._card()
        except BadInput:  # the virtual card is described wrongly
            return
        if card is None or card.source == "virtual":
            return
        own_bytes = next((item.used_bytes for item in card.holders if item.pid == os.getpid()), None)
        with self._lock:
            if card.free_bytes is not None:
                stretch.sample_device(card.total_bytes - card.free_bytes)
            at_work.others_bytes = max(at_work.others_bytes, card.used_by_others_bytes or 0)
            if own_bytes is not None and reading is not None and own_bytes > reading.reserved_bytes:
                at_work.context_bytes = own_bytes - reading.reserved_bytes

    def _keep(self, item: _Ended | Rescue) -> None:
        if isinstance(item, Rescue):
            self.store.add_rescue(item)
            return
        run = self._run_of(item)
        self.store.add(run)
        self._learn(run.machine.key)

    def _run_of(self, item: _Ended) -> Run:
        done = item.open
        expected = self._estimate(done.request)
        said = apply(expected, done.request, self.lessons(done.request))
        measured = [(name, *values) for name, values in done.measured.items()]
        records = phase_records(expected, measured, by_stretch=done.by_stretch)
        fault, kind = None, ""
        if item.outcome == "failed":
            last = measured[-1][0] if measured and done.by_stretch else None
            fault, kind = fault_of(item.error, expected, done.measured, last)
        elif done.rescued_in is not None and not _squeezed(done):
            fault = rescued_fault(done.rescued_from, expected, done.rescued_in)
        if fault is not None and not any(record.name == fault.phase for record in records):
            records = (*records, *phase_records(expected, [(fault.phase, 0.0, Peak())], by_stretch=False))
        return Run(
            at=done.at, machine=self._machine(done.request), request=kept_of(done.request), outcome=item.outcome,
            verdict=said.verdict, available_bytes=expected.available_bytes, seconds=round(item.seconds, 3),
            steps=done.steps, context_bytes=done.context_bytes, phases=records, fault=fault, error=kind,
            is_rescued=done.rescued_in is not None, binding=said.binding_phase or "", expected_bytes=said.peak_bytes,
            low_bytes=said.low_bytes, high_bytes=said.high_bytes, start=self._start_at,
        )  # fmt: skip


def _squeezed(done: _Open) -> bool:
    """Whether other programs took memory during the run: then it was not the run that needed too much."""
    return done.others_bytes - done.request.device.used_by_others_bytes > MOVED_BYTES


def use(recorder: Recorder | None) -> None:
    """Let ``recorder`` hear of rescues; ``None`` for nobody."""
    store.use(recorder.keep_rescue if recorder is not None else None)
