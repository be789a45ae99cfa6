"""What is kept of one generation: where it ran, what was asked for, what was computed and what it took."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lib_vram.estimate.result import Estimate, PhaseEstimate, Verdict
from lib_vram.learning.peaks import Peak
from lib_vram.request import Request

Outcome = Literal["done", "stopped", "failed"]
"""``stopped``: a person interrupted or skipped it; what it took is true, how long it took says nothing."""

_FILE = re.compile(r"[/\\]|\.(safetensors|ckpt|pt|pth|bin|gguf|sft)$", re.IGNORECASE)
"""A path, or a model's file: it names a person's folders or what they collect."""


@dataclass(frozen=True)
class Machine:
    """All that a machine's own deviations hang on: when any of it changes, what was learned before counts no more."""

    host: str
    host_version: str = ""
    guard_version: str = ""
    torch: str = ""
    driver: str = ""
    card: str = ""
    total_bytes: int = 0
    flags: tuple[str, ...] = ()
    alloc_conf: str = ""

    @property
    def key(self) -> str:
        """All of it in one line, the same for the same machine."""
        return "|".join((*map(str, dataclasses.astuple(self)[:7]), " ".join(sorted(self.flags)), self.alloc_conf))


@dataclass(frozen=True)
class Predicted:
    """What was computed for a phase, in bytes; the driver's own part is in ``resident_bytes``, as in an estimate."""

    resident_bytes: int
    context_bytes: int
    floor_bytes: int
    minimum_bytes: int
    comfortable_bytes: int

    @classmethod
    def of(cls, phase: PhaseEstimate) -> Predicted:
        """Return what of ``phase`` is kept."""
        return cls(
            phase.resident_bytes, context_bytes_of(phase), phase.floor_bytes, phase.minimum_bytes,
            phase.comfortable_bytes,
        )  # fmt: skip

    @property
    def allocated_bytes(self) -> int:
        """The peak as torch counts it: without the driver's part."""
        return self.resident_bytes - self.context_bytes + self.floor_bytes

    @property
    def reserved_bytes(self) -> int:
        """What torch takes from the driver when nothing limits it."""
        return self.resident_bytes - self.context_bytes + self.comfortable_bytes

    @property
    def needs_bytes(self) -> int:
        """The smallest amount of free memory with which the phase still runs."""
        return self.resident_bytes + self.minimum_bytes


def context_bytes_of(phase: PhaseEstimate) -> int:
    """Return the driver's part of what is resident in ``phase``."""
    return dict(phase.resident_parts).get("context", 0)


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a run: computed, where it could be, beside measured, where something was."""

    name: str
    seconds: float
    predicted: Predicted | None
    peak: Peak


@dataclass(frozen=True)
class Fault:
    """Where a run ran out of memory, and the least that it would have needed there, in bytes."""

    phase: str
    demand_bytes: int
    room_bytes: int
    requested_bytes: int | None = None
    """The block that found no place, and what was free on the card then, where the failure's text says so."""
    free_bytes: int | None = None


@dataclass(frozen=True)
class Run:
    """One generation. ``at`` in seconds since the epoch; ``request`` without prompt, names or paths."""

    at: float
    machine: Machine
    request: Mapping[str, Any]
    outcome: Outcome
    verdict: Verdict
    available_bytes: int
    seconds: float
    steps: int | None = None
    context_bytes: int | None = None
    """What the driver held for this process beside torch's own memory, where the driver says so."""
    phases: tuple[PhaseRecord, ...] = ()
    fault: Fault | None = None
    error: str = ""
    """The kind of failure, for one that was no lack of memory."""
    is_rescued: bool = False
    """Whether it ran out (``fault`` says where) and went on another way; its figures say nothing of what it took."""
    binding: str = ""
    expected_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0
    """The phase that was to peak, and where: as earlier runs had corrected the estimate, with the driver's part."""
    start: float = 0.0
    """When the WebUI began to keep runs, in seconds since the epoch: the same for all runs of one start."""

    @property
    def images(self) -> int:
        """How many pictures were asked for."""
        return int(self.request.get("batch_size") or 1) * int(self.request.get("batch_count") or 1)

    @property
    def peak(self) -> PhaseRecord | None:
        """The phase that was to peak, where that was computed."""
        return next((record for record in self.phases if record.name == self.binding), None)

    @property
    def measured_bytes(self) -> int | None:
        """What the phase that was to peak took, with the driver's part; ``None`` where it is not known exactly."""
        record = self.peak
        if record is None or record.predicted is None or not record.peak.is_exact:
            return None
        context_bytes = record.predicted.context_bytes if self.context_bytes is None else self.context_bytes
        return None if record.peak.allocated_bytes is None else record.peak.allocated_bytes + context_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


def run_of(data: Mapping[str, Any]) -> Run:
    """Return the run that ``to_dict`` made ``data`` of; ``KeyError`` or ``TypeError`` when it is none."""
    values = dict(data)
    machine = values.pop("machine")
    phases = tuple(_phase_of(item) for item in values.pop("phases"))
    fault = values.pop("fault")
    flags = tuple(machine["flags"])
    return Run(
        machine=Machine(**{**machine, "flags": flags}), phases=phases, fault=Fault(**fault) if fault else None,
        **values,
    )  # fmt: skip


def _phase_of(data: Mapping[str, Any]) -> PhaseRecord:
    predicted = data["predicted"]
    return PhaseRecord(
        data["name"], data["seconds"], Predicted(**predicted) if predicted else None, Peak(**data["peak"])
    )


def kept_of(request: Request) -> dict[str, Any]:
    """Return what of ``request`` is kept: all that decides about memory, and nothing that names a person's files."""
    kept: dict[str, Any] = without_files(request.to_dict())
    kept.pop("system", None)
    return kept


def without_files(value: Any) -> Any:
    """Return a JSON value with ``None`` in place of every path and every name of a model's file."""
    if isinstance(value, Mapping):
        return {name: without_files(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_files(item) for item in value]
    return None if isinstance(value, str) and _FILE.search(value) else value


@dataclass(frozen=True)
class Rescue:
    """A failure whose work was saved, or not. ``action`` names what was done, as the plan's steps are named."""

    at: float
    host: str
    phase: str
    action: str
    is_rescued: bool
    images: int = 0
    """Pictures of the run that were finished or made again."""
    seconds: float | None = None
    """What it cost in time beyond the run itself, where that is known."""
    family: str = ""


COVERS: Mapping[str, tuple[str, ...]] = {
    "load": ("load", "text_encode", "controlnet_preprocess", "vae_encode"),
    "sampling": ("sampling", "refiner_sampling", "hires_upscale"),
    "hires_sampling": ("hires_sampling", "refiner_sampling"),
    "vae_decode": ("vae_decode", "face_restore"),
    "detailer": ("detailer",),
}
"""The computed phases that lie in each stretch between two hooks of the hosts."""


def phase_records(
    estimate: Estimate, measured: Iterable[tuple[str, float, Peak]], *, by_stretch: bool = True
) -> tuple[PhaseRecord, ...]:
    """Return what was measured beside what was computed for it.

    ``measured`` has (name, seconds, peak); with ``by_stretch`` the names are those of :data:`COVERS`, and each is
    compared with the phase that was to peak in it.
    """
    records = []
    for name, seconds, peak in measured:
        names = COVERS.get(name, (name,)) if by_stretch else (name,)
        among = [phase for phase in estimate.phases if phase.name in names]
        top = max(among, key=lambda phase: phase.peak_bytes, default=None)
        records.append(PhaseRecord(top.name if top else name, seconds, Predicted.of(top) if top else None, peak))
    return tuple(records)
