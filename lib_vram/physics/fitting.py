"""Makes a profile from traces of one part at several sizes: the same events, sizes fitted to monomials."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from lib_vram.physics.profile import (
    ALLOC,
    ATTEND,
    FREE,
    LOOP,
    REPEAT,
    SCRATCH,
    SYMBOLS,
    CallShape,
    Profile,
    Term,
    Token,
)  # fmt: skip
from lib_vram.physics.program import Setting, calls_at, term_sizes
from lib_vram.physics.raw import Event, RawTrace

LONGEST_SUM = 3
"""Monomials in one size: a padded picture is area + sides + corner."""


class DoesNotFit(Exception):
    """The traces cannot be described by one profile; the message says which event and why."""


def fit(name: str, parameters: int, settings: Sequence[Setting], traces: Sequence[RawTrace]) -> Profile:
    """Return the profile that gives every trace back exactly.

    Raises:
        DoesNotFit: the events differ between sizes, or a size is not a sum of monomials.
    """
    kinds = [[kind for kind, _ in trace.events] for trace in traces]
    if any(other != kinds[0] for other in kinds[1:]):
        raise DoesNotFit(f"{name}: the order of events changes with the size")
    fitter = _Fitter(settings)
    tokens = [fitter.token(name, index, [trace.events[index] for trace in traces]) for index in range(len(kinds[0]))]
    steps = [token for token in tokens if token is not None]
    return Profile(name, parameters, tuple(fitter.terms), tuple(fitter.calls), compress(steps))


def check_events(profile: Profile, setting: Setting, fresh: RawTrace) -> None:
    """Compare a profile with a trace at ``setting``, event by event.

    Raises:
        DoesNotFit: an event is another one, or has another size.
    """
    checker = _Checker(profile, setting)
    tokens = profile.unrolled()
    for index, (kind, values) in enumerate(fresh.events):
        if kind == "alloc" and checker.attends:
            checker.result_of_attention(values[0])
        elif not checker.same(kind, values, *next(tokens)):
            raise DoesNotFit(f"{profile.name} at {setting}: event {index}, {kind} {values}, is not what it says")
    if next(tokens, None) is not None:
        raise DoesNotFit(f"{profile.name} at {setting}: it has events that the trace has not")


class _Checker:
    def __init__(self, profile: Profile, setting: Setting) -> None:
        self.attends = False
        self._sizes = term_sizes(profile, setting)
        self._calls = calls_at(profile, setting)
        self._taken: list[int] = []

    def result_of_attention(self, block: int) -> None:
        self._taken.append(block)
        self.attends = False

    def same(self, kind: str, values: tuple[int, ...], token: int, argument: int) -> bool:
        if kind == "alloc":
            self._taken.append(values[0])
            return token == ALLOC and self._sizes[argument] == values[1]
        if kind == "free":
            return token == FREE and self._taken[-argument] == values[0]
        if kind == "workspace":
            return token == SCRATCH and self._sizes[argument] == sum(values)
        self.attends = token == ATTEND
        return self.attends and self._calls[argument] == values[:7]


class _Fitter:
    def __init__(self, settings: Sequence[Setting]) -> None:
        self.rows = [item.monomials for item in settings]
        self.settings = settings
        self.terms: dict[Term, int] = {}
        self.calls: dict[CallShape, int] = {}
        self._known: dict[tuple[int, ...], Term] = {}
        self._order: dict[int, int] = {}
        self._attends = False

    def token(self, name: str, index: int, events: list[Event]) -> Token | None:
        kind, first = events[0]
        try:
            if kind == "alloc":
                self._order[first[0]] = len(self._order)
                if self._attends:
                    self._attends = False
                    return None
                return ALLOC, self._number([self._term([values[1] for _, values in events])])
            if kind == "free":
                return FREE, len(self._order) - self._order[first[0]]
            if kind == "workspace":
                parts = [self._term([values[part] for _, values in events]) for part in range(3)]
                return SCRATCH, self._number(parts)
            self._attends = True
            return ATTEND, self._call([values for _, values in events])
        except DoesNotFit as fault:
            raise DoesNotFit(f"{name}, event {index}, {kind}: {fault}") from None

    def _number(self, parts: list[Term]) -> int:
        total: dict[int, int] = {}
        for part in parts:
            for monomial, factor in part:
                total[monomial] = total.get(monomial, 0) + factor
        term = tuple(sorted(total.items()))
        return self.terms.setdefault(term, len(self.terms))

    def _term(self, sizes: list[int]) -> Term:
        key = tuple(sizes)
        if key not in self._known:
            self._known[key] = self._search(sizes)
        return self._known[key]

    def _search(self, sizes: list[int]) -> Term:
        if not any(sizes):
            return ()
        for length in range(1, LONGEST_SUM + 1):
            for chosen in combinations(range(len(SYMBOLS)), length):
                factors = _solve([[row[index] for index in chosen] for row in self.rows], sizes)
                if factors is not None:
                    return tuple(zip(chosen, factors))
        raise DoesNotFit(f"sizes {sizes} are no sum of {', '.join(SYMBOLS)}")

    def _call(self, values: list[tuple[int, ...]]) -> int:
        stretches = {Fraction(item[0], setting.batch) for item, setting in zip(values, self.settings)}
        if len(stretches) > 1 or (times := stretches.pop()).denominator > 1:
            raise DoesNotFit("attention's batch is not the part's")
        areas = [item.areas for item in self.settings]
        query, key = (_level([item[place] for item in values], areas) for place in (2, 3))
        cells = {item[2] for item in (query, key) if item[0] >= 0} or {1}
        if len(cells) > 1:
            raise DoesNotFit("queries and keys are of two sorts")
        first = values[0]
        if any(item[4:7] != first[4:7] or item[1] != first[1] for item in values):
            raise DoesNotFit("attention's heads change with the size")
        _, heads, _, _, size, itemsize, kind, *operands = first
        query_back, key_back, value_back = (len(self._order) - self._order[block] for block in operands)
        shape = CallShape(heads, query[0], key[0], key[1], size, itemsize, kind, query_back, key_back, value_back,
                          query[1], int(times), cells.pop())  # fmt: skip
        return self.calls.setdefault(shape, len(self.calls))


CELLS = (1, 4)


def _level(tokens: list[int], areas: list[tuple[int, ...]]) -> tuple[int, int, int]:
    """Return the level of the latent, the tokens on top of it and those in each cell; the level is -1 for none."""
    if len(set(tokens)) == 1:
        return -1, tokens[0], 1
    for cells in CELLS:
        for level in range(len(areas[0])):
            more = {count - cells * item[level] for count, item in zip(tokens, areas)}
            if len(more) == 1 and min(more) >= 0:
                return level, more.pop(), cells
    raise DoesNotFit(f"token counts {tokens} are no level of the latent")


def _solve(rows: list[list[int]], sizes: list[int]) -> tuple[int, ...] | None:
    """Return whole positive factors that give every size, ``None`` when there are none."""
    length = len(rows[0])
    matrix = [[Fraction(value) for value in row] + [Fraction(size)] for row, size in zip(rows[:length], sizes)]
    for column in range(length):
        pivot = next((index for index in range(column, length) if matrix[index][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        lead = matrix[column][column]
        matrix[column] = [value / lead for value in matrix[column]]
        for index in range(length):
            if index != column and matrix[index][column]:
                ratio = matrix[index][column]
                matrix[index] = [value - ratio * top for value, top in zip(matrix[index], matrix[column])]
    factors = [row[-1] for row in matrix]
    if any(factor <= 0 or factor.denominator != 1 for factor in factors):
        return None
    whole = tuple(int(factor) for factor in factors)
    if all(sum(map(int.__mul__, row, whole)) == size for row, size in zip(rows, sizes)):
        return whole
    return None


def compress(tokens: list[Token]) -> tuple[Token, ...]:
    """Return the tokens with equal stretches in a row written once, those that save most first."""
    result: list[Token] = []
    last_use = _last_uses(tokens)
    place = 0
    while place < len(tokens):
        length, count = _repeat_at(tokens, place)
        if count > 1:
            kind = LOOP if _keeps_nothing(last_use, place, length, count) else REPEAT
            result += [(kind, length), (kind, count), *tokens[place : place + length]]
            place += length * count
        else:
            result.append(tokens[place])
            place += 1
    return tuple(result)


def _last_uses(tokens: list[Token]) -> dict[int, int]:
    """Return where each block is given back, by the place where it is taken."""
    taken: list[int] = []
    uses = {}
    for place, (kind, argument) in enumerate(tokens):
        if kind in (ALLOC, ATTEND):
            taken.append(place)
            uses[place] = len(tokens)
        elif kind == FREE:
            uses[taken[-argument]] = place
    return uses


def _keeps_nothing(last_use: dict[int, int], place: int, length: int, count: int) -> bool:
    """Return whether every stretch's blocks are given back by the end of the next one."""
    for turn in range(count - 1):
        start = place + turn * length
        if any(last_use.get(taken, 0) >= start + 2 * length for taken in range(start, start + length)):
            return False
    return True


SHORTEST_STRETCH = 20
LONGEST_STRETCH = 200


def _repeat_at(tokens: list[Token], place: int) -> tuple[int, int]:
    """Return the stretch that repeats from ``place`` on and saves most, as its length and how often it comes."""
    best = (0, 1)
    for length in range(SHORTEST_STRETCH, min(LONGEST_STRETCH, (len(tokens) - place) // 2) + 1):
        stretch = tokens[place : place + length]
        count = 1
        while tokens[place + count * length : place + (count + 1) * length] == stretch:
            count += 1
        if count > 1 and length * (count - 1) > best[0] * (best[1] - 1):
            best = (length, count)
    return best
