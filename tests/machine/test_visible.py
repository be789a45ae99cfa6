from __future__ import annotations

import pytest

from lib_vram.machine.card import Card
from lib_vram.machine.nvml import Gpu
from lib_vram.machine.visible import visible

GIB = 1024**3


def gpu(letter: str, uuid: str, capability: tuple[int, int], total: int = 8 * GIB) -> Gpu:
    return Gpu(Card(letter, total, total, 0, "nvml", uuid), None, None, capability)


GPUS = (
    gpu("a", "GPU-aaaa-1", (7, 5)),
    gpu("b", "GPU-bbbb-2", (8, 9)),
    gpu("c", "GPU-aaaa-3", (8, 9), 24 * GIB),
    gpu("d", "MIG-dddd-4", (8, 0)),
)


@pytest.mark.parametrize(
    ("value", "order", "names"),
    [
        (None, "PCI_BUS_ID", "abcd"),
        (None, "", "cbda"),
        (None, "FASTEST_FIRST", "cbda"),
        ("0", "PCI_BUS_ID", "a"),
        ("0", "", "c"),
        ("2,0", "PCI_BUS_ID", "ca"),
        (" 1 , 3 ", "PCI_BUS_ID", "bd"),
        ("", "PCI_BUS_ID", ""),
        ("-1", "PCI_BUS_ID", ""),
        ("0,-1,1", "PCI_BUS_ID", "a"),
        ("1,99,0", "PCI_BUS_ID", "b"),
        ("NoDevFiles", "PCI_BUS_ID", ""),
        ("GPU-bbbb", "PCI_BUS_ID", "b"),
        ("gpu-BBBB-2,GPU-aaaa-1", "PCI_BUS_ID", "ba"),
        ("GPU-aaaa", "PCI_BUS_ID", ""),
        ("MIG-dddd-4", "PCI_BUS_ID", "d"),
        ("GPU-ffff", "PCI_BUS_ID", ""),
        ("٣", "PCI_BUS_ID", ""),
        ("9" * 5000, "PCI_BUS_ID", ""),
    ],
)
def test_the_variable_chooses_and_orders_the_cards(value: str | None, order: str, names: str) -> None:
    environment = {"CUDA_DEVICE_ORDER": order} | ({} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    assert "".join(item.card.name for item in visible(GPUS, environment)) == names
