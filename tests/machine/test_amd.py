from __future__ import annotations

from pathlib import Path

from lib_vram.machine import amd
from lib_vram.machine.card import Card


def device(folder: Path, card: str, **files: str) -> None:
    place = folder / card / "device"
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_text(content)


def test_cards_are_read_from_the_drivers_files_the_largest_first(tmp_path: Path) -> None:
    device(tmp_path, "card0", mem_info_vram_total="536870912\n", mem_info_vram_used="100\n")
    device(
        tmp_path, "card1", mem_info_vram_total="17163091968\n", mem_info_vram_used="1000\n",
        product_name="Radeon RX 7800 XT\n", unique_id="abc\n",
    )  # fmt: skip
    device(tmp_path, "card1-DP-1", mem_info_vram_total="1\n")
    assert amd.cards(tmp_path) == (
        Card("Radeon RX 7800 XT", 17163091968, 17163090968, 1000, "amdgpu", "abc"),
        Card("AMD GPU", 536870912, 536870812, 100, "amdgpu"),
    )


def test_what_the_driver_does_not_say_is_not_known(tmp_path: Path) -> None:
    device(tmp_path, "card0", mem_info_vram_total="536870912", mem_info_vram_used="-")
    (card,) = amd.cards(tmp_path)
    assert card.free_bytes is None
    assert card.used_by_others_bytes is None


def test_a_card_of_another_make_or_of_no_memory_is_none(tmp_path: Path) -> None:
    device(tmp_path, "card0", vendor="0x8086")
    device(tmp_path, "card1", mem_info_vram_total="0")
    assert amd.cards(tmp_path) == ()
    assert amd.cards(tmp_path / "missing") == ()
