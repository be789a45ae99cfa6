"""Tells the journal when a checkpoint is loaded outside a generation: at the start, or when another is chosen.

Loading is when computers run out of RAM, and a killed process says nothing. Hosts load through functions of
``modules.sd_models``; Forge's line does so within the generation, which the journal holds as it is.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from lib_vram.host.patches import Patches

LOADERS = ("load_model", "load_model_weights")
"""Functions of ``modules.sd_models`` that read a checkpoint; the first calls the second."""


class Told(Protocol):
    """What is told of a load."""

    def loading(self) -> bool | None:
        """A checkpoint is about to be read; returns whether this is noted."""

    def loaded(self) -> None:
        """What was noted is over, well or not."""


class LoadWatch:
    """Wraps the host's loaders while the extension is loaded."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._patches = Patches()
        self._alive = [False]
        self._loads = threading.local()

    def start(self) -> None:
        """Wrap the loaders of this host; twice does nothing more."""
        self.stop()
        self._alive = [True]
        models: Any = sys.modules.get("modules.sd_models")
        for name in LOADERS:
            loader = getattr(models, name, None)
            if callable(loader):
                self._patches.set_attribute(models, name, self._wrapped(loader, self._alive))

    def stop(self) -> None:
        """Give the host its loaders back; what another extension has laid itself over passes through from now on."""
        self._alive[0] = False
        self._patches.undo()

    def _wrapped(self, loader: Callable[..., Any], alive: list[bool]) -> Callable[..., Any]:
        @functools.wraps(loader)
        def load(*args: Any, **kwargs: Any) -> Any:
            if not alive[0]:
                return loader(*args, **kwargs)
            with self._noted():
                return loader(*args, **kwargs)

        return load

    @contextmanager
    def _noted(self) -> Iterator[None]:
        is_outer = not getattr(self._loads, "busy", False)
        is_noted = is_outer and self._told.loading()
        self._loads.busy = True
        try:
            yield
        finally:
            self._loads.busy = not is_outer
            if is_noted:
                self._told.loaded()
