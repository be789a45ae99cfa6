"""Changes that a person has taken back: after the second time they are not offered again by themselves.

Counted by the rung of the ladder, in one small file in the extension's own data folder, until they are to be
offered again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from lib_vram.plan.levers import LEVERS

logger = logging.getLogger("vram_guard")

FILE = Path(os.environ.get("VRAM_GUARD_DATA") or Path(__file__).resolve().parents[2] / "data") / "undone.json"
TOO_OFTEN = 2


class Undone:
    """How often each change was taken back; without a ``path`` it is remembered as long as the process lives.

    Never raises for the file: one that cannot be read counts as none, one that cannot be written is said once.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._read_at: int | None = None

    def note(self, levers: Iterable[str]) -> None:
        """Count each of ``levers`` as taken back once more; unknown names are passed over."""
        with self._lock:
            counts = self._read()
            for lever in sorted({name for name in levers if name in LEVERS}):
                counts[lever] = counts.get(lever, 0) + 1
            self._write(counts)

    def too_often(self) -> tuple[str, ...]:
        """Return the changes that are no longer offered, in the order of the table of levers."""
        with self._lock:
            counts = self._read()
        return tuple(lever for lever in LEVERS if counts.get(lever, 0) >= TOO_OFTEN)

    def forget(self) -> None:
        """Offer everything again."""
        with self._lock:
            self._write({})

    def _read(self) -> dict[str, int]:
        """Return the counts, from the file when another process has written it since."""
        if self._path is None:
            return dict(self._counts)
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at != self._read_at:
                self._counts = _counts_in(self._path.read_text(encoding="utf-8"))
                self._read_at = changed_at
        except FileNotFoundError:
            if self._read_at is not None:
                self._counts, self._read_at = {}, None
        except (OSError, ValueError) as fault:
            logger.debug("VRAM Guard: %s is not readable: %s", self._path, fault)
        return dict(self._counts)

    def _write(self, counts: dict[str, int]) -> None:
        self._counts = counts
        if self._path is None:
            return
        written = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            written.replace(self._path)
            self._read_at = self._path.stat().st_mtime_ns
        except OSError as fault:
            logger.warning("VRAM Guard cannot remember what was undone: %s", fault)
            self._path = None


def _counts_in(text: str) -> dict[str, int]:
    """Return the counts in a file's text; what is no count is passed over.

    Raises:
        ValueError: it is no JSON object.
    """
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return {name: count for name, count in data.items() if type(count) is int and name in LEVERS}
