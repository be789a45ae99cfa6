from __future__ import annotations

from lib_vram.live.pieces import Pieces
from lib_vram.machine.torch_memory import Snapshot
from lib_vram.units import MIB

CUT_UP = Snapshot(
    (
        ((300 * MIB, False), (8 * MIB, True), (100 * MIB, False)),
        ((64 * MIB, True),),
        ((40 * MIB, False),),
    )
)


def test_what_lies_beside_something_in_use_is_stuck_and_a_whole_free_piece_is_not():
    found = Pieces.of(CUT_UP)
    assert (found.free_bytes, found.largest_bytes, found.stuck_bytes) == (440 * MIB, 300 * MIB, 400 * MIB)
    assert found.matters
    assert round(found.scattered, 2) == 0.32


def test_pieces_that_grow_in_place_do_not_matter():
    assert not Pieces.of(Snapshot(CUT_UP.segments, expandable=True)).matters


def test_an_empty_allocator_has_no_pieces():
    found = Pieces.of(Snapshot(()))
    assert (found.free_bytes, found.largest_bytes, found.scattered, found.matters) == (0, 0, 0.0, False)
