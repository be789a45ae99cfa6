"""The virtual machine of the soak: it takes other amounts than are computed, by factors that nobody is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.estimate import estimator
from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.estimate.simulate import PhaseOutOfMemory, PhaseRun, simulate_steps
from lib_vram.request import Request
from lib_vram.units import GIB, MIB

SHARES = (-0.05, 0.45)
"""Of a phase's computed activations: what its kernels take beyond them, drawn once for each model and phase."""
MOST_MORE_BYTES = 192 * MIB
"""What a phase may take beyond that at every size, as a library's workspace."""
HELD_BYTES = (0, 160 * MIB, 320 * MIB)
"""What the driver holds beyond what is computed."""
TOLD_SHARE = 0.6
"""Of the machines, whose driver says what it holds; Windows' does not."""
NOISE = 0.004
"""Standard deviation of a phase's peak from run to run, as a share of all of it."""
NOTICED_BYTES = 2 * GIB
"""What another program takes in mid-run."""


class Broken(RuntimeError):
    """A fault that has nothing to do with memory, as an extension's."""


@dataclass(frozen=True)
class Deviation:
    """How one phase of one model differs from what is computed."""

    share: float
    more_bytes: int


class Machine:
    """A card, its driver and its libraries, and what happens on it in mid-run (``event``)."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._deviations: dict[tuple[str, ...], Deviation] = {}
        self.event = "generate"
        self.noticed: Callable[[int], None] = lambda others_bytes: None
        """Told of what other programs take: on a real card a thread of the recorder's reads it."""
        self.renew()

    def renew(self) -> None:
        """Become another one, as with another driver."""
        self._deviations.clear()
        self.held_bytes = self._chance.choice(HELD_BYTES)
        self.tells_held = self._chance.random() < TOLD_SHARE

    def steps(self, request: Request) -> Iterator[PhaseRun]:
        """Run ``request`` as :func:`simulate_steps` does, on this machine."""
        event, self.event = self.event, "generate"  # a second try finds the memory free again
        strikes_in = self._chance.choice(("sampling", "vae_decode"))
        for phase in self._held(request):
            if phase.name == strikes_in and event == "error":
                raise Broken("an extension's own fault")
            if phase.name == strikes_in and event == "squeeze":
                self.noticed(NOTICED_BYTES)
                raise _squeezed(request, phase)
            if phase.name == strikes_in and event == "pieces":
                fault = _in_pieces(phase, self._room(request))
                raise PhaseOutOfMemory(fault, phase.name, fault.allocated_bytes, self._text(request, fault))
            yield self._measured(request, phase)

    def _room(self, request: Request) -> int:
        return request.device.total_bytes - request.device.used_by_others_bytes - CONTEXT_BYTES - self.held_bytes

    def _held(self, request: Request) -> Iterator[PhaseRun]:
        """Run ``request`` beside what the driver holds."""
        device = request.device
        others_bytes = min(device.total_bytes, device.used_by_others_bytes + self.held_bytes)
        try:
            yield from simulate_steps(request.replace(device=replace(device, used_by_others_bytes=others_bytes)))
        except PhaseOutOfMemory as error:
            raise PhaseOutOfMemory(error, error.phase, error.peak_bytes, self._text(request, error)) from None

    def _measured(self, request: Request, phase: PhaseRun) -> PhaseRun:
        """Return what ``phase`` took here; it runs out where that is more than there is."""
        off = 1 + self._chance.gauss(0, NOISE)
        more_bytes = self._more(request, phase)
        allocated, reserved = (
            int(size_bytes * off) + more_bytes for size_bytes in (phase.allocated_peak_bytes, phase.reserved_peak_bytes)
        )
        room_bytes = self._room(request)
        if allocated <= room_bytes:
            return replace(phase, allocated_peak_bytes=allocated, reserved_peak_bytes=min(reserved, room_bytes))
        # It stops on its way up, at the first block that finds no place: torch names that one, not what was to come.
        missing_bytes = allocated - room_bytes
        block_bytes = self._chance.randint(1, missing_bytes)
        fault = DeviceOutOfMemory(
            requested_bytes=block_bytes + MIB, limit_bytes=room_bytes, allocated_bytes=room_bytes - MIB,
            reserved_bytes=room_bytes,
        )  # fmt: skip
        raise PhaseOutOfMemory(fault, phase.name, room_bytes, self._text(request, fault))

    def _text(self, request: Request, fault: DeviceOutOfMemory) -> str:
        """Return what torch says; what the driver holds beyond the computed looks to it like the process's own."""
        used_mib = (CONTEXT_BYTES + self.held_bytes + fault.reserved_bytes) / MIB
        free_mib = max(0.0, (request.device.total_bytes - request.device.used_by_others_bytes) / MIB - used_mib)
        unused_bytes = fault.reserved_bytes - fault.allocated_bytes
        return (
            f"CUDA out of memory. Tried to allocate {fault.requested_bytes / MIB:.2f} MiB. GPU 0 has a total capacity "
            f"of {request.device.total_bytes / GIB:.2f} GiB of which {free_mib:.2f} MiB is free. Including non-PyTorch "
            f"memory, this process has {used_mib / 1024:.2f} GiB memory in use. Of the allocated memory "
            f"{fault.allocated_bytes / GIB:.2f} GiB is allocated by PyTorch, and {unused_bytes / MIB:.2f} MiB is "
            "reserved by PyTorch but unallocated."
        )

    def _more(self, request: Request, phase: PhaseRun) -> int:
        key = (request.host, request.model.family, request.model.weights_dtype, phase.name)
        if key not in self._deviations:
            more_bytes = self._chance.choice((0, 0, self._chance.randint(0, MOST_MORE_BYTES)))
            self._deviations[key] = Deviation(self._chance.uniform(*SHARES), more_bytes)
        here = self._deviations[key]
        phases = estimator.estimate(request).phases
        floor_bytes = next((item.floor_bytes for item in phases if item.name == phase.name), 0)
        return int(here.share * floor_bytes) + here.more_bytes


def _squeezed(request: Request, phase: PhaseRun) -> PhaseOutOfMemory:
    """Return the failure of a phase whose memory another program has just taken."""
    fault = DeviceOutOfMemory(requested_bytes=256 * MIB, limit_bytes=0, allocated_bytes=0, reserved_bytes=0)
    held_gib = (CONTEXT_BYTES + phase.reserved_peak_bytes) / GIB / 2
    text = (
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of "
        f"{request.device.total_bytes / GIB:.2f} GiB of which 12.00 MiB is free. Including non-PyTorch memory, this "
        f"process has {held_gib:.2f} GiB memory in use."
    )
    return PhaseOutOfMemory(fault, phase.name, 0, text)


def _in_pieces(phase: PhaseRun, room_bytes: int) -> DeviceOutOfMemory:
    """Return the failure of a phase that finds no block large enough between those of earlier runs."""
    return DeviceOutOfMemory(
        requested_bytes=max(64 * MIB, room_bytes // 8), limit_bytes=room_bytes,
        allocated_bytes=min(phase.allocated_peak_bytes, int(0.6 * room_bytes)), reserved_bytes=room_bytes - 16 * MIB,
    )  # fmt: skip
