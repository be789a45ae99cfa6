"""The latest error of a WebUI and whether it is at work, as it keeps both itself: nothing is patched for it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any


class WebuiErrors:
    """Reads what the WebUI remembers; answers ``None`` where it remembers nothing.

    A1111 and its kin keep the last five errors in ``modules.errors.exception_records`` for their system information;
    Forge's main thread keeps the last one of a run in ``modules_forge.main_thread.last_exception``.
    """

    def mark(self) -> int | None:
        """Return a number that is another one after the next error."""
        latest = _of_main_thread() or _of_records()
        return None if latest is None else id(latest)

    def text(self) -> str | None:
        """Return the latest error with its traceback."""
        error = _of_main_thread()
        if error is not None:
            frames = "".join(traceback.format_tb(error.__traceback__))
            name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
            return f"Traceback (most recent call last):\n{frames}{name}: {error}"
        record = _of_records()
        if record is None:
            return None
        frames = "".join(f"  File {_line(frame)}\n" for frame in record.get("traceback") or ())
        return f"Traceback (most recent call last):\n{frames}{record.get('exception', '')}"

    def job(self) -> float | None:
        """Return when the job at work began, ``None`` when there is none; runs inside a run share it."""
        state = getattr(sys.modules.get("modules.shared"), "state", None)
        begun = getattr(state, "time_start", None)
        return begun if getattr(state, "job", "") and isinstance(begun, float) else None


def _of_main_thread() -> BaseException | None:
    error = getattr(sys.modules.get("modules_forge.main_thread"), "last_exception", None)
    return error if isinstance(error, BaseException) else None


def _of_records() -> Mapping[str, Any] | None:
    records = getattr(sys.modules.get("modules.errors"), "exception_records", None)
    if not isinstance(records, list) or not records or not isinstance(records[-1], Mapping):
        return None
    return records[-1]


def _line(frame: Any) -> str:
    return "\n    ".join(str(part) for part in frame) if isinstance(frame, (list, tuple)) else str(frame)
