"""Who may ask: the host's own login, and only the host's own page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request


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
