"""Profiles made from traces, and traces that cannot be one."""

from __future__ import annotations

import pytest

from lib_vram.physics.fitting import DoesNotFit, check_events, compress, fit
from lib_vram.physics.profile import ALLOC, FOLDER, FREE, LOOP, REPEAT, SCRATCH, SYMBOLS, Profile
from lib_vram.physics.program import Setting
from lib_vram.physics.raw import RawTrace

SETTINGS = (Setting(2, 10, 7), Setting(3, 9, 4), Setting(5, 13, 11), Setting(4, 5, 5))
ALONE, BATCH, AREA, SIDES = (SYMBOLS.index(name) for name in ("1", "B", "B*A0", "B*S"))


def traced(at: Setting, extra: int = 0) -> RawTrace:
    """Return a made-up trace: a padded picture, a workspace, and what is the same at every size."""
    trace = RawTrace()
    padded = trace.alloc(2 * at.batch * (at.rows + 1) * (at.columns + 1))
    trace.workspace(8 * at.batch * at.rows * at.columns, 4 * at.batch, 100)
    constant = trace.alloc(640 + extra)
    trace.free(padded)
    trace.free(constant)
    return trace


def test_sizes_become_sums_of_monomials() -> None:
    profile = fit("x", 7, SETTINGS, [traced(at) for at in SETTINGS])
    assert profile.tokens == ((ALLOC, 0), (SCRATCH, 1), (ALLOC, 2), (FREE, 2), (FREE, 1))
    assert profile.terms == (
        ((BATCH, 2), (AREA, 2), (SIDES, 2)),
        ((ALONE, 100), (BATCH, 4), (AREA, 8)),
        ((ALONE, 640),),
    )


def test_a_size_that_is_no_sum_is_refused_by_event() -> None:
    with pytest.raises(DoesNotFit, match="event 2, alloc"):
        fit("x", 7, SETTINGS, [traced(at, extra=index**3) for index, at in enumerate(SETTINGS)])


def test_another_order_at_another_size_is_refused() -> None:
    other = traced(SETTINGS[1])
    other.free(other.alloc(1))
    with pytest.raises(DoesNotFit, match="order of events"):
        fit("x", 7, SETTINGS[:2], [traced(SETTINGS[0]), other])


def test_a_held_out_size_is_checked_event_by_event() -> None:
    profile = fit("x", 7, SETTINGS, [traced(at) for at in SETTINGS])
    held_out = Setting(1, 11, 6)
    check_events(profile, held_out, traced(held_out))
    with pytest.raises(DoesNotFit, match="event 2"):
        check_events(profile, held_out, traced(held_out, extra=1))


def test_equal_stretches_become_a_loop_when_they_keep_nothing() -> None:
    turn = [*[(ALLOC, 1), (FREE, 1)] * 12, (ALLOC, 0), (FREE, 14)]
    tokens = [(ALLOC, 0), *turn * 5, (FREE, 1)]
    assert compress(tokens)[1:3] == ((LOOP, len(turn)), (LOOP, 5))


def test_equal_stretches_that_keep_a_block_are_only_stored_once() -> None:
    turn = [*[(ALLOC, 1), (FREE, 1)] * 12, (ALLOC, 0)]
    assert compress(turn * 3)[:2] == ((REPEAT, len(turn)), (REPEAT, 3))


@pytest.mark.parametrize(
    "name", ["sd15-vae_decode-fp16-forge", "sd15-vae_encode-fp32-a1111", "sd15-text_encode-fp16-forge"]
)
def test_the_tool_makes_the_very_files_that_are_shipped(name: str) -> None:
    pytest.importorskip("torch")
    from tools import trace_profiles as tool

    family, part, dtype, style = name.split("-")
    made = tool.build(name, tool.PARTS[part](family, tool.DTYPES[dtype], tool.STYLES[style]))
    assert tool.text_of(made) == (FOLDER / f"{name}.json").read_text(encoding="utf-8")


def attended(at: Setting, text: int, cells: int, stretches: int) -> RawTrace:
    """Return a made-up trace of attention over a picture's tokens and a text's."""
    trace = RawTrace()
    tokens = cells * at.rows * at.columns + text
    operands = [trace.alloc(2 * at.batch * at.rows * at.columns) for _ in range(3)]
    trace.attention((stretches * at.batch, 4, tokens, tokens, 64, 2, 0, *operands))
    trace.alloc(8 * at.batch * at.rows * at.columns)
    return trace


@pytest.mark.parametrize(("text", "cells", "stretches"), [(0, 1, 1), (512, 1, 1), (0, 4, 1), (77, 1, 3)])
def test_attention_over_a_picture_and_a_text_is_one_call(text: int, cells: int, stretches: int) -> None:
    profile = fit("x", 7, SETTINGS, [attended(at, text, cells, stretches) for at in SETTINGS])
    (shape,) = profile.calls
    assert (shape.query_tokens, shape.key_tokens, shape.cells, shape.stretches) == (text, text, cells, stretches)
    assert Profile.from_json(profile.to_json()).calls == profile.calls
    held_out = Setting(1, 11, 6)
    check_events(profile, held_out, attended(held_out, text, cells, stretches))


def test_attention_whose_tokens_follow_nothing_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="attention"):
        fit("x", 7, SETTINGS, [attended(at, index**3, 1, 1) for index, at in enumerate(SETTINGS)])
