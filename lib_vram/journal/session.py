"""This session's generations: what ended well last, what failed last, and with which words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lib_vram.journal.journal import Journal
from lib_vram.journal.last_session import LastSession
from lib_vram.journal.recorder import settings_of
from lib_vram.request import Request

TEXT_LIMIT = 64 * 1024
"""Characters of a failure that are kept: a traceback has some 10 KB."""
LOADING = "load_checkpoint"
"""In the journal, the phase in which a checkpoint is read outside a run."""
MOST_OPEN = 8
"""Runs inside runs (a detailer's); more than these have been left behind by failures."""


class HostErrors(Protocol):
    """What a host remembers of its errors."""

    def mark(self) -> int | None:
        """Return a number that is another one after the next error."""

    def text(self) -> str | None:
        """Return the latest error."""

    def job(self) -> float | None:
        """Return what tells the job at work from others, ``None`` when there is none."""


class NoErrors:
    """A host that remembers nothing; it tells the session of its failures itself."""

    def mark(self) -> int | None:
        """Return nothing."""
        return None

    def text(self) -> str | None:
        """Return nothing."""
        return None

    def job(self) -> float | None:
        """Return nothing."""
        return None


@dataclass(frozen=True)
class Failure:
    """A generation that ended with an error. ``at`` is in seconds since the epoch."""

    text: str
    request: Request | None
    at: float


@dataclass(frozen=True)
class _Open:
    run: int
    request: Request | None
    mark: int | None
    job: float | None


class Session:
    """Told of starts, ends and failures by the guard; read by the page. Safe to use from several threads.

    The hosts call no hook when a run fails. So one that has not ended, whose job is over, and that left another error
    than there was before it, is taken to have failed with that error.
    """

    def __init__(self, errors: HostErrors | None = None) -> None:
        self._errors = errors or NoErrors()
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._is_loading = False
        self._failure: Failure | None = None
        self.last_good: Request | None = None
        self.good_runs = 0
        self.journal: Journal | None = None
        """Where events go too, once the host is up; ``None`` for none."""
        self.hears: Callable[[str, Mapping[str, Any]], None] | None = None
        """Told of every event too, on the generation's own thread, with the request at the start of one."""
        self.before: LastSession | None = None
        """How the session before this one ended, when that was in mid-generation."""

    def started(self, run: Any, request: Request | None) -> None:
        """Note that ``run``, the host's object, is about to compute ``request``."""
        self.look_for_failure()
        job, mark = self._errors.job(), self._errors.mark()
        with self._lock:
            kept = [item for item in self._open if item.run != id(run) and (job is None or item.job == job)]
            is_inner = bool(kept)
            self._open = [*kept[-MOST_OPEN + 1 :], _Open(id(run), request, mark, job)]
        if not is_inner:
            self._note("run", request, settings=settings_of(request) if request else {})
            self.phase("load")

    def ended(self, run: Any) -> None:
        """Note that ``run`` ended well."""
        with self._lock:
            found = self._take(run)
            if found is not None and found.request is not None:
                self.last_good = found.request
                self.good_runs += 1
            is_over = not self._open
        if is_over:
            self._note("done")

    def refused(self, run: Any) -> None:
        """Note that ``run`` will not be computed at all."""
        with self._lock:
            self._take(run)
        self._note("done")

    def failed(self, text: str, run: Any = None) -> None:
        """Note that ``run``, or the one that is open, ended with the error ``text``."""
        with self._lock:
            found = self._find(run) or (self._open[0] if self._open else None)
            self._open = []
            self._failure = Failure(text[-TEXT_LIMIT:], found.request if found else None, time.time())
        self._note("failed", text=text.strip().rpartition("\n")[2][:200])

    def rescued(self, phase: str, line: str, text: str = "") -> None:
        """Note that the run that is open ran out of memory in ``phase`` and goes on; ``line`` is what was changed.

        ``text`` is the error's, which those who follow the run hear and the journal does not keep.
        """
        self._note("rescued", failure=text[-TEXT_LIMIT:], name=phase, changes=line)

    def phase(self, name: str) -> None:
        """Note that the run that is open has come to the phase ``name``."""
        self._note("phase", name=name)

    def loading(self) -> bool:
        """Note in the journal that a checkpoint is read outside a run; returns whether it was noted."""
        with self._lock:
            if self._open or self._is_loading or self.journal is None:
                return False
            self._is_loading = True
        self.journal.write("run", settings={})
        self.journal.write("phase", name=LOADING)
        return True

    def loaded(self) -> None:
        """Note that what :meth:`loading` noted is over, unless a run has begun meanwhile."""
        with self._lock:
            self._is_loading = False
            is_over = not self._open
        if is_over and self.journal is not None:
            self.journal.write("done")

    @property
    def is_inside_another(self) -> bool:
        """Whether the run that began last is inside another one (a detailer's)."""
        with self._lock:
            return len(self._open) > 1

    @property
    def last_failure(self) -> Failure | None:
        """The last generation of this session that failed, ``None`` when none did."""
        self.look_for_failure()
        return self._failure

    def look_for_failure(self) -> None:
        """Find out whether the run that is open has failed meanwhile."""
        with self._lock:
            outer = self._open[0] if self._open else None
        if outer is None:
            return
        job = self._errors.job()
        if job is not None and job == outer.job:
            return
        if self._errors.mark() != outer.mark:
            self.failed(self._errors.text() or "")
        elif outer.job is not None:
            with self._lock:
                self._open = []
            self._note("done")  # over without an end and without an error: interrupted before it began

    def _find(self, run: Any) -> _Open | None:
        return next((item for item in self._open if item.run == id(run)), None)

    def _take(self, run: Any) -> _Open | None:
        found = self._find(run)
        self._open = [item for item in self._open if item is not found]
        return found

    def _note(self, event: str, request: Request | None = None, failure: str = "", **values: Any) -> None:
        if self.hears is not None:
            self.hears(event, {**values, "request": request, "failure": failure})
        if self.journal is not None:
            self.journal.write(event, **values)
