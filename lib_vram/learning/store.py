"""The file that a machine's runs are kept in: SQLite, shared by every WebUI that runs from this folder.

Each piece of work opens the file and closes it again, so that nothing is held between runs and the file can be
deleted. Two WebUIs wait for each other; one that is killed while it writes leaves a journal that undoes the half.
A file that is none, or is damaged, is set aside under another name and a new one is begun.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from lib_vram.learning.record import Machine, Rescue, Run, run_of
from lib_vram.message import Message, say

logger = logging.getLogger("vram_guard")

FOLDER = Path(os.environ.get("VRAM_GUARD_DATA") or Path(__file__).resolve().parents[2] / "data") / "history"
"""In the extension's own folder, or in the one that the variable names; made with the first run."""
FILE = "runs.sqlite3"
VERSION = 1
"""Of the tables. A file of a later version is left alone."""
MOST_RUNS = 5000
MOST_RESCUES = 500
WAIT_SECONDS = 3.0
"""How long another WebUI may write before this one gives up on keeping a run."""

_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, machine TEXT NOT NULL, family TEXT NOT NULL,
    outcome TEXT NOT NULL, run TEXT NOT NULL
);
CREATE INDEX runs_by_machine ON runs (machine, id);
CREATE TABLE rescues (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, rescue TEXT NOT NULL);
"""

T = TypeVar("T")

_keep: list[Callable[[Rescue], None]] = []
"""Where :func:`record_rescue` puts what it is told: the recorder in use, at most one."""


def use(keep: Callable[[Rescue], None] | None) -> None:
    """Let ``keep`` hear of every rescue from now on; ``None`` for nobody."""
    _keep[:] = [keep] if keep is not None else []


def record_rescue(
    phase: str, action: str, *, is_rescued: bool, host: str = "", family: str = "", images: int = 0,
    seconds: float | None = None,
) -> None:  # fmt: skip
    """Note that the run at work ran out of memory in ``phase`` and what became of it. Returns at once, never raises.

    ``action`` is what was done: as the plan's steps are named (``"vae_tiled"``), as the infotext says it (``"batch 4x1
    -> 2x2"``), or ``"again"``; ``images`` is how
    many pictures of the run are whole in the end; ``seconds`` what it cost in time.
    """
    for keep in tuple(_keep):
        keep(Rescue(time.time(), host, phase, action, is_rescued, images, seconds, family))


class Store:
    """The file of runs in ``folder``. Never raises: what cannot be kept or read is said once and done without."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.path = folder / FILE
        self.note: Message | None = None
        """What is wrong with the file, for people; ``None`` while all is well."""
        self._said = False
        self._failed_writing = False
        self._lock = threading.Lock()

    def add(self, run: Run) -> None:
        """Keep ``run``, and of older ones the newest :data:`MOST_RUNS`."""
        text = json.dumps(run.to_dict(), separators=(",", ":"))
        family = str(run.request.get("model", {}).get("family", ""))

        def work(file: sqlite3.Connection) -> None:
            added = file.execute(
                "INSERT INTO runs (at, machine, family, outcome, run) VALUES (?, ?, ?, ?, ?)",
                (run.at, run.machine.key, family, run.outcome, text),
            )
            file.execute("DELETE FROM runs WHERE id <= ?", ((added.lastrowid or 0) - MOST_RUNS,))

        self._write(work)

    def add_rescue(self, rescue: Rescue) -> None:
        """Keep ``rescue``."""
        text = json.dumps(dataclasses.asdict(rescue), separators=(",", ":"))

        def work(file: sqlite3.Connection) -> None:
            added = file.execute("INSERT INTO rescues (at, rescue) VALUES (?, ?)", (rescue.at, text))
            file.execute("DELETE FROM rescues WHERE id <= ?", ((added.lastrowid or 0) - MOST_RESCUES,))

        self._write(work)

    def runs(self, machine: str | None = None, most: int = 500) -> tuple[Run, ...]:
        """Return the newest runs, of one machine's key or of all, oldest first."""
        where, values = ("WHERE machine = ?", (machine,)) if machine is not None else ("", ())

        def work(file: sqlite3.Connection) -> list[str]:
            query = f"SELECT run FROM runs {where} ORDER BY id DESC LIMIT ?"
            return [row[0] for row in file.execute(query, (*values, most))]

        return _read_all(self._read(work), run_of)

    def machines(self, most: int = 50) -> tuple[Machine, ...]:
        """Return on which machines the runs were made, the one of the newest run first."""

        def work(file: sqlite3.Connection) -> list[str]:
            newest = "SELECT max(id) FROM runs GROUP BY machine ORDER BY max(id) DESC LIMIT ?"
            query = f"SELECT run FROM runs WHERE id IN ({newest}) ORDER BY id DESC"
            return [row[0] for row in file.execute(query, (most,))]

        return tuple(run.machine for run in reversed(_read_all(self._read(work), run_of)))

    def rescues(self, most: int = 100) -> tuple[Rescue, ...]:
        """Return the newest rescues, oldest first."""

        def work(file: sqlite3.Connection) -> list[str]:
            return [row[0] for row in file.execute("SELECT rescue FROM rescues ORDER BY id DESC LIMIT ?", (most,))]

        return _read_all(self._read(work), lambda data: Rescue(**data))

    def stamp(self) -> str:
        """Return a text that is another one as soon as anything is kept or erased."""

        def work(file: sqlite3.Connection) -> list[str]:
            query = "SELECT (SELECT ifnull(max(id), 0) || '-' || count(*) FROM {0})"
            return [file.execute(query.format(table)).fetchone()[0] for table in ("runs", "rescues")]

        return "-".join((*self._read(work), self.note.key if self.note else ""))

    def erase(self) -> bool:
        """Forget everything, damaged files that were set aside among it; return whether all of it is gone."""
        try:
            for path in self.path.parent.glob(f"{self.path.stem}.damaged-*"):
                path.unlink(missing_ok=True)
        except OSError as fault:  # Windows deletes no file that another program has open
            self._say(say("learning.no_file", reason=str(fault.strerror or fault)), fault)
            return False
        if not self.path.exists():
            return True

        def work(file: sqlite3.Connection) -> bool:
            file.execute("DELETE FROM runs")
            file.execute("DELETE FROM rescues")
            return True

        done = self._do(work, False, writes=True, vacuum=True)
        self.note = None if done else self.note
        return done

    def _write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            self._failed_writing = True
            self._say(say("learning.no_file", reason=str(fault.strerror or fault)), fault)
            return
        self._do(work, None, writes=True)

    def _read(self, work: Callable[[sqlite3.Connection], list[str]]) -> list[str]:
        """Return the rows that ``work`` finds, newest first, turned round."""
        nothing: list[str] = []
        return self._do(work, nothing)[::-1] if self.path.exists() else nothing

    def _do(
        self, work: Callable[[sqlite3.Connection], T], otherwise: T, *, writes: bool = False, vacuum: bool = False
    ) -> T:
        with self._lock:
            for is_last in (False, True):
                try:
                    with self._opened() as file:
                        with file:
                            result = work(file)
                        if vacuum:
                            file.execute("VACUUM")
                    self._well(writes=writes)
                    return result
                except sqlite3.OperationalError as fault:  # busy, full, read-only: a fault of the moment
                    self._failed_writing = writes
                    self._say(say("learning.no_file", reason=str(fault)), fault)
                    return otherwise
                except sqlite3.DatabaseError as fault:
                    if is_last or not self._set_aside(fault):
                        return otherwise
        return otherwise

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_SECONDS)) as file:
            file.execute("PRAGMA secure_delete = ON")
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                _make_tables(file)
            elif version != VERSION:
                raise sqlite3.OperationalError(f"it is of version {version}")
            yield file

    def _set_aside(self, fault: sqlite3.DatabaseError) -> bool:
        """Give a damaged file another name, unless another WebUI has just done so."""
        if _is_sound(self.path):
            return True
        aside = self._free_name()
        try:
            self.path.replace(aside)
            self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
        except OSError as more:
            self._say(say("learning.no_file", reason=str(more.strerror or more)), more)
            return False
        self._say(say("learning.damaged", name=aside.name), fault)
        return True

    def _free_name(self) -> Path:
        """Return a name that no file has yet that was set aside before, in the same second or under another clock."""
        stamp, number = int(time.time()), 0
        while (aside := self.path.with_name(f"{self.path.stem}.damaged-{stamp + number}.sqlite3")).exists():
            number += 1
        return aside

    def _well(self, *, writes: bool) -> None:
        """What was a fault of the moment is over; that a file was set aside stays worth saying.

        That it can be read does not say that it can be written again.
        """
        if self.note is not None and self.note.key == "learning.no_file" and (writes or not self._failed_writing):
            self.note, self._failed_writing = None, False

    def _say(self, note: Message, fault: Exception) -> None:
        self.note = note
        if not self._said:
            self._said = True
            logger.warning("VRAM Guard: %s (%s)", note, fault)


def _make_tables(file: sqlite3.Connection) -> None:
    """Make the tables, unless another process has made them since this one looked."""
    with file:
        file.execute("BEGIN IMMEDIATE")
        if file.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {VERSION}")


def _is_sound(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(path, timeout=WAIT_SECONDS)) as file:
            return bool(file.execute("PRAGMA quick_check").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False


def _read_all(texts: list[str], of: Callable[[Any], T]) -> tuple[T, ...]:
    """Return what ``texts`` hold; rows that a later version wrote otherwise are passed over."""
    found = []
    for text in texts:
        try:
            found.append(of(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(found)
