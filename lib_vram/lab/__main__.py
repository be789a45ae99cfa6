"""``python -m lib_vram.lab [--port 7865] [--open] [--language en]``."""

from __future__ import annotations

import argparse
import sys
import threading
import webbrowser
from collections.abc import Sequence

from lib_vram.message import LANGUAGES

_OPEN_AFTER_SECONDS = 1.5
ADDRESS = "127.0.0.1"
"""The Lab is for the person at this machine: it answers nobody else."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the Lab until Ctrl+C; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lib_vram.lab", description="Serve the Lab on this machine.")
    parser.add_argument("--port", type=int, default=7865, help="the port on 127.0.0.1 (7865)")
    parser.add_argument("--open", action="store_true", help="show the Lab in the browser")
    parser.add_argument("--language", choices=LANGUAGES, default="en", help="language of the Lab's own labels")
    chosen = parser.parse_args(argv)
    if not 0 < chosen.port < 65536:
        parser.error(f"--port: got {chosen.port}, takes a number from 1 to 65535")
    import uvicorn

    from lib_vram.lab.server import make_app

    if chosen.open:
        opener = threading.Timer(_OPEN_AFTER_SECONDS, webbrowser.open, [f"http://{ADDRESS}:{chosen.port}"])
        opener.daemon = True
        opener.start()
    uvicorn.run(make_app(chosen.language, journal=True), host=ADDRESS, port=chosen.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
