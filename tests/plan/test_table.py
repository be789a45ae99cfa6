"""What the tables say is what an estimate of each request says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import estimate
from lib_vram.physics.families import SHAPES
from lib_vram.plan.table import (
    CARD_CLASSES,
    NATIVE_SIZES,
    CardFit,
    Cards,
    Cell,
    cards_table,
    class_of,
    lighter_weights,
    seen_bytes,
    size_table,
    sizes_for,
)
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics


def test_every_cell_says_what_the_estimate_of_its_size_and_batch_says():
    request = a_request(batch_size=3)
    table = size_table(request, physics)
    assert (table.vary, table.columns) == ("batch_size", (1, 2, 3, 4, 8))
    for row in table.rows:
        for batch, cell in zip(table.columns, row.cells, strict=True):
            result = estimate(request.replace(width=row.width, height=row.height, batch_size=batch), physics)
            assert (cell.verdict, cell.peak_bytes) == (result.verdict, result.peak_bytes)


def test_the_size_that_is_asked_for_has_a_row_of_its_own():
    rows = size_table(a_request(width=600, height=800), physics).rows
    assert [(row.width, row.height) for row in rows if row.current] == [(600, 800)]
    assert sum(row.native for row in rows) == len(NATIVE_SIZES["sd15"])


@pytest.mark.parametrize(("width", "height", "turned"), [(512, 512, (512, 768)), (768, 512, (768, 512))])
def test_sizes_lie_or_stand_as_the_request_does(width, height, turned):
    assert (turned, True) in sizes_for(a_request(width=width, height=height))


def test_a_native_size_is_native_lying_too():
    assert ((1216, 832), True) in sizes_for(a_request(model={"family": "sdxl"}, width=1216, height=832))


@given(st.sampled_from(sorted(SHAPES)), st.integers(64, 2048), st.integers(64, 2048))
def test_sizes_grow_and_none_comes_twice(family, width, height):
    sizes = [size for size, _ in sizes_for(a_request(model={"family": family}, width=width, height=height))]
    assert (width, height) in sizes
    assert len(set(sizes)) == len(sizes)
    assert [a * b for a, b in sizes] == sorted(a * b for a, b in sizes)


def test_videos_are_tabulated_by_their_frames():
    request = a_request(host="neo", model={"family": "wan21_1b"}, width=832, height=480, frames=33)
    table = size_table(request)
    assert (table.vary, table.columns) == ("frames", (17, 33, 49, 81))
    assert table.to_dict()["rows"][0]["cells"][0]["frames"] == 17


def test_what_cannot_be_computed_is_no_table():
    request = a_request(model={"family": "flux1"})
    for question in (size_table, cards_table, lighter_weights):
        with pytest.raises(NotReady, match="flux1"):
            question(request, physics)


@given(st.integers(512, 2048), st.integers(1, 8))
@settings(max_examples=30)
def test_it_runs_on_every_card_from_the_one_that_is_named(side, batch):
    request = a_request(width=side, height=side, batch_size=batch, device={"total_bytes": 8 * GIB})
    cards = cards_table(request, physics)
    for card in cards.cards:
        there = request.replace(device=replace(request.device, total_bytes=card.total_bytes))
        runs = estimate(there, physics).verdict in ("fits", "tight")
        assert runs == (cards.runs_from is not None and card.gigabytes >= cards.runs_from)


def test_the_present_card_is_taken_as_it_is():
    total = int(7.79 * GIB)
    cards = cards_table(a_request(device={"total_bytes": total}), physics)
    assert [(card.gigabytes, card.total_bytes) for card in cards.cards if card.current] == [(8, total)]


@pytest.mark.parametrize(("gib", "gigabytes"), [(7.79, 8), (8, 8), (11.77, 12), (23.65, 24), (9.2, None), (79.15, 80)])
def test_a_card_belongs_to_the_class_on_its_box(gib, gigabytes):
    assert class_of(int(gib * GIB)) == gigabytes


@pytest.mark.parametrize(("gigabytes", "gib"), [(6, 5.79), (8, 7.79), (12, 11.77), (24, 23.65), (80, 79.15)])
def test_what_is_seen_of_a_card_is_at_most_what_was_seen_and_little_less(gigabytes, gib):
    assert gib - 0.15 < seen_bytes(gigabytes) / GIB <= gib


def a_card(gigabytes, verdict, *, swaps=False):
    return CardFit(gigabytes, "", gigabytes * GIB, False, Cell(verdict, 0, 0, swaps))


@pytest.mark.parametrize(
    ("cards", "said"),
    [
        ([a_card(8, "wont_fit"), a_card(12, "fits")], ["It runs from a card of 12 GB up."]),
        (
            [a_card(8, "tight"), a_card(12, "fits", swaps=True), a_card(24, "fits")],
            [
                "It runs from a card of 8 GB up.",
                "It fits with room, and with all weights on the card, from 24 GB up.",
            ],
        ),
        (
            [a_card(8, "wont_fit"), a_card(12, "tight")],
            ["It runs from a card of 12 GB up.", "Even with 12 GB it swaps weights or is tight."],
        ),
        ([a_card(8, "fits"), a_card(12, "wont_fit")], ["It does not run even on a card of 12 GB."]),
    ],
)
def test_the_cards_are_summed_up_in_a_sentence_or_two(cards, said):
    assert [str(message) for message in Cards(tuple(cards)).sentences()] == said


def test_lighter_weights_need_no_more():
    request = a_request(host="forge", model={"family": "flux1", "weights_dtype": "bf16"}, width=512, height=512)
    found = lighter_weights(request)
    assert [item.weights_dtype for item in found] == ["bf16", "q8_0", "fp8", "nf4", "q4_k"]
    assert [item.current for item in found] == [True, False, False, False, False]
    on_a1111 = lighter_weights(a_request(model={"family": "sdxl"}), physics)
    assert [item.weights_dtype for item in on_a1111] == ["fp16", "fp8"]
    assert on_a1111[1].cell.needs_bytes < on_a1111[0].cell.needs_bytes


def test_the_classes_of_cards_grow():
    sizes = [gigabytes for gigabytes, _ in CARD_CLASSES]
    assert sizes == sorted(set(sizes))


def test_cards_that_time_does_not_allow_are_open_and_nothing_is_said_of_them():
    request = a_request(width=1024, height=1024)
    cards = cards_table(request, physics, until=0.0)
    assert not cards.is_complete and cards.runs_from is None and cards.sentences() == ()
    assert {card.cell.verdict for card in cards.cards} <= {"unknown", "wont_fit"}
    whole = cards_table(request, physics)
    assert whole.is_complete and whole.runs_from is not None
    for early, late in zip(cards.cards, whole.cards, strict=True):
        assert early.cell.verdict in ("unknown", late.cell.verdict)


def test_weights_that_time_does_not_allow_are_open():
    found = lighter_weights(a_request(), physics, until=0.0)
    assert {item.cell.verdict for item in found} == {"unknown"}
