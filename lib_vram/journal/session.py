"""This session's generations: what ended well last, what failed last, and with which words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lib_vram.request import Request

TEXT_LIMIT = 64 * 1024
"""Characters of a failure that are kept: a traceback has some 10 KB."""
MOST_OPEN = 8
"""Runs inside runs (a detailer's); more than these have been left behind by failures."""


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
    error_before: str | None


def _no_error() -> str | None:
    return None


class Session:
    """Told of starts, ends and failures by the guard; read by the page. Safe to use from several threads.

    ``last_error`` returns the host's latest error text, ``None`` when it has none or does not keep it: a run that
    ended without its end hook, and left another error than before it, has failed with that.
    """

    def __init__(self, last_error: Callable[[], str | None] = _no_error) -> None:
        self._last_error = last_error
        self._lock = threading.Lock()
        self._open: list[_Open] = []
        self._failure: Failure | None = None
        self.last_good: Request | None = None
        self.good_runs = 0

    def started(self, run: Any, request: Request | None) -> None:
        """Note that ``run``, the host's object, is about to compute ``request``."""
        self._look_for_failure()
        error = self._last_error()
        with self._lock:
            self._open = [item for item in self._open if item.run != id(run)][-MOST_OPEN + 1 :]
            self._open.append(_Open(id(run), request, error))

    def ended(self, run: Any) -> None:
        """Note that ``run`` ended well."""
        with self._lock:
            found = next((item for item in self._open if item.run == id(run)), None)
            self._open = [item for item in self._open if item.run != id(run)]
            if found is not None and found.request is not None:
                self.last_good = found.request
                self.good_runs += 1

    def failed(self, text: str, run: Any = None) -> None:
        """Note that ``run``, or the one that is open, ended with the error ``text``."""
        with self._lock:
            found = next((item for item in self._open if item.run == id(run)), None)
            found = found or (self._open[0] if self._open else None)
            self._open = []
            self._failure = Failure(text[-TEXT_LIMIT:], found.request if found else None, time.time())

    @property
    def last_failure(self) -> Failure | None:
        """The last generation of this session that failed, ``None`` when none did."""
        self._look_for_failure()
        return self._failure

    def _look_for_failure(self) -> None:
        with self._lock:
            outermost = self._open[0] if self._open else None
        if outermost is None:
            return
        error = self._last_error()
        if error is not None and error != outermost.error_before:
            self.failed(error)
