"""A profile at a size: the trace of that size, exactly."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from lib_vram.errors import DeviceOutOfMemory
from lib_vram.physics.allocator import AllocatorConf, CachingAllocator, rounded
from lib_vram.physics.attention import PLENTY, WAYS
from lib_vram.physics.minimum import minimum_and_comfortable
from lib_vram.physics.profile import FOLDER, load
from lib_vram.physics.program import AT_ONCE, GIVE_BACK, EventTrace, Layout, Setting, expand
from lib_vram.physics.raw import Event
from lib_vram.units import MIB

if TYPE_CHECKING:
    from torch import Tensor

UNUSED = (Setting(2, 45, 67), Setting(1, 128, 128), Setting(4, 64, 96))
"""Sizes from which no profile was made: odd, square and wide."""
LOOPED = ("sdxl-denoise-fp16-forge", "sdxl-denoise-fp16-a1111", "sdxl-controlnet-fp16-forge")


TRACED = [kind for kind in WAYS["forge"] if kind != "sage"]
"""Ways whose code is in ``tools/meta``; SageAttention's kernels cannot be run on meta tensors."""


def profile_at(name: str, setting: Setting, attention: str = "sdpa", kept: int | None = 2) -> EventTrace:
    """Return the trace of a shipped profile."""
    profile = load(name)
    assert profile is not None
    host = name.rsplit("-", 1)[1]
    return expand(profile, setting, attention, host if host in WAYS else "forge", PLENTY, kept)


def test_the_floor_is_the_most_that_is_live_at_once() -> None:
    script = ((0, 0), (AT_ONCE, 1), (1, 2), (0, GIVE_BACK), (1, GIVE_BACK))
    layout = Layout(script, (), (0, 1, ~1, 2, ~0, ~2), (0, 2, ~0, ~2))
    trace = EventTrace(layout, (1000, 700, 400))
    assert (trace.floor_bytes, trace.bare_floor_bytes) == (1700, 1400)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*-fp16-*.json")))
def test_a_replay_leaves_nothing_taken_and_peaks_at_the_floor(name: str) -> None:
    trace = profile_at(name, UNUSED[0])
    allocator = CachingAllocator()
    trace.replay(allocator)
    assert allocator.allocated_bytes == 0
    assert trace.bare_floor_bytes <= trace.floor_bytes <= allocator.peak_allocated_bytes
    assert allocator.peak_allocated_bytes <= trace.floor_bytes + 8 * MIB


def test_a_replay_on_too_small_a_device_runs_out() -> None:
    trace = profile_at("sd15-vae_decode-fp16-forge", UNUSED[0])
    with pytest.raises(DeviceOutOfMemory):
        trace.replay(CachingAllocator(trace.floor_bytes - 1))


@pytest.mark.parametrize("name", LOOPED)
@pytest.mark.parametrize("attention", ["sdpa", "math"])
@pytest.mark.parametrize("setting", UNUSED)
def test_a_loop_cut_short_gives_the_figures_of_the_whole(name: str, attention: str, setting: Setting) -> None:
    short, whole = (profile_at(name, setting, attention, kept) for kept in (2, None))
    assert len(short.operations) < len(whole.operations)
    assert (short.floor_bytes, short.bare_floor_bytes) == (whole.floor_bytes, whole.bare_floor_bytes)
    figures = [minimum_and_comfortable(trace, AllocatorConf(), trace.floor_bytes) for trace in (short, whole)]
    assert figures[0] == figures[1]


def as_events(trace: EventTrace) -> list[int]:
    """Return the size of everything that is taken, and minus that of everything that is given back."""
    return in_any_order([trace.sizes[load] if load >= 0 else -trace.sizes[~load] for load in trace.layout.loads])


def in_any_order(events: list[int]) -> list[int]:
    """Return the events with what is given back in one breath sorted: in which order leaves the allocator the same."""
    result: list[int] = []
    for _, group in groupby(events, key=lambda size: size > 0):
        breath = list(group)
        result += breath if breath[0] > 0 else sorted(breath)
    return result


def as_asked(events: list[Event]) -> list[int]:
    """Return the same of a fresh trace."""
    result, held = [], {}
    for kind, values in events:
        if kind == "alloc":
            result.append(held.setdefault(values[0], rounded(values[1])))
        elif kind == "free":
            result.append(-held.pop(values[0]))
        else:
            result += [rounded(sum(values)), -rounded(sum(values))]
    return in_any_order(result)


TRACED = [
    ("sd15", "denoise", "forge", "sdpa"),
    ("sd15", "denoise", "forge", "split"),
    ("sdxl", "denoise", "forge", "sdpa"),
    ("sd15", "denoise", "a1111", "split"),
    ("sd15", "denoise", "a1111", "math"),
    ("sd15", "denoise", "a1111", "sub_quad"),
    ("sd15", "denoise", "forge", "math"),
    ("sdxl", "controlnet", "forge", "sub_quad"),
    ("sdxl", "text_encode", "forge", "sdpa"),
    *[("sd15", part, "forge", kind) for part in ("vae_decode", "vae_encode") for kind in TRACED],
    *[("sd15", "vae_decode", "a1111", kind) for kind in TRACED],
]


def row_by_row(picture: Tensor) -> Tensor:
    """Return the same memory as a picture that lies row by row, as a profile has it after any attention.

    What fused kernels leave lies in channels last: the 1x1 convolution behind it then takes no workspace, or a copy of
    its input in a batch of one. No part's peak lies there: it is at full size.
    """
    channels, rows, columns = picture.shape[1:]
    return picture.as_strided(picture.shape, (channels * rows * columns, rows * columns, columns, 1))


@pytest.mark.parametrize(("family", "part", "host", "kind"), TRACED)
@pytest.mark.parametrize("setting", [Setting(2, 45, 67), Setting(1, 38, 51)])
def test_a_profile_is_a_fresh_trace_event_by_event(
    family: str, part: str, host: str, kind: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from lib_vram.physics import attention
    from tools import trace_profiles as tool
    from tools.meta.attention import Attend

    monkeypatch.setattr(attention, "KEPT_SLICES", 10**6)
    free = 3 * 2**26 if kind in attention.SELF_SLICING else PLENTY
    attend = Attend(host, kind, free)
    way = (lambda operands: row_by_row(attend.picture(operands))) if part.startswith("vae") else attend.tokens
    fresh = tool.PARTS[part](family, torch.float16, tool.STYLES[host], way).at(setting)
    profile = load(f"{family}-{part}-fp16-{host}")
    assert profile is not None
    trace = expand(profile, setting, kind, host, free, kept=None)
    assert as_events(trace) == as_asked(fresh.events)
    assert trace.floor_bytes == fresh.peak_bytes
