"""Profiles of a VAE at work on a video of any length, from those of a few short ones.

A 3-D VAE goes through a video in chunks, and puts each chunk's result behind what it has so far. So the events
of a longer video are those of a shorter one with more chunks, in which some blocks grow by the same amount with
each chunk, or with the length of the whole. Two videos that are two latent frames apart show all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import ne

from lib_vram.errors import BadProfile
from lib_vram.physics.profile import ALLOC, FREE, SCRATCH, Profile, Term, Token

LONGEST_STORED = 9
"""Latent frames of the longest video that has a profile of its own; longer ones are made from it and shorter ones."""
STEP = 2
"""Latent frames between the two: Forge Neo's decoder takes two at a time."""

Sized = tuple[int, Term]
"""A token whose argument is written out: a term for what is taken, and one factor of no monomial for the rest."""


def for_frames(load: Callable[[int], Profile | None], frames: int) -> Profile | None:
    """Return the profile for ``frames`` latent frames, ``None`` when what it is made from is not there.

    ``load`` returns the stored profile of a number of latent frames.

    Raises:
        BadProfile: the stored ones are not those of two lengths of the same part.
    """
    if frames <= LONGEST_STORED:
        return load(frames)
    longer = LONGEST_STORED - (LONGEST_STORED - frames) % STEP
    pair = load(longer - STEP), load(longer)
    if pair[0] is None or pair[1] is None:
        return None
    return lengthened(pair[0], pair[1], (frames - longer) // STEP)


@lru_cache(maxsize=16)
def lengthened(short: Profile, longer: Profile, times: int) -> Profile:
    """Return ``longer`` with what it has more than ``short`` added ``times`` more times.

    Raises:
        BadProfile: ``longer`` is not ``short`` with a stretch put in.
    """
    early, late = _sized(short), _sized(longer)
    length = len(late) - len(early)
    place = _place(early, late, length)
    head = [_grown(one, two, times) for one, two in zip(early[:place], late[:place])]
    before, chunk = late[place - length : place], late[place : place + length]
    chunks = [
        _grown(one, two, turn) if two[0] in (ALLOC, SCRATCH) else two
        for turn in range(times + 1)
        for one, two in zip(before, chunk)
    ]
    tail = [_grown(one, two, times) for one, two in zip(early[place:], late[place + length :])]
    return _profile(longer, [*head, *chunks, *tail])


def _sized(profile: Profile) -> list[Sized]:
    return [
        (kind, profile.terms[argument] if kind in (ALLOC, SCRATCH) else ((0, argument),))
        for kind, argument in profile.unrolled()
    ]


def _place(early: Sequence[Sized], late: Sequence[Sized], length: int) -> int:
    """Return where the stretch of ``length`` was put in: what is before it and behind it is the same in both.

    The end of a video begins with events of the same kinds as another chunk would; of the places that are
    possible, it is the one at which the fewest sizes change.
    """
    last = min(_alike(early, late, exact=True), len(early))
    first = max(length, len(early) - _alike(early[::-1], late[::-1], exact=False))
    if length <= 0 or last < first:
        raise BadProfile("two lengths of a video do not differ by a stretch")

    head = _differing(early, late)
    chunk = _differing(late, late[length:])
    tail = _differing(early[::-1], late[::-1])
    return min(
        range(last, first - 1, -1),
        key=lambda place: head[place] + chunk[place] - chunk[place - length] + tail[len(early) - place],
    )


def _differing(one: Sequence[Sized], other: Sequence[Sized]) -> list[int]:
    """Return how many of the first tokens differ, by how many are looked at."""
    return [0, *accumulate(map(ne, one, other))]


def _alike(one: Sequence[Sized], other: Sequence[Sized], *, exact: bool) -> int:
    """Return how many tokens are of the same kind from the start.

    Where ``exact``, they must also give back the same block, or take no less.
    """
    for place, (first, second) in enumerate(zip(one, other)):
        if first[0] != second[0] or (exact and not _goes_on(first, second)):
            return place
    return min(len(one), len(other))


def _goes_on(first: Sized, second: Sized) -> bool:
    if first[0] in (ALLOC, SCRATCH):
        later = dict(second[1])
        return all(later.get(monomial, 0) >= factor for monomial, factor in first[1])
    return first == second


def _grown(one: Sized, two: Sized, times: int) -> Sized:
    """Return ``two`` and ``times`` what it is larger than ``one``."""
    first, second = dict(one[1]), dict(two[1])
    total = {
        monomial: second.get(monomial, 0) + times * (second.get(monomial, 0) - first.get(monomial, 0))
        for monomial in sorted({*first, *second})
    }
    return two[0], tuple((monomial, factor) for monomial, factor in total.items() if factor or two[0] == FREE)


def _profile(like: Profile, sized: Sequence[Sized]) -> Profile:
    terms: dict[Term, int] = {}
    tokens: list[Token] = []
    for kind, term in sized:
        if kind in (ALLOC, SCRATCH):
            tokens.append((kind, terms.setdefault(term, len(terms))))
        else:
            tokens.append((kind, term[0][1] if term else 0))
    return Profile(like.name, like.parameters, tuple(terms), like.calls, tuple(tokens))
