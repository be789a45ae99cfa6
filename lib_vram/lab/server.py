"""The Lab's web server: gradio's page, the extension's files as a WebUI would load them, and our routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.lab.page import build
from lib_vram.learning.store import FOLDER
from lib_vram.ui.routes import add_routes

EXTENSION = Path(__file__).parents[2]
STATIC = Path(__file__).parent / "static"
_ELSEWHERE = re.compile(rb'<script\s+src="https://[^>]*></script>|<link[^>]*https://fonts[^>]*/>', re.DOTALL)
"""What gradio's page would fetch from other machines; the Lab needs none of it and works without a network."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


def make_app(language: str = "en", *, journal: bool = False) -> FastAPI:
    """Return the Lab as an ASGI application; with a ``journal`` it remembers on disk what it was doing."""
    host = LabHost(language=language)
    guard = Guard(host)
    if journal:
        guard.open_journal()
        guard.learned.open(FOLDER / "lab")
    app = FastAPI(title="VRAM Guard Lab", docs_url=None, redoc_url=None, openapi_url=None)
    add_routes(app, guard)
    app.mount("/extension/javascript", StaticFiles(directory=EXTENSION / "javascript"))
    app.mount("/lab-static", StaticFiles(directory=STATIC))
    app.add_route("/extension/style.css", _style, methods=["GET"])
    app = gr.mount_gradio_app(app, build(guard, language), path="/")
    app.add_middleware(PageFiles, head=_head(), end=_stylesheets())
    return app


async def _style(request: Any) -> Any:
    from starlette.responses import FileResponse

    return FileResponse(EXTENSION / "style.css")


def _head() -> bytes:
    """The scripts in the order in which a WebUI loads them: its own first, then each extension's."""
    scripts = sorted((EXTENSION / "javascript").glob("*.js"))
    addresses = ["lab-static/lab.js", *(f"extension/javascript/{path.name}" for path in scripts)]
    return "".join(f'<script src="{address}"></script>\n' for address in addresses).encode()


def _stylesheets() -> bytes:
    addresses = ("extension/style.css", "lab-static/lab.css")
    return "".join(f'<link rel="stylesheet" href="{address}">\n' for address in addresses).encode()


class PageFiles:
    """Puts the scripts and style sheets into the page that gradio serves at ``/``."""

    def __init__(self, app: Any, head: bytes, end: bytes) -> None:
        self.app = app
        self.head = head
        self.end = end

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Pass everything but the page through untouched."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        start: list[Message] = []
        body: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.append(message)
                return
            if message["type"] != "http.response.body":
                await send(message)
                return
            body.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._send_page(start[0], b"".join(body), send)

        await self.app({**scope, "headers": plain}, receive, collect)

    async def _send_page(self, start: Message, page: bytes, send: Send) -> None:
        page = _ELSEWHERE.sub(b"", page)
        page = page.replace(b"</head>", self.head + b"</head>", 1).replace(b"</body>", self.end + b"</body>", 1)
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(page)).encode()))
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": page})
