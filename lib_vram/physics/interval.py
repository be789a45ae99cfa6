"""How sure the computed peak is: where the real peak of allocated is expected, and why no closer.

The low end is the peak of what is live when no convolution gets a workspace: cuDNN falls back on
algorithms without one when there is no room. The high end is the peak with every workspace,
cuBLAS's own, and a margin. On every published half-precision measurement in
``tests/accuracy/data`` the real peak lies inside. What nobody has published is given more room, and
the reason is said.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from lib_vram.message import Message, say
from lib_vram.physics.component import Component, ComponentMemory
from lib_vram.physics.kernels import (
    AMPERE,
    CUBLAS_WORKSPACE_BYTES,
    TENSOR_CORES_FROM,
    capability_of,
    cublas_workspace_bytes,
    has_fused_attention,
    platform_of,
)
from lib_vram.physics.program import EventTrace

MEASURED_MARGIN = Fraction(2, 100)
"""Half precision on NVIDIA: the largest error against published measurements is 0.5 %; four times that."""
FP32_MARGIN = Fraction(30, 100)
"""fp32 has a workspace of input and weights, as TF32 on Ampere and later; 30 % above that reaches past one of all
operands. Without TF32, and on GPUs that have none, it is another."""
COUSIN_MARGIN = Fraction(15, 100)
"""A host's code whose profile is that of diffusers' form of it. The two forms of SDXL's decoder are 12 % apart."""
QUANTISED_MARGIN = Fraction(15, 100)
"""Weights that are unpacked as they are used: the layer at hand once more in the compute type."""
RELEASES_MARGIN = Fraction(6, 100)
"""diffusers' transformers changed with its releases: Flux.1's took 5 % less in 0.31 than in 0.36."""
OLD_GPU_MARGIN = Fraction(15, 100)
"""GPUs without tensor cores: other cuDNN algorithms, not measured. Theirs can take less, never the half of it."""
ROCM_MARGIN = Fraction(1)
"""AMD: the published peaks of VAEs are about twice CUDA's (InvokeAI's constants: 5500 and 6300 for 2900 and 1600)."""
OTHER_MARGIN = Fraction(1)
"""Apple, Intel, DirectML: no published peak; attention that keeps its score matrix doubles a VAE's."""

HALVES = frozenset(("fp32", "fp16", "bf16"))


class Interval(NamedTuple):
    """Where the real peak is expected, in bytes, and why it is not known more closely."""

    low_bytes: int
    high_bytes: int
    reasons: tuple[Message, ...]


def interval(
    component: Component, trace: EventTrace, most_bytes: int | None = None, *, cousin: bool = False
) -> Interval:
    """Return where the peak of ``component`` is expected on an NVIDIA GPU of Ampere or later.

    ``trace`` is what it does; ``most_bytes`` the largest peak in question where that is not the trace's own (attention
    that slices itself by free memory). ``cousin`` says that the profile is that of another form of the same model.
    """
    margin = MEASURED_MARGIN
    reasons: list[Message] = []
    if component.dtype == "fp32":
        margin = max(margin, FP32_MARGIN)
        reasons.append(say("interval.fp32"))
    if (component.weights_dtype or component.dtype) not in HALVES:
        margin += QUANTISED_MARGIN
        reasons.append(say("interval.quantised", dtype=component.weights_dtype or component.dtype))
    low = trace.bare_floor_bytes
    if component.code == "diffusers" and component.part == "denoise":
        low = int(low * (1 - RELEASES_MARGIN))
    if cousin:
        margin = max(margin, COUSIN_MARGIN)
        low = int(low * (1 - COUSIN_MARGIN))
        reasons.append(say("interval.cousin"))
    most = trace.floor_bytes if most_bytes is None else most_bytes
    return Interval(low, int(most * (1 + margin)) + CUBLAS_WORKSPACE_BYTES, tuple(reasons))


def on_device(memory: ComponentMemory, device_name: str) -> ComponentMemory:
    """Return ``memory`` with the interval that it has on the device called ``device_name``."""
    more = int(memory.floor_bytes * _device_margin(device_name))
    more += cublas_workspace_bytes(device_name) - CUBLAS_WORKSPACE_BYTES
    return replace(memory, high_bytes=memory.high_bytes + more) if more else memory


def device_reasons(device_name: str) -> tuple[Message, ...]:
    """Return why the interval is wider on the device called ``device_name`` than on those that were measured."""
    platform = platform_of(device_name)
    if platform == "rocm":
        return (say("interval.rocm"),)
    if platform == "mps":
        return (say("interval.mps"),)
    if platform == "other":
        return (say("interval.other_device"),)
    if _is_old(device_name):
        return (say("interval.old_gpu"),)
    return ()


def _device_margin(device_name: str) -> Fraction:
    platform = platform_of(device_name)
    if platform == "rocm":
        return ROCM_MARGIN
    if platform != "cuda" or not has_fused_attention(device_name):
        return OTHER_MARGIN
    return OLD_GPU_MARGIN if _is_old(device_name) else Fraction(0)


def _is_old(device_name: str) -> bool:
    return (capability_of(device_name) or AMPERE) < TENSOR_CORES_FROM
