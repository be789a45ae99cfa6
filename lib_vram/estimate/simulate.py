"""A generation run on the virtual card: every phase replayed through one allocator, until it ends or runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

from lib_vram.errors import DeviceOutOfMemory, NotReady
from lib_vram.estimate.estimator import Measured, estimate, measure
from lib_vram.estimate.flags import conf_of
from lib_vram.estimate.physics import COMPUTED, Physics, trace_of
from lib_vram.estimate.residency import CONTEXT_BYTES, available_bytes
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.work import Working
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator
from lib_vram.request import Request
from lib_vram.units import GIB, KIB, MIB

LAYER_BYTES = 56 * MIB
"""What is asked for when weights do not fit: about the largest layer of SD 1.5 and SDXL."""


class Replayable(Protocol):
    """What one part allocates and frees, in order."""

    def replay(self, allocator: CachingAllocator) -> None:
        """Run the events; raises ``DeviceOutOfMemory`` where the card has no room."""


Trace = Callable[[Working], Replayable]


@dataclass(frozen=True)
class PhaseRun:
    """A phase that ran to its end. Sizes as torch counts them: without the driver's context."""

    name: PhaseName
    allocated_peak_bytes: int
    reserved_peak_bytes: int


class PhaseOutOfMemory(DeviceOutOfMemory):
    """The virtual card ran out; ``phase`` says where, ``error_text`` is what torch would print."""

    def __init__(self, error: DeviceOutOfMemory, phase: PhaseName, peak_bytes: int, error_text: str) -> None:
        super().__init__(
            requested_bytes=error.requested_bytes,
            limit_bytes=error.limit_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
        )
        self.phase = phase
        self.peak_bytes = peak_bytes
        self.error_text = error_text


@dataclass(frozen=True)
class Simulation:
    """How a generation ended. ``peak_bytes`` is the peak of allocated memory with the driver's context."""

    outcome: Literal["completed", "out_of_memory"]
    phase: PhaseName | None
    peak_bytes: int
    error_text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "outcome": self.outcome,
            "phase": self.phase,
            "peak_bytes": self.peak_bytes,
            "error_text": self.error_text,
        }


def simulate(request: Request, physics: Physics = COMPUTED, trace: Trace = trace_of) -> Simulation:
    """Return how ``request`` ends on its card: completed, or out of memory and in which phase.

    Raises:
        NotReady: something in ``request`` cannot be computed yet.
    """
    peak_bytes = 0
    try:
        for run in simulate_steps(request, physics, trace):
            peak_bytes = max(peak_bytes, CONTEXT_BYTES + run.allocated_peak_bytes)
    except PhaseOutOfMemory as error:
        return Simulation("out_of_memory", error.phase, max(peak_bytes, error.peak_bytes), error.error_text)
    return Simulation("completed", None, peak_bytes, "")


def simulate_steps(request: Request, physics: Physics = COMPUTED, trace: Trace = trace_of) -> Iterator[PhaseRun]:
    """Run ``request`` phase by phase and yield each as it ends.

    What the host keeps is taken off the card before each part works, and the cache is emptied after it, as both
    hosts do.

    Raises:
        PhaseOutOfMemory: a phase does not fit.
        NotReady: something in ``request`` cannot be computed yet.
    """
    measured = known_work(request, physics)
    allocator = CachingAllocator(available_bytes(request) - CONTEXT_BYTES, AllocatorConf.parse(conf_of(request)))
    for name, items in groupby(measured, key=lambda item: item.placed.work.phase):
        yield _run_phase(request, allocator, name, tuple(items), trace)


def known_work(request: Request, physics: Physics = COMPUTED) -> tuple[Measured, ...]:
    """Return every piece of work of ``request`` with its memory.

    Raises:
        NotReady: something in ``request`` cannot be computed yet.
    """
    measured, unknown = measure(request, physics)
    if unknown and estimate(request, physics).verdict == "unknown":
        raise NotReady("request", got=request.model.family, takes=f"what can be computed: {unknown[0]}")
    return measured


def _run_phase(
    request: Request, allocator: CachingAllocator, name: PhaseName, items: tuple[Measured, ...], trace: Trace
) -> PhaseRun:
    allocated_bytes = reserved_bytes = 0
    for item in items:
        kept_bytes = item.placed.resident_bytes - CONTEXT_BYTES
        allocator.peak_allocated_bytes = allocator.peak_reserved_bytes = 0
        try:
            _replay_beside(
                allocator, kept_bytes, available_bytes(request) - CONTEXT_BYTES, trace(item.placed.component)
            )
        except DeviceOutOfMemory as error:
            peak_bytes = CONTEXT_BYTES + max(allocated_bytes, error.allocated_bytes)
            raise PhaseOutOfMemory(error, name, peak_bytes, error_text(request, error)) from None
        allocated_bytes = max(allocated_bytes, kept_bytes + allocator.peak_allocated_bytes)
        without_tails = kept_bytes + allocator.peak_reserved_bytes
        with_tails = min(without_tails + item.placed.tails_bytes, available_bytes(request) - CONTEXT_BYTES)
        reserved_bytes = max(reserved_bytes, without_tails, with_tails)
        allocator.empty_cache()
    return PhaseRun(name, allocated_bytes, reserved_bytes)


def _replay_beside(allocator: CachingAllocator, kept_bytes: int, room_bytes: int, events: Replayable) -> None:
    """Replay ``events`` on a card that has ``room_bytes``, ``kept_bytes`` of which the host has taken before."""
    if kept_bytes > room_bytes:
        loaded_bytes = max(0, room_bytes) // LAYER_BYTES * LAYER_BYTES
        raise DeviceOutOfMemory(
            requested_bytes=LAYER_BYTES,
            limit_bytes=room_bytes,
            allocated_bytes=loaded_bytes,
            reserved_bytes=loaded_bytes,
        )
    allocator.limit_bytes = room_bytes - kept_bytes
    try:
        events.replay(allocator)
    except DeviceOutOfMemory as error:
        raise DeviceOutOfMemory(
            requested_bytes=error.requested_bytes,
            limit_bytes=room_bytes,
            allocated_bytes=kept_bytes + error.allocated_bytes,
            reserved_bytes=kept_bytes + error.reserved_bytes,
        ) from None


def error_text(request: Request, error: DeviceOutOfMemory) -> str:
    """Return what ``torch.OutOfMemoryError`` says in PyTorch 2.6 and later, for the virtual card's figures."""
    in_use_bytes = CONTEXT_BYTES + error.reserved_bytes
    free_bytes = max(0, available_bytes(request) - in_use_bytes)
    unused_bytes = error.reserved_bytes - error.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_torch_size(error.requested_bytes)}. "
        f"GPU 0 has a total capacity of {_torch_size(request.device.total_bytes)} "
        f"of which {_torch_size(free_bytes)} is free. Including non-PyTorch memory, "
        f"this process has {_torch_size(in_use_bytes)} memory in use. "
        f"Of the allocated memory {_torch_size(error.allocated_bytes)} is allocated by PyTorch, "
        f"and {_torch_size(unused_bytes)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _torch_size(size_bytes: int) -> str:
    if size_bytes < KIB:
        return f"{size_bytes} bytes"
    for unit, factor in (("KiB", KIB), ("MiB", MIB)):
        if size_bytes < factor * 1024:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes / GIB:.2f} GiB"
