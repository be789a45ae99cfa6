"""Every change that VRAM Guard makes to a host, with its undoing, in one place.

A change belongs to a run. It is undone when the run's processing object is closed (the hosts do
so however the run ends), when it is used again, when it is collected, or when the extension is
unloaded: whichever comes first. A run inside another run leaves the outer one's changes alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

_MISSING = object()


def _loosely(thing: Any) -> Callable[[], Any]:
    """Return what gives ``thing`` back without keeping it alive: an undo that waits must not hold a run's tensors."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


class Patches:
    """Changes of attributes and items, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; undoing gives the old one back, unless somebody else has set it since."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        owner_of, value_of = _loosely(owner), _loosely(value)

        def undo() -> None:
            owner, value = owner_of(), value_of()
            if owner is None or value is None or vars(owner).get(name, _MISSING) is not value:
                return
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def set_field(self, owner: Any, name: str, value: Any) -> None:
        """Set a field of a processing object, also where it is a property; undone while it still equals ``value``."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        owner_of = _loosely(owner)

        def undo() -> None:
            owner = owner_of()
            if owner is not None and getattr(owner, name) == value:
                setattr(owner, name, before)

        self._undo.append(undo)

    def set_item(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an item of a dict; undone while it is still ``value``."""
        before = mapping.get(key, _MISSING)
        mapping[key] = value

        def undo() -> None:
            if mapping.get(key, _MISSING) != value:
                return
            if before is _MISSING:
                del mapping[key]
            else:
                mapping[key] = before

        self._undo.append(undo)

    def undo(self) -> None:
        """Undo everything, the last change first; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


class Run:
    """The changes made for one run.

    ``of_run`` ends with the run. ``of_fields`` are values written into ``p``: they stay when the run
    has ended, because scripts read them from ``p``, and are taken back when the same ``p`` runs again.
    """

    def __init__(self, p: Any) -> None:
        self.p = weakref.ref(p)
        self.of_run = Patches()
        self.of_fields = Patches()
        self.active = True
        self.kept_bytes = 0
        """What this run has the host keep free while it samples, beyond the host's own reserve; 0 for nothing."""

    def end(self) -> None:
        """Undo what ends with the run; wrappers that others still hold pass through from now on."""
        self.active = False
        self.of_run.undo()


class Runs:
    """The runs that have changes to undo, at most one for each processing object."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}

    def of(self, p: Any) -> Run:
        """Return the run of ``p``, begun now if it has none."""
        return self.find(p) or self._begin(p)

    def find(self, p: Any) -> Run | None:
        """Return the run of ``p`` if it has one."""
        run = self._runs.get(id(p))
        return run if run is not None and run.p() is p else None

    def finish(self, p: Any) -> None:
        """End the run of ``p``, if it has one, and leave the fields that were written into it."""
        run = self.find(p)
        if run is not None:
            run.end()

    def end(self, p: Any) -> None:
        """End the run of ``p`` and take back the fields that were written into it, so that it can run again."""
        run = self._runs.pop(id(p), None)
        if run is not None:
            run.end()
            if run.p() is p:
                run.of_fields.undo()

    def end_all(self) -> None:
        """End every run, as when the extension is unloaded."""
        while self._runs:
            self._runs.popitem()[1].end()

    def _begin(self, p: Any) -> Run:
        run = Run(p)
        self._runs[id(p)] = run
        weakref.finalize(p, self._forget, id(p), run).atexit = False
        if hasattr(p, "close"):
            run.of_run.set_attribute(p, "close", _closing(run, p.close))
        return run

    def _forget(self, key: int, run: Run) -> None:
        run.end()
        if self._runs.get(key) is run:
            del self._runs[key]


def _closing(run: Run, close: Callable[[], None]) -> Callable[[], None]:
    def close_and_end() -> None:
        run.end()
        close()

    return close_and_end
