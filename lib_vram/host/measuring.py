"""Measures the loaded model in the background: one thread, once a model, without being noticed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib_vram.errors import BadInput
from lib_vram.message import Message, say
from lib_vram.physics import cache

if TYPE_CHECKING:
    from lib_vram.host.tracing import LoadedModel
    from lib_vram.host.webui import WebUI

logger = logging.getLogger("vram_guard")

FOLDER = Path(__file__).resolve().parents[2] / "data" / "profiles"
"""In the extension's own folder; made when the first profile is written."""

USUAL_SECONDS = 4
"""What the largest known model takes on one core of 2020."""

LEAST_SECONDS = 1
"""What is said to be left when it takes longer than usual."""

TEXT = "-text_encode-"
"""In the names of the part without which the others still tell what a picture needs."""

Done = Callable[[], None]


class Measurer:
    """Makes the profiles of the loaded model that are not shipped, when they are not cached either.

    ``loaded`` returns what the host has loaded, ``is_busy`` whether it generates, and ``done`` is
    called when new profiles are there.
    """

    def __init__(self, loaded: Callable[[], LoadedModel | None], is_busy: Callable[[], bool], done: Done,
                 folder: Path | None = FOLDER) -> None:  # fmt: skip
        self._loaded, self._is_busy, self._done = loaded, is_busy, done
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._started = 0.0
        self._reason = ""
        self._current = threading.Event()
        cache.use(folder)

    def look(self) -> None:
        """Measure what is loaded now, in a thread of its own. One that still measures an earlier model is given up."""
        self.stop()
        if cache.use(self._folder).forget_loaded():
            self._done()
        self._current = threading.Event()
        self._thread = threading.Thread(
            target=self._measure, args=(self._current,), name="vram-guard-measuring", daemon=True
        )
        self._started = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Let a running measurement end by itself, soon; nothing waits for it."""
        self._current.set()

    def wait(self, seconds: float) -> None:
        """Wait until nothing is measured any more, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def is_measuring(self) -> bool:
        """Whether a model is being measured."""
        return self._thread is not None and self._thread.is_alive() and not self._current.is_set()

    def note(self) -> Message | None:
        """Return what there is to say about a model that nothing is known of, ``None`` when nothing."""
        if self.is_measuring:
            left = USUAL_SECONDS - int(time.monotonic() - self._started)
            return say("trace.measuring", seconds=max(LEAST_SECONDS, left))
        return say("trace.given_up", reason=self._reason) if self._reason else None

    def _measure(self, stop: threading.Event) -> None:
        from lib_vram.host import tracing

        self._reason = ""
        patience = tracing.Patience(self._is_busy, stop.is_set)
        try:
            patience.wait_until_idle()
            model = self._loaded()
            missing = model.missing() if model is not None else []
            for name, part, dtype in missing:
                try:
                    tracing.measure(model, name, part, dtype, cache.use(self._folder), patience)
                except tracing.GivenUp as fault:
                    if TEXT not in name or stop.is_set():
                        raise
                    logger.info("VRAM Guard cannot measure the loaded text encoders, and leaves them out: %s", fault)
        except tracing.GivenUp as fault:
            self._give_up(str(fault), stop)
        except Exception as fault:  # noqa: BLE001  a host's code can raise anything; nothing but a profile is lost
            self._give_up(f"{type(fault).__name__}: {fault}", stop)
        else:
            if missing and not stop.is_set():
                logger.info("VRAM Guard has measured the loaded model: %s", ", ".join(name for name, _, _ in missing))
        if not stop.is_set():
            self._done()
        stop.set()

    def _give_up(self, reason: str, stop: threading.Event) -> None:
        if not stop.is_set():
            self._reason = reason
            logger.info("VRAM Guard cannot measure the loaded model: %s", reason)


def of_host(host: WebUI, done: Done, folder: Path | None = FOLDER) -> Measurer:
    """Return the measurer of a WebUI."""
    return Measurer(lambda: loaded_of(host), is_generating, done, folder)


def loaded_of(host: WebUI) -> LoadedModel | None:
    """Return the parts of what ``host`` has loaded, ``None`` when that is nothing or of no known family."""
    from lib_vram.host import traced_a1111, traced_forge, traced_neo

    sd_model: Any = host.loaded_model()
    if sd_model is None:
        return None
    try:
        family = host.family_of(os.path.abspath(sd_model.sd_checkpoint_info.filename))
    except BadInput:
        return None
    find = {"a1111": traced_a1111.loaded, "neo": traced_neo.loaded}.get(host.name, traced_forge.loaded)
    return find(sd_model, family, f"{host.name} {host.version()}")


def is_generating() -> bool:
    """Return whether the host works on a job."""
    from modules import shared

    return bool(shared.state.job)
