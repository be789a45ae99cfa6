"""The latest error of a WebUI, as it keeps it itself: nothing is patched for it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any


def last_error() -> str | None:
    """Return the WebUI's latest error with its traceback, ``None`` when there is none.

    A1111 and its kin keep the last five in ``modules.errors.exception_records`` for their system information; Forge's
    and its kin's main thread keeps the last one of a run in ``modules_forge.main_thread.last_exception``.
    """
    return _of_main_thread() or _of_records()


def _of_main_thread() -> str | None:
    error = getattr(sys.modules.get("modules_forge.main_thread"), "last_exception", None)
    if not isinstance(error, BaseException):
        return None
    frames = "".join(traceback.format_tb(error.__traceback__))
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return f"Traceback (most recent call last):\n{frames}{name}: {error}"


def _of_records() -> str | None:
    records = getattr(sys.modules.get("modules.errors"), "exception_records", None)
    if not isinstance(records, list) or not records or not isinstance(records[-1], Mapping):
        return None
    frames = "".join(f"  File {_line(frame)}\n" for frame in records[-1].get("traceback") or ())
    return f"Traceback (most recent call last):\n{frames}{records[-1].get('exception', '')}"


def _line(frame: Any) -> str:
    return "\n    ".join(str(part) for part in frame) if isinstance(frame, (list, tuple)) else str(frame)
