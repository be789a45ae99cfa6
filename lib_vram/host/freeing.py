"""Giving memory back between generations, and starting the WebUI anew: what all hosts of the A1111 line share.

Everything here happens under the host's own queue lock, the one that every generation takes, of the page and of the
API: so it never meets a generation, and none begins in the middle of it.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from lib_vram.errors import HostFault
from lib_vram.host.patches import Patches
from lib_vram.machine.card import Card
from lib_vram.message import Message, say
from lib_vram.units import MIB

Level = Literal["cache", "models"]
How = Literal["reload", "restart"]

SMALL_BYTES = 64 * MIB
"""Below this, what stays is not worth a word: cuBLAS alone keeps a workspace of about 8 to 32 MiB once it was used."""
ANSWER_FIRST_SECONDS = 1.0
"""A real restart ends the process at once; so long the answer has to reach the page."""

logger = logging.getLogger("vram_guard")


class Busy(HostFault):
    """A generation is at work or waiting; nothing was freed or restarted."""


@dataclass(frozen=True)
class Memory:
    """Who holds the card at one moment. Sizes in bytes, ``None`` where they cannot be had."""

    allocated_bytes: int | None = None
    """Tensors of this process: weights, and whatever else holds one."""
    reserved_bytes: int | None = None
    """What PyTorch has taken from the driver, the tensors included."""
    others_bytes: int | None = None
    free_bytes: int | None = None
    """Free on the card, as the driver says."""
    ram_bytes: int | None = None
    """This process in the computer's RAM."""

    @property
    def cache_bytes(self) -> int | None:
        """What PyTorch keeps and no tensor uses."""
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True)
class Freed:
    """What freeing came to."""

    level: Level
    before: Memory
    after: Memory
    kept: tuple[Message, ...] = ()
    """What could not be freed, and why."""

    @property
    def freed_bytes(self) -> int | None:
        """How much less of the card this process holds than before."""
        if self.before.reserved_bytes is None or self.after.reserved_bytes is None:
            return None
        return max(0, self.before.reserved_bytes - self.after.reserved_bytes)


@dataclass(frozen=True)
class Restarting:
    """What was done about a wish to restart: it is under way, or these are the steps to do it by hand."""

    started: bool
    steps: Message | None = None


def free(level: Level, card: Callable[[], Card | None], unload: Callable[[], None], empty: Callable[[], None]) -> Freed:
    """Free what ``level`` names and return what came of it. ``unload`` and ``empty`` are the host's own ways.

    Raises:
        Busy: a generation is at work.
    """
    with queue():
        before = memory(card())
        make_room(level, unload, empty)
        after = memory(card())
    return Freed(level, before, after, what_stays(level, after))


def make_room(level: Level, unload: Callable[[], None], empty: Callable[[], None]) -> None:
    """Free what ``level`` names. Only for who holds the host's queue."""
    clear_pinned_frames()
    gc.collect()
    if level == "models":
        unload()
        gc.collect()
    empty()


@contextmanager
def queue() -> Iterator[Any]:
    """Hold the host's queue lock.

    Raises:
        Busy: somebody else holds it.
    """
    lock = queue_lock()
    if not lock.acquire(False):
        raise Busy("a generation is at work or waiting")
    try:
        yield lock
    finally:
        lock.release()


def queue_lock() -> Any:
    """Return the lock that every generation of the page and of the API takes."""
    from modules import call_queue

    return call_queue.queue_lock


def clear_pinned_frames() -> None:
    """Clear the frames of errors that the host or Python remembers: their variables keep a failed step's tensors."""
    remembered = [
        getattr(sys.modules.get("modules_forge.main_thread"), "last_exception", None),
        getattr(sys, "last_value", None),
        getattr(sys, "last_exc", None),
    ]
    seen: set[int] = set()
    while remembered:
        error = remembered.pop()
        if not isinstance(error, BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        if error.__traceback__ is not None:
            traceback.clear_frames(error.__traceback__)
        remembered += [error.__cause__, error.__context__]


def memory(card: Card | None) -> Memory:
    """Return who holds the card now, as far as PyTorch and the driver say."""
    allocated_bytes, reserved_bytes, free_bytes = _of_torch()
    return Memory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        others_bytes=card.used_by_others_bytes if card else None,
        free_bytes=card.free_bytes if free_bytes is None and card else free_bytes,
        ram_bytes=_ram_bytes(),
    )


def _of_torch() -> tuple[int | None, int | None, int | None]:
    """Return allocated, reserved and free bytes of the device; three times ``None`` on a PyTorch for the CPU."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu"):
        device = getattr(torch, name, None)
        if device is not None and device.is_available():
            return int(device.memory_allocated()), int(device.memory_reserved()), _driver_free_bytes(device)
    backends = getattr(torch, "backends", None)
    if backends is not None and getattr(backends, "mps", None) is not None and backends.mps.is_available():
        return int(torch.mps.current_allocated_memory()), int(torch.mps.driver_allocated_memory()), None
    return None, None, None


def _driver_free_bytes(device: Any) -> int | None:
    asked = getattr(device, "mem_get_info", None)  # of XPU since PyTorch 2.6
    try:
        return int(asked()[0]) if asked is not None else None
    except RuntimeError:  # not every driver answers
        return None


def _ram_bytes() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)


def what_stays(level: Level, after: Memory) -> tuple[Message, ...]:
    """Return what is still held after freeing, each with its reason."""
    kept = []
    if after.allocated_bytes is None:
        kept.append(say("free.kept_no_device"))
    elif after.allocated_bytes > SMALL_BYTES:
        key = "free.kept_models" if level == "cache" else "free.kept_tensors"
        kept.append(say(key, held_bytes=after.allocated_bytes))
    if (after.cache_bytes or 0) > SMALL_BYTES:
        kept.append(say("free.kept_cache", held_bytes=after.cache_bytes or 0))
    if (after.others_bytes or 0) > SMALL_BYTES:
        kept.append(say("free.kept_others", held_bytes=after.others_bytes or 0))
    return tuple(kept)


def before_next_run(action: Callable[[], None]) -> None:
    """Call ``action`` when the next generation begins, before it computes, once.

    This outlives the extension's unloading on purpose: without ``action`` the next run would fail.
    """
    from modules import processing

    original = processing.process_images_inner
    patches = Patches()
    waiting = [action]

    @functools.wraps(original)
    def process_images_inner(p: Any, *arguments: Any, **named: Any) -> Any:
        while waiting:
            patches.undo()
            waiting.pop()()
        return original(p, *arguments, **named)

    patches.set_attribute(processing, "process_images_inner", process_images_inner)


def restart(how: How) -> Restarting:
    """Reload the page's server, or start the whole process anew where the launcher watches for that.

    Raises:
        Busy: a generation is at work.
    """
    if how == "reload":
        from modules import shared

        with queue():
            shared.state.request_restart()
        return Restarting(started=True)
    if not is_restartable():
        return Restarting(started=False, steps=steps_by_hand())
    lock = queue_lock()
    if not lock.acquire(False):
        raise Busy("a generation is at work or waiting")
    timer = threading.Timer(ANSWER_FIRST_SECONDS, _end_process, [lock])  # the lock stays held: no run begins meanwhile
    timer.daemon = True
    timer.start()
    return Restarting(started=True)


def is_restartable() -> bool:
    """Whether the launcher starts the process again when it ends with the host's mark."""
    try:
        from modules import restart as of_host
    except ImportError:
        return False
    return bool(of_host.is_restartable())


def _end_process(lock: Any) -> None:
    from modules import restart as of_host

    try:
        of_host.restart_program()
    except OSError:
        logger.exception("VRAM Guard could not restart the WebUI")
    finally:
        lock.release()


def steps_by_hand() -> Message:
    """Return how a person restarts the WebUI on this system."""
    return say("free.steps_windows" if sys.platform == "win32" else "free.steps_shell")
