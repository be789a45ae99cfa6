from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.errors import BadInput
from lib_vram.machine.card import Card
from lib_vram.machine.virtual import parse_virtual

GIB = 1024**3


def virtual(name: str, total: int, used: int, spills: bool = False) -> Card:
    return Card(name, total, total - used, used, "virtual", spills=spills)


@pytest.mark.parametrize(
    ("text", "card"),
    [
        ("NVIDIA GeForce RTX 3060:12GiB:free=11GiB", virtual("NVIDIA GeForce RTX 3060", 12 * GIB, GIB)),
        ("RTX 3060:12GiB", virtual("RTX 3060", 12 * GIB, 0)),
        (" RTX 3060 : 12 GiB : used = 512MiB ", virtual("RTX 3060", 12 * GIB, GIB // 2)),
        ("RTX 3060:12GiB:free=0", virtual("RTX 3060", 12 * GIB, 12 * GIB)),
        ("Card: the second:8589934592", virtual("Card:the second", 8 * GIB, 0)),
        ("RTX 3060:12GiB:free=11GiB:spills", virtual("RTX 3060", 12 * GIB, GIB, spills=True)),
    ],
)
def test_a_card_is_a_name_and_a_size(text: str, card: Card) -> None:
    assert parse_virtual(text) == card


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "VRAM_GUARD_DEVICE: got '', takes a card such as \"NVIDIA GeForce RTX 3060:12GiB:free=11GiB\""),
        ("12GiB", "VRAM_GUARD_DEVICE: got '12GiB', takes a card such as"),
        (":12GiB", "VRAM_GUARD_DEVICE: got ':12GiB', takes a card such as"),
        ("RTX:much", "VRAM_GUARD_DEVICE (total): got 'much', takes a size such as"),
        ("RTX:0", "VRAM_GUARD_DEVICE (total): got '0', takes more than 0 bytes"),
        ("RTX:0GiB", "VRAM_GUARD_DEVICE (total): got '0GiB', takes more than 0 bytes"),
        ("RTX:-4GiB", "VRAM_GUARD_DEVICE (total): got '-4GiB', takes a size such as"),
        ("RTX:9999999999GiB", "VRAM_GUARD_DEVICE (total): got '9999999999GiB', takes more than 0 bytes"),
        ("RTX:8GiB:free=9GiB", "VRAM_GUARD_DEVICE (free): got '9GiB', takes at most the total, 8.0 GiB"),
        ("RTX:8GiB:free=lots", "VRAM_GUARD_DEVICE (free): got 'lots', takes a size such as"),
        ("RTX:8GiB:fre=1GiB", "VRAM_GUARD_DEVICE: got 'fre=1GiB', takes one of free=SIZE and used=SIZE"),
        ("RTX:8GiB:free=1:used=2", "VRAM_GUARD_DEVICE: got 'free=1:used=2', takes one of free=SIZE and used=SIZE"),
    ],
)
def test_what_is_no_card_is_refused_with_what_it_takes(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_virtual(text)
    assert str(caught.value).startswith(message)


@given(st.text(alphabet="aG:i=B1.0 freusd", max_size=30))
def test_any_text_is_a_card_or_bad_input(text: str) -> None:
    try:
        card = parse_virtual(text)
    except BadInput:
        return
    assert 0 <= card.free_bytes <= card.total_bytes
    assert card.free_bytes + card.used_by_others_bytes == card.total_bytes
