"""What a machine's deviations hang on beside the request: the versions of everything between it and the card."""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from pathlib import Path

import lib_vram
from lib_vram.learning.record import Machine
from lib_vram.request import Request

_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version", "/proc/sys/kernel/osrelease")
"""Where Linux tells a driver's version; that of amdgpu is the kernel's where it is not built apart."""


def machine_of(request: Request, host_version: str, *, virtual: bool = False) -> Machine:
    """Return where ``request`` runs. A ``virtual`` card has neither torch nor a driver."""
    return Machine(
        host=request.host,
        host_version=host_version,
        guard_version=lib_vram.__version__,
        torch="" if virtual else torch_version(),
        driver="virtual" if virtual else driver_version(),
        card=request.device.name,
        total_bytes=request.device.total_bytes,
        flags=request.host_args,
        alloc_conf=request.alloc_conf,
    )


def torch_version() -> str:
    """Return the version of torch where it is loaded, with its build: ``2.3.1+cu121``."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))


@lru_cache(maxsize=1)
def driver_version() -> str:
    """Return the version of the card's driver; ``""`` where nobody tells. Asked once: a new one needs a new start."""
    return _of_nvml() or next((found for found in map(_of_file, map(Path, _DRIVERS)) if found), "")


def _of_nvml() -> str:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - which errors there are is known only once the module is loaded
        return ""
    try:
        version = nvml.nvmlSystemGetDriverVersion()
        return version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
    except (nvml.NVMLError, AttributeError, OSError):
        return ""
    finally:
        nvml.nvmlShutdown()


def _of_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:80]
    except OSError:
        return ""
