"""A program: a profile with one way of attention put in, ready to be replayed at any size.

The order of what is taken and given back, its layout, is worked out once; a size only needs its
few hundred multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from lib_vram.physics.allocator import Block, CachingAllocator, rounded
from lib_vram.physics.attention import FREED, KEY, PLENTY, QUERY, RESULT, VALUE, WAYS, Call
from lib_vram.physics.kernels import Shortened
from lib_vram.physics.profile import ALLOC, ATTEND, FREE, SCRATCH, CallShape, Profile, halvings, monomials

GIVE_BACK = -1
AT_ONCE = -1
TWO_AT_ONCE = -2

Operation = tuple[int, int]
"""Slot and size number. ``GIVE_BACK`` for the size frees the slot; ``AT_ONCE`` for the slot takes and frees at once.

``TWO_AT_ONCE`` takes two and frees both, as normalisations do with their statistics; the number is that of a pair.
"""

VOLUMES = ("wan-vae", "qwen_image-vae")
"""Profiles of 3-D convolutions. The workspace of each is two blocks: input and output in another layout, then the
weights. With the weights of the model loaded first, as they were, this meets all eight published figures of reserved of
Qwen's VAE within 2 % (InvokeAI PR 9305, RTX 4090, torch 2.7.1); one block is 7 % off, three are 5 %, and any other
order is no better. For 2-D convolutions one block is what was measured (InvokeAI PR 7673)."""

KEPT_REPEATS = 2
"""Stretches of a loop that are replayed. The build checks that no figure changes by leaving out the others."""


@dataclass(frozen=True)
class Layout:
    """The order in which blocks are taken and given back, at every size.

    ``loads`` are the size numbers that come on top of what is live, one after the other, and
    ``~number`` for those that go; ``bare_loads`` are the same without convolution workspaces.
    ``operations`` are what a replay does, and ``pairs`` the sizes of what is taken two at once.
    """

    operations: tuple[Operation, ...]
    pairs: tuple[tuple[int, int], ...]
    loads: tuple[int, ...]
    bare_loads: tuple[int, ...]


@dataclass(frozen=True)
class EventTrace:
    """A concrete trace: what one part takes and gives back at one size. ``sizes`` in bytes, rounded as allocated."""

    layout: Layout
    sizes: tuple[int, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What is taken and given back, in order."""
        return self.layout.operations

    @property
    def floor_bytes(self) -> int:
        """The peak of live bytes, convolution workspaces included."""
        return _peak(self.layout.loads, self.sizes)

    @property
    def bare_floor_bytes(self) -> int:
        """The peak of live bytes when no convolution gets a workspace."""
        return _peak(self.layout.bare_loads, self.sizes)

    def replay(self, allocator: CachingAllocator) -> None:
        """Take and give back every block through ``allocator``; nothing stays taken.

        Raises:
            DeviceOutOfMemory: the allocator's device ran out. What was taken so far stays taken.
        """
        held: dict[int, Block] = {}
        self.run(allocator, held)
        for block in held.values():
            allocator.free(block)

    def run(self, allocator: CachingAllocator, held: dict[int, Block], first: int = 0, last: int | None = None) -> None:
        """Put the operations from ``first`` up to ``last`` through ``allocator``; ``held`` has what is taken, by slot.

        Raises:
            DeviceOutOfMemory: the allocator's device ran out.
        """
        sizes, pairs = self.sizes, self.layout.pairs
        take, touch, free = allocator.take, allocator.touch, allocator.free
        for slot, size in self.layout.operations[first:last]:
            if size == GIVE_BACK:
                free(held.pop(slot))
            elif slot >= 0:
                held[slot] = take(sizes[size])
            elif slot == AT_ONCE:
                touch(sizes[size])
            else:
                one, other = pairs[size]
                allocator.touch_two(sizes[one], sizes[other])


def _peak(loads: Sequence[int], sizes: tuple[int, ...]) -> int:
    signed = [*sizes, *(-size for size in reversed(sizes))]
    return max(accumulate(map(signed.__getitem__, loads)), default=0)


@dataclass(frozen=True)
class Setting:
    """One size at which a part runs: the batch that it sees, the latent's rows and columns, and its frames."""

    batch: int
    rows: int
    columns: int
    frames: int = 1

    @property
    def monomials(self) -> tuple[int, ...]:
        """The values of a profile's symbols."""
        return monomials(self.batch, self.rows, self.columns, self.frames)

    @property
    def areas(self) -> tuple[int, ...]:
        """The areas of the latent and of its halvings, those of all frames together."""
        return tuple(self.frames * area for area in halvings(self.rows, self.columns))


def term_sizes(profile: Profile, setting: Setting) -> list[int]:
    """Return the bytes of every term at ``setting``, as asked for."""
    values = setting.monomials
    return [sum(values[index] * factor for index, factor in term) for term in profile.terms]


def calls_at(profile: Profile, setting: Setting) -> list[Call]:
    """Return the uses of attention at ``setting``."""
    areas = setting.areas
    return [
        Call(
            setting.batch * shape.stretches, shape.heads,
            (areas[shape.query_level] * shape.cells if shape.query_level >= 0 else 0) + shape.query_tokens,
            (areas[shape.key_level] * shape.cells if shape.key_level >= 0 else 0) + shape.key_tokens,
            shape.head_size, shape.itemsize, shape.picture,
        )
        for shape in profile.calls
    ]  # fmt: skip


def expand(profile: Profile, setting: Setting, attention: str, host: str = "forge", free_bytes: int = PLENTY,
           kept: int | None = KEPT_REPEATS, *, shortened: Shortened | None = None) -> EventTrace:  # fmt: skip
    """Return the trace of ``profile`` at ``setting`` with attention computed as ``host`` does for ``attention``.

    ``free_bytes`` is what the device has free before the part starts; only the ways that slice
    themselves by free memory look at it. ``kept`` is how many stretches of a loop are written out.
    ``shortened`` is what makes self-attention look at fewer tokens.
    """
    way = WAYS[host][attention]
    whole = term_sizes(profile, setting)
    sizes = [rounded(size) for size in whole]
    calls = calls_at(profile, setting)
    if shortened is not None:
        calls = [shortened.call(call, setting.rows, setting.columns) for call in calls]
    parts = _parts(profile, setting, calls, sizes, way.part, free_bytes, kept)
    plans: dict[tuple[int, int], int] = {}
    choice = tuple(plans.setdefault(item, len(plans)) for item in parts)
    written = [way.steps(calls[call], queries) for call, queries in plans]
    pattern = tuple(tuple((name, size == FREED) for name, size in steps) for steps in written)
    for steps in written:
        sizes.extend(rounded(size) for _, size in steps if size != FREED)
    for term, weights in _divided(profile).items():
        sizes += (rounded(whole[term] - weights), rounded(weights))
    return EventTrace(_layout(profile, choice, pattern, kept), tuple(sizes))


def _parts(profile: Profile, setting: Setting, calls: list[Call], sizes: list[int], part: object,
           free_bytes: int, kept: int | None) -> list[tuple[int, int]]:  # fmt: skip
    """Return for each use of attention which call it is and how many queries go at a time."""
    uses = _uses(profile, kept)
    if not callable(part):
        return [(use.call, calls[use.call].queries) for use in uses]
    results = [rounded(call.query_bytes()) for call in calls]
    signed = [*sizes, *results]
    signed += [-size for size in reversed(signed)]
    live = list(accumulate(map(signed.__getitem__, _bare_loads(profile, kept)), initial=0))
    return [(use.call, part(calls[use.call], free_bytes - live[use.place])) for use in uses]


@dataclass(frozen=True)
class _Use:
    """One use of attention: which call, and how many loads come before it."""

    call: int
    place: int


@lru_cache(maxsize=64)
def _uses(profile: Profile, kept: int | None) -> tuple[_Use, ...]:
    place, uses = 0, []
    for kind, argument in profile.unrolled(kept):
        if kind == ATTEND:
            uses.append(_Use(argument, place))
        place += kind in (ALLOC, ATTEND, FREE)
    return tuple(uses)


@lru_cache(maxsize=64)
def _divided(profile: Profile) -> dict[int, int]:
    """Return the terms of workspaces that are two blocks, with the second one's bytes: the weights' at every size."""
    if not profile.name.startswith(VOLUMES):
        return {}
    used = {argument for kind, argument in profile.unrolled(2) if kind == SCRATCH}
    weights = {term: dict(profile.terms[term]).get(0, 0) for term in sorted(used)}
    return {term: size for term, size in weights.items() if size and len(profile.terms[term]) > 1}


@lru_cache(maxsize=64)
def _bare_loads(profile: Profile, kept: int | None) -> tuple[int, ...]:
    """Return the loads between uses of attention, each of which adds its result; its size comes after the terms."""
    taken: list[int] = []
    loads = []
    for kind, argument in profile.unrolled(kept):
        if kind == FREE:
            loads.append(~taken[-argument])
        elif kind in (ALLOC, ATTEND):
            taken.append(argument if kind == ALLOC else len(profile.terms) + argument)
            loads.append(taken[-1])
    return tuple(loads)


Pattern = tuple[tuple[tuple[int, bool], ...], ...]
"""The steps of each plan of attention without their sizes: local, and whether it is given back."""


@lru_cache(maxsize=256)
def _layout(profile: Profile, choice: tuple[int, ...], pattern: Pattern, kept: int | None) -> Layout:
    first = [len(profile.terms)]
    for steps in pattern:
        first.append(first[-1] + sum(not freed for _, freed in steps))
    divided = {term: first[-1] + 2 * place for place, term in enumerate(_divided(profile))}
    writer = _Writer()
    uses = iter(choice)
    for kind, argument in profile.unrolled(kept):
        if kind == ALLOC:
            writer.take(argument)
        elif kind == SCRATCH and argument in divided:
            writer.two_at_once(divided[argument])
        elif kind == SCRATCH:
            writer.at_once(argument)
        elif kind == FREE:
            writer.give_back(argument)
        elif kind == ATTEND:
            plan = next(uses)
            writer.attend(profile.calls[argument], pattern[plan], first[plan])
    return writer.layout()


class _Writer:
    """Turns tokens into operations: gives every block a slot, and writes down what comes and goes."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._loads: list[int] = []
        self._bare_loads: list[int] = []
        self._blocks: list[tuple[Operation, ...]] = []
        self._free_slots: list[int] = []
        self._slot_count = 0
        self._pairs: dict[tuple[int, int], int] = {}

    def layout(self) -> Layout:
        operations, pairs = _paired(self._operations, self._pairs)
        return Layout(tuple(operations), tuple(pairs), tuple(self._loads), tuple(self._bare_loads))

    def take(self, size: int) -> None:
        self._blocks.append((self._take(size),))

    def at_once(self, size: int) -> None:
        self._operations.append((AT_ONCE, size))
        self._loads += (size, ~size)

    def two_at_once(self, size: int) -> None:
        """Take this size and the next one together, and give both back."""
        pair = (size, size + 1)
        self._operations.append((TWO_AT_ONCE, self._pairs.setdefault(pair, len(self._pairs))))
        self._loads += (*pair, *(~item for item in pair))

    def give_back(self, distance: int) -> None:
        for block in self._blocks[-distance]:
            self._give_back(block)

    def attend(self, shape: CallShape, steps: Sequence[tuple[int, bool]], size: int) -> None:
        operands = {QUERY: shape.query_back, KEY: shape.key_back, VALUE: shape.value_back}
        local: dict[int, Operation] = {}
        for name, freed in steps:
            if not freed:
                local[name] = self._take(size)
                size += 1
            elif name in operands:
                self.give_back(operands[name])
                self._blocks[-operands[name]] = ()
            else:
                self._give_back(local.pop(name))
        result = local.pop(RESULT)
        self._blocks[-operands[QUERY]] += tuple(local.values())
        self._blocks.append((result,))

    def _take(self, size: int) -> Operation:
        if self._free_slots:
            block = (self._free_slots.pop(), size)
        else:
            block = (self._slot_count, size)
            self._slot_count += 1
        self._operations.append(block)
        self._loads.append(size)
        self._bare_loads.append(size)
        return block

    def _give_back(self, block: Operation) -> None:
        slot, size = block
        self._free_slots.append(slot)
        self._operations.append((slot, GIVE_BACK))
        self._loads.append(~size)
        self._bare_loads.append(~size)


def _paired(
    operations: list[Operation], pairs: dict[tuple[int, int], int]
) -> tuple[list[Operation], list[tuple[int, int]]]:
    """Return the operations with what is taken and given back in one breath put together, and the pairs."""
    result: list[Operation] = []
    place = 0
    while place < len(operations):
        slots, sizes = zip(*operations[place : place + 4])
        taken = [size != GIVE_BACK and slot >= 0 for slot, size in zip(slots, sizes)]
        if taken[0] and sizes[1:2] == (GIVE_BACK,) and slots[0] == slots[1]:
            result.append((AT_ONCE, sizes[0]))
            place += 2
        elif taken[:2] == [True] * 2 and sizes[2:] == (GIVE_BACK,) * 2 and set(slots[:2]) == set(slots[2:]):
            result.append((TWO_AT_ONCE, pairs.setdefault((sizes[0], sizes[1]), len(pairs))))
            place += 4
        else:
            result.append(operations[place])
            place += 1
    return result, list(pairs)
