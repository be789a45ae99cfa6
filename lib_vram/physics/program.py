"""A program: a profile with one way of attention put in, ready to be replayed at any size.

The steps are numbers only, so that a replay is a tight loop; the sizes are worked out anew for
each size asked for, which is a few hundred multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.physics.allocator import CachingAllocator, rounded
from lib_vram.physics.attention import FREED, KINDS, PLENTY, RESULT, SELF_SLICING, Call
from lib_vram.physics.profile import ALLOC, ATTEND, FREE, SCRATCH, Profile, halvings, monomials

GIVE_BACK = -1
AT_ONCE = -1

Operation = tuple[int, int]
"""Slot and size number. ``GIVE_BACK`` for the size frees the slot; ``AT_ONCE`` for the slot takes and frees at once."""

KEPT_REPEATS = 3
"""Repeats of equal transformer blocks that are replayed. The build checks that no figure changes by the others."""


@dataclass(frozen=True)
class EventTrace:
    """A concrete trace: what one part takes and gives back at one size. ``sizes`` in bytes, rounded as allocated."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]

    @property
    def floor_bytes(self) -> int:
        """The peak of live bytes, convolution workspaces included."""
        return live_peak(self.operations, self.sizes)

    @property
    def bare_floor_bytes(self) -> int:
        """The peak of live bytes when no convolution gets a workspace."""
        return live_peak([item for item in self.operations if item[0] != AT_ONCE], self.sizes)

    def replay(self, allocator: CachingAllocator) -> None:
        """Take and give back every block through ``allocator``; nothing stays taken.

        Raises:
            DeviceOutOfMemory: the allocator's device ran out. What was taken so far stays taken.
        """
        held = {}
        for slot, size in self.operations:
            if size == GIVE_BACK:
                allocator.free(held.pop(slot))
            elif slot == AT_ONCE:
                allocator.free(allocator.malloc(self.sizes[size]))
            else:
                held[slot] = allocator.malloc(self.sizes[size])
        for block in held.values():
            allocator.free(block)


def live_peak(operations: list[Operation] | tuple[Operation, ...], sizes: tuple[int, ...]) -> int:
    """Return the largest sum of blocks that are taken at the same time."""
    live = peak = 0
    held: dict[int, int] = {}
    for slot, size in operations:
        if size == GIVE_BACK:
            live -= held[slot]
        elif slot == AT_ONCE:
            peak = max(peak, live + sizes[size])
        else:
            held[slot] = sizes[size]
            live += sizes[size]
            peak = max(peak, live)
    return peak


@dataclass(frozen=True)
class Setting:
    """One size at which a part runs: the batch that it sees and the latent's rows and columns."""

    batch: int
    rows: int
    columns: int


def term_sizes(profile: Profile, setting: Setting) -> list[int]:
    """Return the bytes of every term at ``setting``, as asked for."""
    values = monomials(setting.batch, setting.rows, setting.columns)
    return [sum(values[index] * factor for index, factor in term) for term in profile.terms]


def calls_at(profile: Profile, setting: Setting) -> list[Call]:
    """Return the uses of attention at ``setting``. Fixed numbers of tokens are written as a level of -1."""
    areas = halvings(setting.rows, setting.columns)
    return [
        Call(
            setting.batch, shape.heads,
            areas[shape.query_level] if shape.query_level >= 0 else shape.key_tokens,
            areas[shape.key_level] if shape.key_level >= 0 else shape.key_tokens,
            shape.head_size, shape.itemsize, shape.picture,
        )
        for shape in profile.calls
    ]  # fmt: skip


def expand(profile: Profile, setting: Setting, kind: str, free_bytes: int = PLENTY,
           kept: int | None = KEPT_REPEATS) -> EventTrace:  # fmt: skip
    """Return the trace of ``profile`` at ``setting`` with attention computed in the way ``kind``.

    ``free_bytes`` is what the device has free before the part starts; only the ways that slice
    themselves by free memory look at it. ``kept`` is how many of equal repeats are written out.
    """
    writer = _Writer([rounded(size) for size in term_sizes(profile, setting)])
    calls = calls_at(profile, setting)
    fixed = None if kind in SELF_SLICING else [KINDS[kind](call, PLENTY) for call in calls]
    tokens = profile.unrolled(kept)
    for token, argument in tokens:
        if token == ALLOC:
            writer.take(argument)
        elif token == SCRATCH:
            writer.operations.append((AT_ONCE, argument))
        elif token == FREE:
            writer.give_back(argument)
        elif token == ATTEND:
            steps = fixed[argument] if fixed else KINDS[kind](calls[argument], free_bytes - writer.live)
            writer.attend(steps)
    return EventTrace(tuple(writer.operations), tuple(writer.sizes))


class _Writer:
    """Turns tokens into operations: gives every block a slot and keeps count of what is live."""

    def __init__(self, sizes: list[int]) -> None:
        self.operations: list[Operation] = []
        self.sizes = sizes
        self.live = 0
        self._numbers: dict[int, int] = {}
        self._slots: list[tuple[int, int]] = []
        self._free_slots: list[int] = []
        self._slot_count = 0

    def take(self, size: int) -> None:
        slot = self._slot()
        self._slots.append((slot, size))
        self.live += self.sizes[size]
        self.operations.append((slot, size))

    def give_back(self, distance: int) -> None:
        slot, size = self._slots[-distance]
        self.live -= self.sizes[size]
        self._free_slots.append(slot)
        self.operations.append((slot, GIVE_BACK))

    def attend(self, steps: list[tuple[int, int]]) -> None:
        local: dict[int, int] = {}
        result = (0, 0)
        for name, size_bytes in steps:
            if size_bytes == FREED:
                slot = local.pop(name)
                self._free_slots.append(slot)
                self.operations.append((slot, GIVE_BACK))
                continue
            slot = local[name] = self._slot()
            number = self._number(rounded(size_bytes))
            self.operations.append((slot, number))
            if name == RESULT:
                result = (slot, number)
        self._slots.append(result)
        self.live += self.sizes[result[1]]

    def _slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._slot_count += 1
        return self._slot_count - 1

    def _number(self, size: int) -> int:
        number = self._numbers.get(size)
        if number is None:
            number = self._numbers[size] = len(self.sizes)
            self.sizes.append(size)
        return number
