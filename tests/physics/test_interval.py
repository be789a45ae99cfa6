"""Where the real peak is expected, and why no closer."""

from __future__ import annotations

import pytest

from lib_vram.physics.component import Component
from lib_vram.physics.interval import device_reasons, interval, on_device
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.units import MIB

DECODE = Component("sdxl", "vae_decode", 1024, 1024)


def keys(component: Component, *, cousin: bool = False) -> list[str]:
    """Return the reasons of a component's interval."""
    return [item.key for item in interval(component, component_trace(DECODE), cousin=cousin).reasons]


def test_the_interval_goes_from_no_workspace_to_all_of_it_with_a_margin() -> None:
    trace = component_trace(DECODE)
    low, high, reasons = interval(DECODE, trace)
    assert low == trace.bare_floor_bytes
    assert high == int(trace.floor_bytes * 1.02) + 8.125 * MIB
    assert reasons == ()


@pytest.mark.parametrize(
    ("component", "cousin", "expected"),
    [
        (Component("sdxl", "vae_decode", 1024, 1024, dtype="fp32"), False, ["interval.fp32"]),
        (Component("sdxl", "denoise", 1024, 1024, weights_dtype="fp8"), False, ["interval.quantised"]),
        (DECODE, True, ["interval.cousin"]),
        (Component("sdxl", "denoise", 1024, 1024, weights_dtype="bf16"), False, []),
    ],
)
def test_what_is_not_measured_has_its_reason(component: Component, cousin: bool, expected: list[str]) -> None:
    assert keys(component, cousin=cousin) == expected


def test_every_reason_makes_the_interval_wider() -> None:
    trace = component_trace(DECODE)
    plain = interval(DECODE, trace)
    for component, cousin in (
        (DECODE, True),
        (Component("sdxl", "vae_decode", 1024, 1024, weights_dtype="nf4"), False),
    ):
        wider = interval(component, trace, cousin=cousin)
        assert wider.high_bytes > plain.high_bytes
        assert wider.low_bytes <= plain.low_bytes


@pytest.mark.parametrize(
    ("name", "reasons", "share"),
    [
        ("NVIDIA GeForce RTX 3060", [], 0.0),
        ("", [], 0.0),
        ("Tesla T4", [], 0.0),
        ("NVIDIA GeForce GTX 1080", ["interval.old_gpu"], 0.15),
        ("AMD Radeon RX 7900 XTX", ["interval.rocm"], 1.0),
        ("Apple M2", ["interval.mps"], 1.0),
        ("Intel(R) Arc(TM) A770 Graphics", ["interval.other_device"], 1.0),
    ],
)
def test_devices_that_nobody_measured_have_a_wider_interval(name: str, reasons: list[str], share: float) -> None:
    memory = component_memory(DECODE)
    on = on_device(memory, name)
    assert [item.key for item in device_reasons(name)] == reasons
    assert on.high_bytes - memory.high_bytes == pytest.approx(share * memory.floor_bytes, abs=1)
    assert on.low_bytes == memory.low_bytes


def test_hopper_has_the_larger_workspace_of_cublas() -> None:
    memory = component_memory(DECODE)
    assert on_device(memory, "NVIDIA H100 80GB HBM3").high_bytes - memory.high_bytes == (32 - 8.125) * MIB
