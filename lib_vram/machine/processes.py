"""Names of programs by their process number."""

from __future__ import annotations

import importlib
from pathlib import PurePath
from types import ModuleType

_INTERPRETERS = ("python", "python3", "pythonw", "python.exe", "pythonw.exe")


def name_of(pid: int) -> str:
    """Return the name of process ``pid``, a Python program's with its script; ``""`` when it is gone or hidden."""
    psutil = _psutil()
    if psutil is None:
        return ""
    try:
        process = psutil.Process(pid)
        name = str(process.name())
    except (psutil.Error, OSError, ValueError):
        return ""
    if name.lower() not in _INTERPRETERS and not name.lower().startswith("python3."):
        return name
    return f"{name} {script}" if (script := _script(psutil, process)) else name


def _script(psutil: ModuleType, process: object) -> str:
    """Return the file or module that a Python runs, without its folder: enough to tell WebUIs apart."""
    try:
        arguments = process.cmdline()[1:]  # type: ignore[attr-defined]
    except (psutil.Error, OSError):
        return ""
    return next((PurePath(item).name for item in arguments if item and not item.startswith("-")), "")


def _psutil() -> ModuleType | None:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None
