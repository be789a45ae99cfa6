"""What was learned here, for those who ask without a WebUI at work: which machine a request is of is looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import lib_vram
from lib_vram.learning.lessons import NOTHING, Lessons, lessons_of
from lib_vram.learning.record import Machine
from lib_vram.learning.store import Store
from lib_vram.learning.versions import driver_version
from lib_vram.request import Request

VIRTUAL = "virtual"


def lessons_in(store: Store, driver: Callable[[], str] = driver_version) -> Callable[[Request], Lessons]:
    """Return what tells the lessons of a request from the runs in ``store``: those of the machine that it is of."""
    machines = store.machines()

    @lru_cache(maxsize=32)
    def of_machine(key: str) -> Lessons:
        return lessons_of(store.runs(key))

    def lessons(request: Request) -> Lessons:
        machine = machine_of_request(request, machines, driver)
        return of_machine(machine.key) if machine is not None else NOTHING

    return lessons


def machine_of_request(request: Request, machines: Iterable[Machine], driver: Callable[[], str]) -> Machine | None:
    """Return which of ``machines``, the newest first, ``request`` is of; ``None`` for another card, host or start.

    The versions of host and PyTorch are those of its last run, which only the WebUI can know. Runs under another
    driver than the present one count no more, where it says its version.
    """
    wanted = (
        lib_vram.__version__, request.host, request.device.name, request.device.total_bytes,
        sorted(request.host_args), request.alloc_conf,
    )  # fmt: skip
    for machine in machines:
        found = (
            machine.guard_version, machine.host, machine.card, machine.total_bytes, sorted(machine.flags),
            machine.alloc_conf,
        )  # fmt: skip
        if found == wanted:
            same = machine.driver == VIRTUAL or driver() in ("", machine.driver)
            return machine if same else None
    return None
