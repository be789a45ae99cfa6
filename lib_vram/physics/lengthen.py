"""Makes the profile of a deep model from that of the same model with a few of its equal blocks.

Equal blocks in a row are a loop of a profile. A model cut short has the same events with fewer turns;
what is given back after a loop and was taken before it lies as many blocks further back as are
left out. Whether that holds for a model is seen by cutting it twice: the shorter one lengthened
must be the longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lib_vram.physics.profile import ALLOC, ATTEND, FREE, LOOP, REPEAT, Profile, Token


@dataclass(frozen=True)
class _Loop:
    """A loop that gets more turns: how many blocks were taken when it began, and how many the turns add."""

    start: int
    added: int


def turns(profile: Profile) -> list[int]:
    """Return how often each loop of ``profile`` is run, in their order."""
    return [profile.tokens[place + 1][1] for place in _loops(profile.tokens)]


def more_turns(short: Profile, longer: Profile) -> list[int] | None:
    """Return how many more turns each loop has in ``longer``, ``None`` when the two differ in anything else."""
    before, after = turns(short), turns(longer)
    if len(before) != len(after):
        return None
    more = [late - early for early, late in zip(before, after)]
    if min(more, default=0) < 0:
        return None
    made = lengthened(short, more)
    same = (made.tokens, made.terms, made.calls) == (longer.tokens, longer.terms, longer.calls)
    return more if same else None


def lengthened(profile: Profile, more: Sequence[int]) -> Profile:
    """Return ``profile`` with ``more`` turns of each of its loops, in their order."""
    wanted = dict(zip(_loops(profile.tokens), more, strict=True))
    tokens: list[Token] = []
    longer: list[_Loop] = []
    place = taken = 0
    while place < len(profile.tokens):
        kind, argument = profile.tokens[place]
        if kind not in (LOOP, REPEAT):
            taken += kind in (ALLOC, ATTEND)
            tokens.append((kind, _past(argument, taken, longer) if kind == FREE else argument))
            place += 1
            continue
        count = profile.tokens[place + 1][1]
        stretch = profile.tokens[place + 2 : place + 2 + argument]
        blocks = sum(item[0] in (ALLOC, ATTEND) for item in stretch)
        extra = wanted.get(place, 0)
        tokens += [(kind, argument), (kind, count + extra), *_inside(stretch, taken, longer)]
        if extra:
            longer.append(_Loop(taken, extra * blocks))
        taken += count * blocks
        place += 2 + argument
    return replace(profile, tokens=tuple(tokens))


def _loops(tokens: Sequence[Token]) -> list[int]:
    places, place = [], 0
    while place < len(tokens):
        kind, argument = tokens[place]
        if kind in (LOOP, REPEAT):
            if kind == LOOP:
                places.append(place)
            place += 1 + argument
        place += 1
    return places


def _inside(stretch: Sequence[Token], taken: int, longer: list[_Loop]) -> list[Token]:
    """Return a loop's own tokens; what its turns give back lies behind no loop that they are not in."""
    result = []
    for kind, argument in stretch:
        taken += kind in (ALLOC, ATTEND)
        result.append((kind, _past(argument, taken, longer) if kind == FREE else argument))
    return result


def _past(distance: int, taken: int, longer: list[_Loop]) -> int:
    """Return a distance with the blocks added that the loops between then and now have got."""
    target = taken - distance
    return distance + sum(loop.added for loop in longer if target < loop.start)
