"""Runs, phases and estimates for the tests of what is learned."""

from __future__ import annotations

from dataclasses import replace

from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.learning.peaks import Peak
from lib_vram.learning.record import Fault, Machine, PhaseRecord, Predicted, Run, kept_of
from lib_vram.request import DeviceSpec, ModelSpec, Request
from lib_vram.units import GIB, MIB

CONTEXT = 460 * MIB
REQUEST = Request(DeviceSpec(12 * GIB, "NVIDIA GeForce RTX 3060"), ModelSpec("sdxl"), 1024, 1024)
MACHINE = Machine("a1111", "1.10", "0.1", "2.3", "551.0", "NVIDIA GeForce RTX 3060", 12 * GIB)


def phase(name="vae_decode", floor=2000 * MIB, minimum=None, comfortable=None, weights=5000 * MIB):
    minimum = floor + 100 * MIB if minimum is None else minimum
    return PhaseEstimate(
        name=name, resident_bytes=weights + CONTEXT, floor_bytes=floor, minimum_bytes=minimum,
        comfortable_bytes=minimum + 900 * MIB if comfortable is None else comfortable,
        low_bytes=floor * 7 // 10, high_bytes=floor * 102 // 100, source="profile",
        resident_parts=(("unet", weights), ("context", CONTEXT)),
    )  # fmt: skip


def estimate(*phases, available=11 * GIB, verdict=None):
    phases = phases or (phase(),)
    binding = max(phases, key=lambda item: item.needs_bytes)
    computed = "fits"
    if any(item.wants_bytes > available for item in phases):
        computed = "tight"
    if any(item.needs_bytes > available for item in phases):
        computed = "wont_fit"
    return Estimate(
        verdict=verdict or computed, available_bytes=available, binding_phase=binding.name,
        peak_bytes=binding.peak_bytes, low_bytes=binding.resident_bytes + binding.low_bytes - 153 * MIB,
        high_bytes=binding.resident_bytes + binding.high_bytes + 154 * MIB, phases=phases,
    )  # fmt: skip


def record(of=None, off=0, reserved_off=0, exact=True):
    """Return ``of`` with a peak that was measured ``off`` the computed one."""
    of = of or phase()
    predicted = Predicted.of(of)
    peak = Peak(predicted.allocated_bytes + off, predicted.reserved_bytes + reserved_off, None, exact, exact)
    return PhaseRecord(of.name, 1.0, predicted, peak)


def run(*records, at=1.0, outcome="done", fault=None, **changes):
    made = Run(
        at=at, machine=MACHINE, request=kept_of(REQUEST), outcome=outcome, verdict="fits", available_bytes=11 * GIB,
        seconds=9.0, steps=20, phases=records or (record(),), fault=fault,
    )  # fmt: skip
    return replace(made, **changes)


def failed(of=None, demand=None, room=11 * GIB, **changes):
    """Return a run that ran out in the phase ``of`` although it was computed to fit."""
    of = of or phase()
    cut_off = PhaseRecord(of.name, 0.0, Predicted.of(of), Peak())
    fault = Fault(of.name, demand or room + 1, room)
    return run(cut_off, outcome="failed", fault=fault, available_bytes=room, **changes)
