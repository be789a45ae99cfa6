"""Who may ask: the host's own login, and only the host's own page."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from lib_vram.message import render, say

BETWEEN_SECONDS = 1.0
"""One after the other, and no sooner: a page that asks without end must not keep the host from its work."""
READ_SECONDS = 0.2
"""The same for what reads a file: several pages may look at it."""


class Declined(Exception):
    """The request is understood and not done; it is answered with a status and one line."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class Turn:
    """Lets one request that changes something through at a time, and none for a while after another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, only_reads: bool = False) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._only_reads = only_reads
        self._ended: float | None = None

    def _between_seconds(self) -> float:
        return READ_SECONDS if self._only_reads else BETWEEN_SECONDS

    @contextmanager
    def taken(self, language: str) -> Iterator[None]:
        """Hold the turn.

        Raises:
            Declined: it is taken, or was until a moment ago (429).
        """
        if not self._lock.acquire(blocking=False):
            raise Declined(429, render(say("free.flood"), language))
        try:
            if self._ended is not None and self._clock() - self._ended < self._between_seconds():
                raise Declined(429, render(say("free.flood"), language))
            try:
                yield
            finally:
                self._ended = self._clock()
        finally:
            self._lock.release()


def logged_in(app: Any, request: Request) -> bool:
    """Whether the host's login, if it has one, knows who asks.

    gradio keeps its login in ``app.auth`` or, from 4 on, ``app.auth_dependency``; its own route
    ``/user`` names the person behind the cookies. Without that route nobody is known.
    """
    if getattr(app, "auth", None) is None and getattr(app, "auth_dependency", None) is None:
        return True
    current_user = _current_user(app)
    return current_user is not None and current_user(request) is not None


def _current_user(app: Any) -> Callable[[Request], Any] | None:
    for route in getattr(app, "routes", ()):
        if getattr(route, "path", None) == "/user":
            return getattr(route, "endpoint", None)
    return None


def same_origin(request: Request) -> bool:
    """Whether a browser sent this from the host's own page; programs send neither header and may ask."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return True
    hosts = {request.headers.get("host"), request.headers.get("x-forwarded-host")}
    return urlsplit(origin).netloc in hosts
