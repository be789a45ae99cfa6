"""What ``PYTORCH_CUDA_ALLOC_CONF`` (``PYTORCH_ALLOC_CONF`` from PyTorch 2.9 on) says, as far as it moves blocks.

Options, their values and their bounds are those of ``c10/core/AllocatorConfig.cpp`` and
``c10/cuda/CUDAAllocatorConfig.cpp``, PyTorch 1.12 to 2.13. An option that some PyTorch takes and that
moves no block on the device is accepted; one that none takes is refused by its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from lib_vram.errors import BadInput
from lib_vram.units import MIB

MIN_BLOCK = 512
NO_SPLIT_LIMIT = 2**62
LARGE_SEGMENT = 20 * MIB
MIN_SPLIT_SIZE_MB = 20
"""PyTorch refuses a ``max_split_size_mb`` that is not larger than the 20 MiB segment."""

INTERVALS = 16
"""``roundup_power2_divisions`` has one number for each power of two from 1 MiB to 32 GiB; the ends hold beyond."""

MOST_MB = 2**30
"""Sizes above a pebibyte are cut to it: no device comes near."""

ASYNC_BACKENDS = ("cudaMallocAsync", "hipMallocAsync")

_BOOLEANS = frozenset(
    (
        "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register", "pinned_use_background_threads", "pinned_free_catch_all",
        "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
    )
)  # fmt: skip
_NUMBERS = frozenset(("pinned_num_register_threads", "pinned_reserve_segment_size_mb"))
_ADDRESS_SPACE = frozenset(("expandable_segments_reserve", "expandable_segments_reserve_by_class"))
"""How many addresses a growing segment sets aside: no memory."""


@dataclass(frozen=True)
class AllocatorConf:
    """The allocator's options that move blocks. Sizes in bytes.

    ``divisions`` are those of ``roundup_power2_divisions``, empty for none. ``memory_fraction`` is the
    share of the device that the process may reserve, ``None`` for all of it. ``collect_above`` is the
    share of that at which free segments are collected: PyTorch looks at it only where there is a fraction.
    """

    max_split_bytes: int = NO_SPLIT_LIMIT
    expandable: bool = False
    stream_ordered: bool = False
    non_split_rounding_bytes: int = LARGE_SEGMENT
    large_segment_bytes: int = LARGE_SEGMENT
    divisions: tuple[int, ...] = ()
    round_up_to_bytes: int = NO_SPLIT_LIMIT
    collect_above: float | None = None
    memory_fraction: float | None = None

    @classmethod
    def parse(cls, text: str) -> AllocatorConf:
        """Return the configuration that ``text`` (``"expandable_segments:True,max_split_size_mb:128"``) sets.

        Raises:
            BadInput: an option does not exist, or its value is not one it takes.
        """
        return _parse(text)

    @property
    def collects(self) -> bool:
        """Whether free segments are collected before the device is full."""
        return self.collect_above is not None and self.memory_fraction is not None and not self.stream_ordered

    def allowed_bytes(self, total_bytes: int) -> int:
        """Return what the process may reserve of a device of ``total_bytes``."""
        return total_bytes if self.memory_fraction is None else int(total_bytes * self.memory_fraction)

    def rounded(self, size_bytes: int) -> int:
        """Return the bytes that a request of ``size_bytes`` occupies."""
        whole = -(-size_bytes // MIN_BLOCK) * MIN_BLOCK if size_bytes > MIN_BLOCK else MIN_BLOCK
        if not self.divisions or whole > self.round_up_to_bytes:
            return whole
        interval = min(max(size_bytes.bit_length() - 1 - 20, 0), INTERVALS - 1)
        divisions = self.divisions[interval]
        if divisions <= 1 or size_bytes <= MIN_BLOCK * divisions or size_bytes & (size_bytes - 1) == 0:
            return whole
        step = (1 << (size_bytes.bit_length() - 1)) // divisions
        return -(-size_bytes // step) * step


@lru_cache(maxsize=64)
def _parse(text: str) -> AllocatorConf:
    values: dict[str, object] = {}
    for item in _items(text):
        key, found, value = item.partition(":")
        reader = _READERS.get(key)
        if reader is None or not found:
            raise BadInput("alloc_conf", got=item, takes=f"option:value with the options {', '.join(sorted(_READERS))}")
        values.update(reader(key, value))
    if values.get("stream_ordered"):
        values = {name: values[name] for name in ("stream_ordered", "memory_fraction") if name in values}
    return AllocatorConf(**values)  # type: ignore[arg-type]


def _items(text: str) -> Iterator[str]:
    """Return the options of ``text``: parted at commas that are not in brackets, blanks left out as PyTorch does."""
    for item in re.split(r",(?![^\[]*\])", "".join(text.split())):
        if item:
            yield item


def _refuse(key: str, value: str, takes: str) -> BadInput:
    return BadInput("alloc_conf", got=f"{key}:{value}", takes=takes)


def _switch(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _refuse(key, value, f"{key}:True or {key}:False")
    return value == "True"


def _megabytes(key: str, value: str, above: int) -> int:
    if not (value.isascii() and value.isdecimal()) or int(value[:20]) <= above:
        raise _refuse(key, value, f"a whole number above {above}")
    return min(int(value[:20]), MOST_MB) * MIB


def _share(key: str, value: str, *, ends: bool) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not (0 <= share <= 1 if ends else 0 < share < 1):
        raise _refuse(key, value, "a number from 0 to 1" if ends else "a number between 0 and 1")
    return share


def _backend(key: str, value: str) -> dict[str, object]:
    if value not in ("native", *ASYNC_BACKENDS):
        raise _refuse(key, value, f"native or {ASYNC_BACKENDS[0]}")
    return {"stream_ordered": value != "native"}


def _divisions(key: str, value: str) -> dict[str, object]:
    """Read one number for all sizes, or a list such as ``[256:1,512:2,1024:4,>:8]``."""
    takes = "a power of two, or a list such as [256:1,512:2,1024:4,>:8]"
    if not value.startswith("["):
        return {"divisions": (_power(value, key, takes),) * INTERVALS}
    if not value.endswith("]"):
        raise _refuse(key, value, takes)
    result = [0] * INTERVALS
    last, first = 0, True
    for item in filter(None, value[1:-1].split(",")):
        size, found, count = item.partition(":")
        divisions = 0 if count == "0" else _power(count, key, takes)
        if not found:
            raise _refuse(key, value, takes)
        if size == ">":
            result[last:] = [divisions] * (INTERVALS - last)
            continue
        last = min(_power(size, key, takes).bit_length() - 1, INTERVALS - 1)
        for place in range(0 if first else last, last + 1):
            result[place] = divisions
        first = False
    return {"divisions": tuple(result)}


def _power(text: str, key: str, takes: str) -> int:
    number = int(text[:20]) if text.isascii() and text.isdecimal() else 0
    if number < 1 or number & (number - 1):
        raise _refuse(key, text, takes)
    return number


def _accepted(key: str, value: str) -> dict[str, object]:
    """Check an option that moves no block."""
    if key in _BOOLEANS:
        _switch(key, value)
    elif key in _NUMBERS:
        _megabytes(key, value, 0)
    return {}


_READERS: dict[str, Callable[[str, str], dict[str, object]]] = {
    "backend": _backend,
    "expandable_segments": lambda key, value: {"expandable": _switch(key, value)},
    "max_split_size_mb": lambda key, value: {"max_split_bytes": _megabytes(key, value, MIN_SPLIT_SIZE_MB)},
    "max_non_split_rounding_mb": lambda key, value: {"non_split_rounding_bytes": _megabytes(key, value, 19)},
    "large_segment_size_mb": lambda key, value: {"large_segment_bytes": _megabytes(key, value, 1)},
    "roundup_power2_divisions": _divisions,
    "roundup_bypass_threshold_mb": lambda key, value: {"round_up_to_bytes": _megabytes(key, value, 0)},
    "garbage_collection_threshold": lambda key, value: {"collect_above": _share(key, value, ends=False)},
    "per_process_memory_fraction": lambda key, value: {"memory_fraction": _share(key, value, ends=True)},
    **dict.fromkeys((*_BOOLEANS, *_NUMBERS, *_ADDRESS_SPACE), _accepted),
}
