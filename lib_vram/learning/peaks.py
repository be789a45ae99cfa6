"""The peak of each stretch of a generation, from readings at its borders and between them.

torch keeps one peak, since its last reset, and the host alone resets it. When that peak has grown over a stretch, it
was reached there: the stretch's peak is known exactly. When it has not, the stretch stayed below it, and the readings
in between say how much it took at least.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.learning.counters import Counters


@dataclass(frozen=True)
class Peak:
    """What a stretch took, in bytes; ``None`` where it is not known.

    One that is not exact was at least so much.
    """

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """What of the whole card was in use."""
    is_exact: bool = False
    is_reserved_exact: bool = False


class Stretch:
    """One phase at work, from its first reading to its last."""

    def __init__(self, phase: str, at: float, start: Counters | None) -> None:
        self.phase = phase
        self.began_at = at
        self._start = start
        self._allocated_bytes = start.allocated_bytes if start else 0
        self._reserved_bytes = start.reserved_bytes if start else 0
        self._device_bytes: int | None = None

    def sample(self, reading: Counters) -> None:
        """Take a reading in between into account."""
        self._allocated_bytes = max(self._allocated_bytes, reading.allocated_bytes)
        self._reserved_bytes = max(self._reserved_bytes, reading.reserved_bytes)

    def sample_device(self, used_bytes: int) -> None:
        """Take into account that so much of the whole card is in use."""
        self._device_bytes = max(self._device_bytes or 0, used_bytes)

    def end(self, last: Counters | None) -> Peak:
        """Return the peak; ``last`` is the reading at the stretch's end."""
        start = self._start
        if start is None or last is None:
            return Peak(device_bytes=self._device_bytes)
        self.sample(last)
        allocated = _peak(
            start.allocated_bytes, self._allocated_bytes, start.allocated_peak_bytes, last.allocated_peak_bytes
        )
        reserved = _peak(
            start.reserved_bytes, self._reserved_bytes, start.reserved_peak_bytes, last.reserved_peak_bytes
        )
        return Peak(allocated[0], reserved[0], self._device_bytes, allocated[1], reserved[1])


def _peak(start_bytes: int, seen_bytes: int, before_bytes: int, after_bytes: int) -> tuple[int, bool]:
    """Return a peak and whether it is exact, from the first and the largest reading and the counter around them.

    A stretch that took nothing beyond what was there already is not exact: its work may have been left out.
    """
    if after_bytes > before_bytes:
        return max(seen_bytes, after_bytes), True
    if after_bytes < before_bytes:  # the host has reset it on the way
        return max(seen_bytes, after_bytes), False
    return seen_bytes, seen_bytes >= after_bytes > start_bytes


def merged(first: Peak, second: Peak) -> Peak:
    """Return the peak of two stretches of the same phase, as when a run makes several batches."""
    allocated = _larger((first.allocated_bytes, first.is_exact), (second.allocated_bytes, second.is_exact))
    reserved = _larger(
        (first.reserved_bytes, first.is_reserved_exact), (second.reserved_bytes, second.is_reserved_exact)
    )
    devices = [item for item in (first.device_bytes, second.device_bytes) if item is not None]
    return Peak(allocated[0], reserved[0], max(devices, default=None), allocated[1], reserved[1])


def _larger(first: tuple[int | None, bool], second: tuple[int | None, bool]) -> tuple[int | None, bool]:
    if first[0] is None or second[0] is None:
        return second if first[0] is None else first
    return max(first, second, key=lambda item: (item[0] or 0, item[1]))
