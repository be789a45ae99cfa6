"""A batch is cut evenly, share by share, and put together again in order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.host.rescue_shares import (
    Share,
    at_work_on,
    joined,
    largest_part,
    may_split,
    part_of,
    pictures_of,
)


class Decoded(list):
    """The hosts' list of pictures that are decoded already."""

    already_decoded = True


class Noise:
    subseed_strength = 0.0
    seed_resize_from_h = seed_resize_from_w = 0
    shape = (4, 8, 8)

    def __init__(self, shape, seeds, **_):
        self.seeds = seeds


@given(st.integers(1, 64), st.integers(-1, 80))
def test_a_part_divides_the_batch_and_is_no_larger_than_wanted(count, wanted):
    part = largest_part(count, wanted)
    assert count % part == 0
    assert 1 <= part <= max(1, min(count, wanted))


@given(st.lists(st.integers(), min_size=1, max_size=24), st.data())
def test_the_shares_of_a_list_are_the_list(items, data):
    size = largest_part(len(items), data.draw(st.integers(1, 24)))
    shares = [Share(start, size, len(items)) for start in range(0, len(items), size)]
    assert joined([part_of(items, share) for share in shares]) == items


def test_decoded_pictures_stay_what_they_are():
    whole = joined([Decoded([1]), Decoded([2, 3])])
    assert (list(whole), whole.already_decoded) == ([1, 2, 3], True)


def test_latents_of_an_interrupted_second_pass_are_left_out_beside_decoded_pictures():
    assert joined([Decoded([1, 2]), SimpleNamespace(shape=(2, 4, 8, 8))]) == [1, 2]


@pytest.mark.parametrize("value", [None, 7, "text of 4", [1, 2], ("a",), SimpleNamespace(shape=()), {"a": 1}])
def test_what_has_no_entry_for_each_picture_is_left_whole(value):
    assert part_of(value, Share(0, 2, 4)) is value


def test_the_hosts_prompts_are_cut_with_their_shape():
    conds = SimpleNamespace(batch=["a", "b", "c", "d"], shape=(4,))
    part = part_of(conds, Share(2, 2, 4))
    assert (part.batch, part.shape, conds.batch) == (["c", "d"], (2,), ["a", "b", "c", "d"])


def test_a_run_is_put_back_however_the_share_ends():
    p = SimpleNamespace(
        batch_size=4, iteration=1, seeds=[5, 6, 7, 8], subseeds=[1, 2, 3, 4], prompts=list("abcd"), c=None,
        rng=Noise((4, 8, 8), [5, 6, 7, 8]),
    )  # fmt: skip
    with pytest.raises(ValueError, match="broken"), at_work_on(p, Share(2, 2, 4)):
        assert (p.batch_size, p.iteration, p.seeds, p.prompts, p.rng.seeds) == (2, 3, [7, 8], ["c", "d"], [7, 8])
        raise ValueError("broken")
    assert (p.batch_size, p.iteration, p.seeds, p.prompts, p.c) == (4, 1, [5, 6, 7, 8], list("abcd"), None)


@pytest.mark.parametrize(
    ("given_", "named", "count"),
    [((), {"seeds": [1, 2]}, 2), (("c", "uc", [1, 2, 3]), {}, 3), ((), {}, 0), ((), {"seeds": None}, 0)],
)
def test_pictures_are_counted_by_the_seeds(given_, named, count):
    assert pictures_of(given_, named) == count


@pytest.mark.parametrize(
    ("argument", "splits"),
    [({"enable": True}, False), ({"enable": False}, True), (SimpleNamespace(enable=True), False), (None, True)],
)
def test_animations_stay_together(argument, splits):
    script = SimpleNamespace(title=lambda: "AnimateDiff", args_from=0, args_to=1)
    p = SimpleNamespace(scripts=SimpleNamespace(alwayson_scripts=[script]), script_args=(argument,))
    assert may_split(p) is splits


def test_tensors_are_cut_and_joined_along_the_batch():
    torch = pytest.importorskip("torch")
    whole = torch.arange(4 * 3).reshape(4, 3)
    parts = [part_of(whole, Share(start, 2, 4)) for start in (0, 2)]
    assert torch.equal(joined(parts), whole)
    assert part_of(whole, Share(0, 1, 3)) is whole
