"""A few equal blocks of a deep model stand for all of them."""

from __future__ import annotations

import pytest

from lib_vram.physics.fitting import compress
from lib_vram.physics.lengthen import lengthened, more_turns, turns
from lib_vram.physics.profile import ALLOC, FREE, Profile


def model(first: int, second: int) -> Profile:
    """Return a model of two stacks: something is kept through each, and something through both."""
    tokens = [(ALLOC, 0), (ALLOC, 1), (ALLOC, 2)]
    count = 3
    kept, whole = 1, 0
    last = 2
    for stack, length in enumerate((first, second)):
        for _ in range(length):
            for step in range(6):
                tokens += [(ALLOC, 3 + stack * 10 + step), (ALLOC, 9)]
                count += 2
                tokens += [(FREE, 1), (FREE, count - last)]
                last = count - 2
        tokens += [(FREE, count - kept), (ALLOC, 30 + stack)]
        kept = count
        count += 1
    tokens += [(FREE, count - last), (FREE, count - kept), (FREE, count - whole)]
    return Profile("x", 7, tuple(((0, n + 1),) for n in range(40)), (), compress(tokens))


def test_loops_are_what_grows():
    short, longer = model(5, 6), model(6, 8)
    assert turns(short) == [4, 5] and turns(longer) == [5, 7]
    assert more_turns(short, longer) == [1, 2]


@pytest.mark.parametrize(("first", "second"), [(5, 6), (19, 38), (6, 40), (60, 6)])
def test_a_lengthened_model_is_the_deep_one(first, second):
    short = model(5, 6)
    made = lengthened(short, [first - 5, second - 6])
    assert made.tokens == model(first, second).tokens
    assert list(made.unrolled()) == list(model(first, second).unrolled())


def test_a_model_that_changes_otherwise_is_not_lengthened():
    short, other = model(5, 6), model(5, 6)
    changed = Profile("x", 7, other.terms, (), ((ALLOC, 5), *other.tokens[1:]))
    assert more_turns(short, changed) is None
    assert more_turns(model(6, 6), model(5, 6)) is None
