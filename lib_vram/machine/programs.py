"""The programs on a card, named as what they are, and the end of one that nobody can reach any more.

A process is known by its number *and* the time at which it started: a number alone may belong to another by now.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from lib_vram.machine.card import Holder
from lib_vram.machine.kinds import Kind, is_python, kind_of, script_of, webui_name

OLD_SECONDS = 600.0
"""A WebUI without a port is still starting for up to so long: a first start downloads for minutes."""
IDLE_SECONDS = 20.0
IDLE_SHARE = 0.05
"""What was left behind does nothing: over so many seconds it uses no more of a core. One that starts slowly does."""
SAME_START_SECONDS = 0.05
"""The same start, twice read and once written as decimal text."""
LEFT_AGAIN_SECONDS = 60.0
LEFT_SOON_SECONDS = 25.0
"""How often left-behind WebUIs are looked for, sooner when one may be; it goes through all processes."""
GOES_SECONDS = 3.0
"""How long an ended process may take to close by itself before it is closed."""

Ended = Literal["ended", "gone", "changed", "not_yours", "not_zombie", "refused", "no_psutil"]


@dataclass(frozen=True)
class Program:
    """One process. ``started`` is in seconds since the epoch, sizes in bytes; ``None`` is not known."""

    pid: int
    started: float | None
    name: str
    """As the system gives it, a Python program's with its script: escaped where it is shown."""
    kind: Kind
    webui: str = ""
    """The WebUI's name, for kinds ``webui`` and ``zombie``."""
    used_bytes: int | None = None
    shared_bytes: int | None = None
    """What the driver has moved to RAM for it (Windows)."""
    is_own_user: bool = False

    @property
    def can_end(self) -> bool:
        """Whether the page offers to end it: only what nobody can reach any more, and only the user's own."""
        return self.kind == "zombie" and self.is_own_user and self.started is not None


@dataclass(frozen=True)
class _Facts:
    """What of a process does not change while it lives."""

    started: float
    name: str
    command: tuple[str, ...]
    folder: str
    kind: Kind
    is_own_user: bool


@dataclass(frozen=True)
class _Work:
    """How much of the processors a process had used ``at`` a moment, and whether it had been idle until then."""

    at: float
    seconds: float
    was_idle: bool | None = None


class ProgramReader:
    """Names the holders of a card, and finds WebUIs that were left behind. Remembers what does not change."""

    def __init__(
        self,
        psutil: Callable[[], Any] = lambda: _psutil(),
        clock: Callable[[], float] = time.time,
        own: int | None = None,
    ) -> None:
        self._psutil = psutil
        self._clock = clock
        self._own = os.getpid() if own is None else own
        self._lock = threading.Lock()
        self._facts: dict[tuple[int, float], _Facts] = {}
        self._left: tuple[Program, ...] = ()
        self._left_at, self._left_rest = float("-inf"), LEFT_AGAIN_SECONDS
        self._work: dict[tuple[int, float], _Work] = {}

    def programs(
        self, holders: Iterable[Holder], shared: Mapping[int, int] | None = None, *, made_up: bool = False
    ) -> tuple[Program, ...]:
        """Return ``holders`` as programs, the largest first, and after them left-behind WebUIs that are not among them.

        ``shared`` is what the driver has moved to RAM for each process. The holders of a virtual card are
        ``made_up``: their numbers mean nothing to the system.
        """
        with self._lock:
            if made_up:
                found = [_made_up(item) for item in holders]
            else:
                found = [self._program(item, (shared or {}).get(item.pid)) for item in holders]
            known = {item.pid for item in found}
            rest = [item for item in self._left_behind() if item.pid not in known]
        return (*sorted(found, key=lambda item: -(item.used_bytes or 0)), *rest)

    def end(self, pid: int, started: float) -> Ended:
        """End process ``pid`` that started at ``started``, if it is a left-behind WebUI of this user.

        Every condition is checked anew, now. Returns what came of it.
        """
        psutil = self._psutil()
        if psutil is None:
            return "no_psutil"
        try:
            process = psutil.Process(pid)
            facts = self._read(psutil, process)
        except psutil.NoSuchProcess:
            return "gone"
        except (psutil.Error, OSError):
            return "not_yours"
        if abs(facts.started - started) > SAME_START_SECONDS:
            return "changed"
        if not facts.is_own_user:
            return "not_yours"
        if self._kind(psutil, process, facts) != "zombie":
            return "not_zombie"
        self._left_at = float("-inf")
        return _closed(psutil, process)

    def _program(self, holder: Holder, shared_bytes: int | None) -> Program:
        psutil = self._psutil()
        facts = None
        if psutil is not None:
            try:
                process = psutil.Process(holder.pid)
                facts = self._known(psutil, process)
                kind = self._kind(psutil, process, facts)
            except (psutil.Error, OSError, ValueError):
                facts = None
        if facts is None:
            kind = "this" if holder.pid == self._own else kind_of(holder.name)
            return Program(holder.pid, None, holder.name, kind, used_bytes=holder.used_bytes, shared_bytes=shared_bytes)
        return Program(
            holder.pid, facts.started, holder.name or facts.name, kind, webui_name(facts.command, facts.folder),
            holder.used_bytes, shared_bytes, facts.is_own_user,
        )  # fmt: skip

    def _left_behind(self) -> tuple[Program, ...]:
        """Return the user's WebUIs that nobody can reach, of all processes; looked for once a minute."""
        if self._clock() - self._left_at < self._left_rest:
            return self._left
        self._left_at = self._clock()
        psutil = self._psutil()
        self._left = tuple(self._search(psutil)) if psutil is not None else ()
        undecided = any(item.was_idle is None for item in self._work.values())
        self._left_rest = LEFT_SOON_SECONDS if undecided else LEFT_AGAIN_SECONDS
        return self._left

    def _search(self, psutil: Any) -> Iterator[Program]:
        alive = set()
        for process in psutil.process_iter():
            try:
                if not is_python(process.name()):
                    continue
                facts = self._known(psutil, process)
                alive.add((process.pid, facts.started))
                if facts.is_own_user and self._kind(psutil, process, facts) == "zombie":
                    name = webui_name(facts.command, facts.folder)
                    yield Program(process.pid, facts.started, facts.name, "zombie", name, is_own_user=True)
            except (psutil.Error, OSError, ValueError):
                continue

    def _known(self, psutil: Any, process: Any) -> _Facts:
        key = (int(process.pid), float(process.create_time()))
        if key not in self._facts:
            if len(self._facts) > 512:
                self._facts.clear()
            self._facts[key] = self._read(psutil, process)
        return self._facts[key]

    def _read(self, psutil: Any, process: Any) -> _Facts:
        name = str(process.name())
        command = _asked(psutil, process.cmdline, ())
        folder = str(_asked(psutil, process.cwd, ""))
        program = str(_asked(psutil, process.exe, ""))
        kind = kind_of(name, tuple(command), folder, program)
        return _Facts(
            started=float(process.create_time()),
            name=_shown(name, tuple(command)),
            command=tuple(command),
            folder=folder,
            kind=kind,
            is_own_user=_is_own_user(psutil, process),
        )

    def _kind(self, psutil: Any, process: Any, facts: _Facts) -> Kind:
        """Return the kind as it is now: a WebUI of one's own that answers at no port, old enough, is left behind."""
        if process.pid == self._own:
            return "this"
        if facts.kind != "webui" or not facts.is_own_user:
            return facts.kind
        if self._clock() - facts.started < OLD_SECONDS or self._is_family(psutil, process):
            return "webui"
        return "zombie" if _answers_nowhere(psutil, process) and self._is_idle(psutil, process, facts) else "webui"

    def _is_idle(self, psutil: Any, process: Any, facts: _Facts) -> bool:
        """Whether it has done next to nothing since it was looked at before; on the first look that is not known."""
        key, now = (int(process.pid), facts.started), self._clock()
        before = self._work.get(key)
        if before is not None and now - before.at < IDLE_SECONDS:
            return before.was_idle is True
        try:
            times = process.cpu_times()
        except (psutil.Error, OSError):
            return False
        seconds = float(times.user + times.system)
        idle = None if before is None else seconds - before.seconds <= IDLE_SHARE * (now - before.at)
        if len(self._work) > 512:
            self._work.clear()
        self._work[key] = _Work(now, seconds, idle)
        return idle is True

    def _is_family(self, psutil: Any, process: Any) -> bool:
        """Whether it is a parent or a child of this process: launchers wait there, and workers belong to it."""
        try:
            own = psutil.Process(self._own)
            family = [item.pid for item in [*own.parents(), *own.children(recursive=True)]]
        except (psutil.Error, OSError):
            return True  # not known: then it is left alone
        return process.pid in family


def _shown(name: str, command: tuple[str, ...]) -> str:
    """Return a Python's name with its script, another's as it is."""
    script = script_of(command).rpartition("/")[2] if is_python(name) else ""
    return f"{name} {script}" if script else name


def _made_up(holder: Holder) -> Program:
    return Program(holder.pid, None, holder.name, kind_of(holder.name), used_bytes=holder.used_bytes)


def _asked(psutil: Any, question: Callable[[], Any], instead: Any) -> Any:
    """Return what a process says of itself, ``instead`` where we may not ask."""
    try:
        return question() or instead
    except psutil.NoSuchProcess:
        raise
    except (psutil.Error, OSError):
        return instead


def _is_own_user(psutil: Any, process: Any) -> bool:
    """Whether this user started it. Another's rights or a container's numbers end in no."""
    try:
        if hasattr(os, "getuid"):
            real, effective, _ = process.uids()
            return bool(real == effective == os.getuid())
        return bool(process.username() == psutil.Process(os.getpid()).username())
    except (psutil.Error, OSError, AttributeError):
        return False


def _answers_nowhere(psutil: Any, process: Any) -> bool:
    """Whether neither it nor a Python around it listens: under Windows a venv's Python is two processes."""
    try:
        around = [*process.children(recursive=True), *(item for item in process.parents() if is_python(item.name()))]
    except (psutil.Error, OSError):
        return False
    return all(_has_no_port(psutil, item) for item in [process, *around])


def _has_no_port(psutil: Any, process: Any) -> bool:
    """Whether it listens nowhere; where that may not be asked, it is taken to."""
    asked = getattr(process, "net_connections", None) or process.connections
    try:
        return all(item.status != psutil.CONN_LISTEN for item in asked(kind="inet"))
    except (psutil.Error, OSError):
        return False


def _closed(psutil: Any, process: Any) -> Ended:
    """Ask the process to end, and make it. psutil compares the time of its start once more before each signal."""
    try:
        process.terminate()
        if _goes_on(psutil, process):
            process.kill()
            return "refused" if _goes_on(psutil, process) else "ended"
    except psutil.NoSuchProcess:
        pass
    except (psutil.Error, OSError):
        return "refused"
    return "ended"


def _goes_on(psutil: Any, process: Any) -> bool:
    """Whether it is still there after a while. One that has ended and that nobody has asked about holds nothing."""
    _, alive = psutil.wait_procs([process], timeout=GOES_SECONDS)
    return any(item.status() != psutil.STATUS_ZOMBIE for item in alive)


def _psutil() -> ModuleType | None:
    try:
        return importlib.import_module("psutil")
    except ImportError:
        return None
