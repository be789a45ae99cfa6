"""Every change that VRAM Guard makes to a host, with its undoing, in one place.

A change belongs to a run. It is undone when the run's processing object is closed (the hosts do
so however the run ends), when it is used again, when it is collected, or when the extension is
unloaded: whichever comes first. A run inside another run leaves the outer one's changes alone.

Other scripts copy a processing object (``copy.copy``) while it runs, and with it what we have put on it: such a
copy is known by its ``close``, and what belongs to the original is taken off before the copy runs by itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, MutableMapping
from types import MethodType
from typing import Any, ClassVar

from lib_vram.guard.fail_open import fail_open

RUN = "vram_guard_run"
"""Attribute of our ``close`` that names its run."""

_MISSING = object()


def _loosely(thing: Any) -> Callable[[], Any]:
    """Return what gives ``thing`` back without keeping it alive: an undo that waits must not hold a run's tensors."""
    if isinstance(thing, MethodType):
        return weakref.WeakMethod(thing)
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


class _Layer:
    """One of our values of a dict's item. Runs may end in another order than they began in."""

    _lock = threading.RLock()  # a run that is collected ends on whatever thread is at work, also within one of these
    _all: ClassVar[dict[tuple[int, str], list[_Layer]]] = {}
    """By dict and key, the newest last."""

    def __init__(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        self._mapping, self._key, self._value = mapping, key, value
        with self._lock:
            self._before = mapping.get(key, _MISSING)
            self._all.setdefault((id(mapping), key), []).append(self)
            mapping[key] = value

    def take_off(self) -> None:
        """Give back what was there before; where a newer one lies over it, that gives it back when it goes."""
        place = (id(self._mapping), self._key)
        with self._lock:
            layers = self._all[place]
            above = layers[layers.index(self) + 1 :][:1]
            layers.remove(self)
            if not layers:
                del self._all[place]
            if above:
                if above[0]._before == self._value:
                    above[0]._before = self._before
            elif self._mapping.get(self._key, _MISSING) == self._value:
                self._give_back()

    def _give_back(self) -> None:
        if self._before is _MISSING:
            del self._mapping[self._key]
        else:
            self._mapping[self._key] = self._before


class Patches:
    """Changes of attributes and items, undone in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], bool]] = []

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; undoing gives the old one back, once nobody else's lies over it."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        owner_of, value_of = _loosely(owner), _loosely(value)

        def undo() -> bool:
            owner, value = owner_of(), value_of()
            return owner is None or value is None or _give_back(owner, name, value, before)

        self._undo.append(undo)

    def set_field(self, owner: Any, name: str, value: Any) -> None:
        """Set a field of a processing object, also where it is a property; undone while it still equals ``value``."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        owner_of = _loosely(owner)

        def undo() -> bool:
            owner = owner_of()
            if owner is not None and getattr(owner, name) == value:
                setattr(owner, name, before)
            return True

        self._undo.append(undo)

    def set_item(self, mapping: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an item of a dict; undone while it is still ``value``, also when another run's lies over it."""
        layer = _Layer(mapping, key, value)

        def undo() -> bool:
            layer.take_off()
            return True

        self._undo.append(undo)

    def call_when_undone(self, action: Callable[[], object]) -> None:
        """Call ``action``, once, when its turn to be undone comes: after what was changed later is as it was."""

        def undo() -> bool:
            action()
            return True

        self._undo.append(undo)

    def undo(self) -> bool:
        """Undo everything, the last change first; a second call tries again what was covered by somebody else's.

        One that fails keeps no other from its turn, and is not tried again. Returns whether nothing is left to undo.
        """
        changes, self._undo = self._undo, []
        self._undo = [undo for undo in reversed(changes) if not _undone(undo)][::-1]
        return not self._undo


@fail_open(instead=lambda *_: True)
def _undone(undo: Callable[[], bool]) -> bool:
    return undo()


def _give_back(owner: Any, name: str, value: Any, before: Any) -> bool:
    """Undo one attribute of ``owner``; False when what is there now is not ``value`` and may still rest on it."""
    now = vars(owner).get(name, _MISSING)
    if now is not value:
        return now is before or not callable(now)
    if before is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
    return True


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
        self._on_p: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = []
        self.job: float | None = None
        """Which of the host's jobs the run belongs to; runs inside a run share it."""

    def end(self) -> bool:
        """Undo what ends with the run; wrappers that others still hold pass through from now on.

        Returns whether nothing is left to undo: what another extension has covered waits for another call.
        """
        self.active = False
        return self.of_run.undo()

    def wrap(self, p: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Set a method of ``p`` for this run, so that a copy of ``p`` can be told to be without it."""
        under = vars(p).get(name, _MISSING)
        self._on_p.append((name, weakref.ref(wrapper), _loosely(under)))
        self.of_run.set_attribute(p, name, wrapper)

    def take_off(self, copy: Any) -> None:
        """Take what :meth:`wrap` set on the original off ``copy``: it would go on acting upon the original."""
        for name, wrapper_of, under_of in reversed(self._on_p):
            wrapper = wrapper_of()
            if wrapper is not None:
                _give_back(copy, name, wrapper, under_of())


class Runs:
    """The runs that have changes to undo, at most one for each processing object."""

    def __init__(self, job: Callable[[], float | None] = lambda: None) -> None:
        self._job = job
        self._runs: dict[int, Run] = {}
        self._covered: list[Run] = []
        """Ended, with a change that was covered by another extension's when it was to be undone."""

    def of(self, p: Any) -> Run:
        """Return the run of ``p``, begun now if it has none."""
        return self.find(p) or self._begin(p)

    def find(self, p: Any) -> Run | None:
        """Return the run of ``p`` if it has one."""
        run = self._runs.get(id(p))
        return run if run is not None and run.p() is p else None

    def outer_of(self, p: Any) -> Run | None:
        """Return the run that is going on of which ``p`` is a copy, ``None`` when ``p`` is no such copy."""
        run = getattr(vars(p).get("close"), RUN, None)
        original = run.p() if run is not None and run.active else None
        return run if original is not None and original is not p else None

    def release(self, p: Any) -> None:
        """Make ``p``, when it is a copy of an object that has a run, independent of that object."""
        run = getattr(vars(p).get("close"), RUN, None)
        if run is not None and run.p() is not p:
            run.take_off(p)

    def finish(self, p: Any) -> None:
        """End the run of ``p``, if it has one, and leave the fields that were written into it."""
        run = self.find(p)
        if run is not None:
            self._end(run)

    def end(self, p: Any) -> None:
        """End the run of ``p`` and take back the fields that were written into it, so that it can run again."""
        run = self._runs.pop(id(p), None)
        if run is not None:
            self._end(run)
            if run.p() is p:
                run.of_fields.undo()

    def end_left_over(self) -> None:
        """End the runs of jobs that are over: a failed cell of a grid is a copy that nobody closes."""
        job = self._job()
        over = [] if job is None else [key for key, run in self._runs.items() if run.job not in (None, job)]
        for key in over:
            self._end(self._runs.pop(key))

    def end_all(self) -> None:
        """End every run, as when the extension is unloaded."""
        while self._runs:
            self._end(self._runs.popitem()[1])

    def _end(self, run: Run) -> None:
        self._covered = [other for other in (run, *self._covered) if not other.end()]

    def _begin(self, p: Any) -> Run:
        run = Run(p)
        run.job = self._job()
        self._runs[id(p)] = run
        weakref.finalize(p, self._forget, id(p), run).atexit = False
        if hasattr(p, "close"):
            run.wrap(p, "close", _closing(run, p, self._end))
        return run

    def _forget(self, key: int, run: Run) -> None:
        self._end(run)
        if self._runs.get(key) is run:
            del self._runs[key]


def _closing(run: Run, p: Any, end: Callable[[Run], None]) -> Callable[[], None]:
    """Return the ``close`` of ``p`` that ends its run too. It does not keep ``p`` alive: that would be a cycle."""
    own = vars(p).get("close")
    owner_of = weakref.ref(p)

    def close_and_end() -> None:
        end(run)
        owner = owner_of()
        if own is not None:
            own()
        elif owner is not None:
            type(owner).close(owner)

    vars(close_and_end)[RUN] = run
    return close_and_end
