"""LoRAs: what putting one into a layer takes, as traced in the hosts' own code."""

from __future__ import annotations

import pytest

from lib_vram.physics.lora import merging_bytes, on_the_fly_bytes

WIDE, SQUARE = 12288 * 3072, 3072 * 3072


@pytest.mark.parametrize(("layer", "traced_bytes"), [(WIDE, 453_967_872), (SQUARE, 113_639_424)])
def test_forge_merges_in_fp32_with_three_copies(layer, traced_bytes):
    assert merging_bytes("forge", layer, 2) == pytest.approx(traced_bytes, rel=0.004)


@pytest.mark.parametrize(("layer", "traced_bytes"), [(WIDE, 226_492_416), (SQUARE, 56_623_104)])
def test_on_the_fly_forge_makes_three_copies_in_half_precision(layer, traced_bytes):
    assert on_the_fly_bytes("forge", layer, 2) == traced_bytes


def test_neo_adds_some_rows_at_a_time():
    assert on_the_fly_bytes("neo", 66_060_288, 2) == 2 * 1024 * 15360
    assert on_the_fly_bytes("neo", 1000, 2) == 2000
    assert merging_bytes("neo", 1000, 2) == 6000


def test_a1111_makes_what_is_added_and_the_sum():
    assert merging_bytes("a1111", 1000, 2) == 4000
    assert merging_bytes("reforge", 1000, 2) == merging_bytes("classic", 1000, 4) == 12000
