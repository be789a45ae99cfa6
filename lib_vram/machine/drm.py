"""Each program's share of an AMD or Intel card under Linux, from the kernel's files.

``/proc/<pid>/fdinfo/<fd>`` of a descriptor of ``/dev/dri`` says what it has in the card's memory (kernel
documentation, "DRM client usage stats"), and ``/sys/class/kfd/kfd/proc/<pid>/vram_<gpu>`` what ROCm's compute holds
for a process. Another user's processes show neither.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

AGAIN_SECONDS = 10.0
"""It goes through the open files of every process of this user."""
REST_FACTOR = 400
"""Where that takes long, so many times as long passes until it is done again: a quarter of a percent of a core."""

PROC = Path("/proc")
KFD = Path("/sys/class/kfd/kfd/proc")
_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2}
_WHERE = ("vram", "vram0", "local0")
"""What the drivers call the card's own memory: amdgpu and xe, i915."""
_WHAT = ("drm-resident-", "drm-memory-", "drm-total-")
"""The best figure first: in the memory now, the same by its older name, ever asked for."""


class DrmReader:
    """Reads the files every ten seconds, less often where there are many."""

    def __init__(
        self, proc: Path = PROC, kfd: Path = KFD, clock: Callable[[], float] = time.monotonic, own: int | None = None
    ) -> None:
        self._proc, self._kfd, self._clock = proc, kfd, clock
        self._own = os.getpid() if own is None else own
        self._lock = threading.Lock()
        self._read_at, self._rest_seconds = float("-inf"), AGAIN_SECONDS
        self._found: dict[int, int] = {}

    def shares(self) -> dict[int, int]:
        """Return bytes by process, of the card that this process is on, or of the most used one."""
        with self._lock:
            if self._clock() - self._read_at >= self._rest_seconds:
                self._read_at, began = self._clock(), time.perf_counter()
                self._found = self._read()
                self._rest_seconds = max(AGAIN_SECONDS, REST_FACTOR * (time.perf_counter() - began))
            return self._found

    def _read(self) -> dict[int, int]:
        by_card: dict[str, dict[int, int]] = {}
        for pid, card, size in self._drm():
            sizes = by_card.setdefault(card, {})
            sizes[pid] = sizes.get(pid, 0) + size
        used = max(by_card.values(), key=lambda sizes: (sizes.get(self._own, 0), sum(sizes.values())), default={})
        for pid, size in self._compute():
            used[pid] = max(used.get(pid, 0), size)
        return {pid: size for pid, size in used.items() if size}

    def _drm(self) -> Iterator[tuple[int, str, int]]:
        """Yield process, card and bytes of every descriptor; one that is shared by several counts once."""
        seen: set[tuple[str, str]] = set()
        for folder in _entries(self._proc):
            if not folder.name.isdigit():
                continue
            for place in _entries(folder / "fd"):
                try:
                    if not os.readlink(place).startswith("/dev/dri/"):  # noqa: PTH115 - thousands of them
                        continue
                    text = (folder / "fdinfo" / place.name).read_text(encoding="ascii", errors="replace")
                except OSError:
                    continue  # closed meanwhile
                fields = dict(line.partition(":")[::2] for line in text.splitlines())
                card, client = fields.get("drm-pdev", "").strip(), fields.get("drm-client-id", "").strip()
                if (card, client) not in seen:
                    seen.add((card, client))
                    yield int(folder.name), card, _vram_bytes(fields)

    def _compute(self) -> Iterator[tuple[int, int]]:
        for folder in _entries(self._kfd):
            sizes = [_number(path) for path in _entries(folder) if path.name.startswith("vram_")]
            if folder.name.isdigit():
                yield int(folder.name), max(sizes, default=0)


def _vram_bytes(fields: dict[str, str]) -> int:
    for what in _WHAT:
        for where in _WHERE:
            number, _, unit = fields.get(what + where, "").strip().partition(" ")
            if number.isdigit():
                return int(number) * _UNITS.get(unit.strip(), 1)
    return 0


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing where we may not look, or once the process is gone."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
