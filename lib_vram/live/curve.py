"""The last minutes of the card: readings and the phases that a generation was in, of which old ones fall out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from lib_vram.live.picture import Holding
from lib_vram.request import Request

MOST_SAMPLES = 600
"""Ten minutes at a reading a second."""
MOST_MARKS = 200

START = "run"
"""Name of the mark at which a generation begins; then come phases by name, and one of :data:`ENDS`."""
FIXED = "fixed"
"""Name of the mark at which another request takes the place of the one that was asked for."""
ENDS = ("done", "failed")


@dataclass(frozen=True)
class Sample:
    """One reading. ``at`` is in seconds since the epoch, sizes in bytes; ``None`` is not known."""

    at: float
    used_bytes: int | None
    reserved_bytes: int | None
    allocated_bytes: int | None
    others_bytes: int | None
    highest_bytes: int | None = None
    """The most that was ever allocated since whoever counts last began anew."""

    @property
    def in_use_bytes(self) -> int | None:
        """What is in use without this process's cache."""
        if self.used_bytes is None or self.reserved_bytes is None or self.allocated_bytes is None:
            return self.used_bytes if self.used_bytes is not None else self.allocated_bytes
        return self.used_bytes - (self.reserved_bytes - self.allocated_bytes)

    @classmethod
    def of(cls, at: float, holding: Holding) -> Sample:
        """Return what of ``holding`` belongs into the curve."""
        torch = holding.torch
        return cls(
            at, holding.used_bytes, torch.reserved_bytes if torch else None,
            torch.allocated_bytes if torch else None, holding.others_bytes, torch.highest_bytes if torch else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """Something that a generation came to at ``at``; ``request`` is what it computes, at its start."""

    at: float
    name: str
    request: Request | None = None


class Curve:
    """Bounded; written by one thread and read by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)

    def add(self, sample: Sample) -> None:
        """Keep ``sample`` as the latest."""
        with self._lock:
            self._samples.append(sample)

    def mark(self, mark: Mark) -> None:
        """Keep ``mark`` as the latest."""
        with self._lock:
            self._marks.append(mark)

    def samples(self, since: float = 0.0) -> tuple[Sample, ...]:
        """Return the readings that are newer than ``since``, the oldest first."""
        with self._lock:
            return tuple(item for item in self._samples if item.at > since)

    def latest_at(self) -> float:
        """Return when the latest reading was taken, 0 before the first."""
        with self._lock:
            return self._samples[-1].at if self._samples else 0.0

    def marks(self) -> tuple[Mark, ...]:
        """Return what happened since the oldest reading, the generation at work then included."""
        with self._lock:
            marks, first = tuple(self._marks), self._samples[0].at if self._samples else 0.0
        begin = 0
        for place, item in enumerate(marks):
            if item.name == START and item.at <= first:
                begin = place
        return marks[begin:]

    def last_run(self) -> tuple[Mark, ...]:
        """Return the marks of the latest generation, from its start; none before the first."""
        with self._lock:
            marks = tuple(self._marks)
        start = max((place for place, item in enumerate(marks) if item.name == START), default=None)
        return () if start is None else marks[start:]


def peak_bytes(samples: Iterable[Sample]) -> int | None:
    """Return the card's peak in a generation with these readings, however short it was, the unused cache left out.

    From torch's own mark of the highest, which is read and never reset: ``None`` when the generation did not move it,
    because an earlier one came higher.
    """
    known = [item for item in samples if item.highest_bytes is not None]
    if not known or known[0].highest_bytes == known[-1].highest_bytes:
        return None
    last = known[-1]
    if last.highest_bytes is None or last.used_bytes is None or last.reserved_bytes is None:
        return last.highest_bytes
    return last.used_bytes - last.reserved_bytes + last.highest_bytes
