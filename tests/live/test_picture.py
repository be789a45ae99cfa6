from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib_vram.live.picture import Holding, Owner, Weights, owners
from lib_vram.machine.card import Holder
from lib_vram.machine.torch_memory import TorchMemory
from lib_vram.units import GIB, MIB
from tests.live.stand_in import OWN, TORCH, WEIGHTS, card


def test_the_card_is_split_by_owner_and_adds_up():
    found = owners(Holding(card(), TORCH, WEIGHTS))
    assert found == (
        Owner("program", 1536 * MIB, "firefox"),
        Owner("others", 512 * MIB),
        Owner("driver", GIB),
        Owner("weights", 4 * GIB, "model.safetensors", "unet"),
        Owner("weights", 256 * MIB, "", "vae"),
        Owner("tensors", 1792 * MIB),
        Owner("cache", GIB),
        Owner("free", 2 * GIB),
    )
    assert sum(item.size_bytes for item in found) == 12 * GIB


SIZES = st.integers(0, 24 * GIB)


@given(SIZES, SIZES, SIZES, SIZES, st.lists(SIZES, max_size=4), st.lists(SIZES, max_size=8))
def test_owners_add_up_to_the_card_whatever_its_parts_are(others, reserved, unused, driver, parts, held):
    allocated = max(0, reserved - unused)
    used = others + reserved + driver
    found = card(
        total_bytes=used + GIB,
        free_bytes=GIB,
        used_by_others_bytes=others,
        holders=tuple(Holder(10**6 + place, f"p{place}", size) for place, size in enumerate(held)),
    )
    weights = tuple(Weights("model", str(place), size, 0) for place, size in enumerate(parts))
    split = owners(Holding(found, TorchMemory(allocated, reserved), weights))
    assert all(item.size_bytes > 0 for item in split)
    assert abs(sum(item.size_bytes for item in split) - found.total_bytes) <= len(parts)  # rounded to bytes


def test_models_that_share_memory_are_never_more_than_what_is_allocated():
    weights = (Weights("unet", "a", 8 * GIB, 0), Weights("vae", "b", 4 * GIB, 0))
    split = owners(Holding(card(), TORCH, weights))
    assert [item.size_bytes for item in split if item.kind == "weights"] == [4 * GIB, 2 * GIB]


def test_what_the_driver_holds_is_a_usual_figure_where_it_does_not_say():
    assert Holding(card(), TORCH).driver_is_measured
    assert not Holding(card(holders=(Holder(OWN, "python", None),)), TORCH).driver_is_measured
    assert not Holding(card(holders=()), TORCH).driver_is_measured


def test_a_virtual_card_is_in_use_by_what_its_allocator_says():
    virtual = card(source="virtual", free_bytes=10 * GIB, holders=())
    held = Holding(virtual, TorchMemory(3 * GIB, 4 * GIB, driver_bytes=512 * MIB))
    assert (held.used_bytes, held.driver_bytes, held.free_bytes) == (6656 * MIB, 512 * MIB, 5632 * MIB)
    assert not held.is_stand_in


def test_a_virtual_card_under_a_host_on_the_cpu_holds_nothing_of_it():
    held = Holding(card(source="virtual", free_bytes=10 * GIB, holders=()), None, WEIGHTS)
    assert held.is_stand_in
    assert owners(held) == (Owner("others", 2 * GIB), Owner("free", 10 * GIB))


@pytest.mark.parametrize("kind", ["mps", "no card"])
def test_what_is_not_known_is_left_out_and_not_shown_as_zero(kind):
    found = card(free_bytes=None, used_by_others_bytes=None, holders=()) if kind == "mps" else None
    held = Holding(found, TORCH, WEIGHTS)
    assert (held.used_bytes, held.free_bytes, held.driver_bytes) == (None, None, None)
    assert {item.kind for item in owners(held)} == {"weights", "tensors", "cache"}
