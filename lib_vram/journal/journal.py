"""The journal: what this session does, on disk line by line, so that it outlives a kill, a driver reset, a power cut.

A generation only puts its event into a queue. A thread of the journal's own writes, flushes and syncs, and while a
generation runs it adds a reading of the memory every second: the last one is what was left when the process died.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

logger = logging.getLogger("vram_guard")

SEGMENT_BYTES = 128 * 1024
"""A session has at most two such files: the one being written and the one before it."""
MOST_FILES = 8
"""Files of sessions, this one's among them; older ones are deleted when a new one begins."""
SAMPLE_SECONDS = 1.0
SYNC_SECONDS = 5.0
"""Events are synced to the disk at once, readings this often: a power cut loses the last few."""
PATTERN = "session-*.jsonl"

_STOP: tuple[str, dict[str, Any]] = ("stop", {})


class Journal:
    """Writes the events of one session. Nothing is made or started before the first event; a full disk ends it.

    ``sample`` returns the memory as it is now, by name; it is called on the journal's thread alone.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], sample: Callable[[], Mapping[str, Any]]) -> None:
        self.path = folder / f"session-{int(time.time())}-{os.getpid()}.jsonl"
        self._header = dict(header)
        self._sample = sample
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._broken = False
        self._last_run: dict[str, Any] = {}
        self._synced_at = 0.0

    def write(self, event: str, **values: Any) -> None:
        """Note ``event`` with its ``values``; returns at once."""
        if self._broken:
            return
        self._queue.put((event, {"t": round(time.time(), 3), **values}))
        if self._thread is None:
            self._start()

    def close(self, timeout_seconds: float = 2.0) -> None:
        """Note that the session ended in order, and wait for the last line to be written."""
        thread = self._thread
        if thread is None:
            return
        self.write("end")
        self._queue.put(_STOP)
        thread.join(timeout_seconds)

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="vram-guard-journal", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _work(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _delete_old(self.path.parent)
            self._write_all()
        except Exception as fault:  # noqa: BLE001  whatever it is: nobody takes events out of the queue any more
            self._broken = True
            logger.warning("VRAM Guard keeps no journal: %s: %s", type(fault).__name__, fault)

    def _write_all(self) -> None:
        file = self._open()
        try:
            running = True
            while running:
                if file.tell() > SEGMENT_BYTES:
                    file.close()
                    self.path.replace(self.path.with_suffix(".old.jsonl"))
                    file = self._open()
                running = self._write_next(file)
        finally:
            file.close()

    def _open(self) -> TextIO:
        file = self.path.open("a", encoding="utf-8")
        self._put(file, "session", {"t": round(time.time(), 3), "pid": os.getpid(), **self._header})
        if self._last_run:
            self._put(file, "run", self._last_run)
        return file

    def _write_next(self, file: TextIO) -> bool:
        """Write the next event, or a reading of the memory when none comes while a generation runs."""
        try:
            event, values = self._queue.get(timeout=SAMPLE_SECONDS if self._last_run else None)
        except queue.Empty:
            event, values = "memory", {"t": round(time.time(), 3), **self._sampled()}
        if event == "stop":
            return False
        if event == "run":
            self._last_run = values
            values = {**values, **self._sampled()}
        elif event in ("done", "failed"):
            self._last_run = {}
        self._put(file, event, values)
        return True

    def _sampled(self) -> Mapping[str, Any]:
        """Return a reading of the memory; nothing where a driver or a counter fails."""
        try:
            return self._sample()
        except Exception:  # one reading less; the events are what matters
            logger.debug("VRAM Guard could not read the memory for its journal", exc_info=True)
            return {}

    def _put(self, file: TextIO, event: str, values: Mapping[str, Any]) -> None:
        file.write(json.dumps({"e": event, **values}, separators=(",", ":"), default=str) + "\n")
        file.flush()
        now = time.monotonic()
        if event != "memory" or now - self._synced_at > SYNC_SECONDS:
            os.fsync(file.fileno())
            self._synced_at = now


def _delete_old(folder: Path) -> None:
    """Keep the newest files alone; one that another WebUI still has open under Windows stays."""
    files = sorted(folder.glob(PATTERN), key=lambda path: path.name)
    for path in files[: -MOST_FILES + 1]:
        try:
            path.unlink()
        except OSError as fault:
            logger.debug("an old journal stays: %s", fault)
