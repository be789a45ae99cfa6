"""What each way of computing attention takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.physics.attention import FREED, PLENTY, RESULT, SELF_SLICING, WAYS, Call, split_steps
from lib_vram.units import GIB, MIB

ALL_WAYS = [(host, kind) for host, kinds in WAYS.items() for kind in kinds]
LARGE = Call(batch=2, heads=8, queries=4096, keys=4096, head_size=40, itemsize=2, picture=0)
CALLS = st.builds(
    Call, batch=st.integers(1, 4), heads=st.integers(1, 20), queries=st.integers(1, 5000), keys=st.integers(1, 5000),
    head_size=st.sampled_from((40, 64, 160, 512)), itemsize=st.sampled_from((2, 4)), picture=st.sampled_from((0, 1)),
)  # fmt: skip


def peak(host: str, kind: str, call: Call, free_bytes: int = PLENTY) -> int:
    """Return the most bytes that are live on top of query, key and value."""
    way = WAYS[host][kind]
    live = most = 0
    held = {-1: call.query_bytes(), -2: call.key_bytes, -3: call.key_bytes}
    for name, size in way.steps(call, way.part(call, free_bytes) if way.part else call.queries):
        if size == FREED:
            live -= held.pop(name)
        else:
            held[name] = size
            live += size
        most = max(most, live)
    return most


@pytest.mark.parametrize("host", WAYS)
def test_fused_attention_takes_its_result_and_a_log_sum(host: str) -> None:
    assert peak(host, "sdpa", LARGE) == LARGE.query_bytes() + 2 * 8 * 4096 * 4
    assert peak(host, "xformers", LARGE) == LARGE.query_bytes()


def test_plain_attention_takes_the_score_matrix_twice() -> None:
    scores = 2 * 8 * 4096 * 4096 * 2
    copies = 3 * LARGE.query_bytes()
    assert scores == 512 * MIB
    assert peak("forge", "math", LARGE) == 2 * scores + copies


def test_published_requests_of_one_score_matrix_are_met() -> None:
    """ "Tried to allocate 1.50 GiB" (CompVis/stable-diffusion issue 296): 6 × 8 heads, 4096 tokens, half precision."""
    assert Call(6, 8, 4096, 4096, 40, 2, 0).score_bytes(4096) == int(1.5 * GIB)


def test_autocast_makes_a1111s_probabilities_fp32() -> None:
    scores = LARGE.score_bytes(LARGE.queries)
    assert peak("a1111", "math", LARGE) == scores + 2 * scores + scores + LARGE.query_bytes()


@pytest.mark.parametrize(("tokens", "sliced"), [(15376, True), (15625, False)])
def test_the_cliff_slices_only_come_where_they_are_equal(tokens: int, sliced: bool) -> None:
    """992 × 992 has 124² tokens, a multiple of 16; 1000 × 1000 has 125², an odd number."""
    call = Call(2, 8, tokens, tokens, 40, 2, 0)
    slices = peak("forge", "split", call, 4 * GIB) < peak("forge", "split", call)
    assert slices is sliced


def test_a1111_1_10_takes_a_smaller_last_slice_instead() -> None:
    call = Call(2, 8, 15625, 15625, 40, 2, 0)
    assert peak("a1111", "split", call, 4 * GIB) < peak("a1111", "split", call) / 3


@pytest.mark.parametrize(
    ("free", "steps"), [(PLENTY, 1), (1536 * MIB, 1), (1536 * MIB - 1, 2), (700 * MIB, 4), (1, 2**31)]
)
def test_slices_are_a_power_of_two_by_free_memory(free: int, steps: int) -> None:
    assert split_steps(LARGE, free, 3.0) == steps


@pytest.mark.parametrize(
    ("free", "queries"), [(PLENTY, 4096), (2 * GIB, 4096), (1 * GIB, 2048), (130 * MIB, 256), (1, 512)]
)
def test_forge_takes_the_largest_query_chunk_that_fits_four_times(free: int, queries: int) -> None:
    part = WAYS["forge"]["sub_quad"].part
    assert part is not None
    assert part(LARGE, free) == queries


@pytest.mark.parametrize(("host", "kind"), ALL_WAYS)
@given(call=CALLS, free=st.integers(1, 2**36))
def test_every_way_leaves_a_result_and_gives_nothing_back_twice(host: str, kind: str, call: Call, free: int) -> None:
    way = WAYS[host][kind]
    held = {-1, -2, -3}
    for name, size in way.steps(call, way.part(call, free) if way.part else call.queries):
        if size == FREED:
            held.remove(name)
        else:
            assert size > 0
            assert name not in held
            held.add(name)
    assert RESULT in held


@pytest.mark.parametrize(("host", "kind"), [(host, kind) for host, kind in ALL_WAYS if kind in SELF_SLICING])
@given(call=CALLS)
def test_less_free_memory_never_makes_attention_take_more(host: str, kind: str, call: Call) -> None:
    half = call.score_bytes(call.queries) // 2
    assert peak(host, kind, call, 1 + half) <= peak(host, kind, call)
