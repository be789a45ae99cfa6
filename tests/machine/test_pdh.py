"""Windows' counters through a stand-in for ``pdh.dll`` that fills memory as the real one lays it out."""

from __future__ import annotations

import ctypes
import struct

import pytest

from lib_vram.machine.pdh import PdhReader, Shares
from lib_vram.units import MIB

OWN = 100
A, B = "luid_0x00000000_0x0000D1B5_phys_0", "luid_0x00000000_0x0000FFFF_phys_0"


class Pdh:
    """Answers both counters; ``refuses`` is the function that fails, ``opened`` how many queries are open."""

    def __init__(self, dedicated, shared=(), refuses=""):
        self.values = {"Dedicated Usage": list(dedicated), "Shared Usage": list(shared)}
        self.refuses, self.opened, self.collected = refuses, 0, 0
        self.path, self.kept = "", []

    def _status(self, name):
        return -0x3FFFF838 if self.refuses == name else 0  # a status as ctypes gives it: signed

    def PdhOpenQueryW(self, source, user, query):
        self.opened += self.refuses != "open"
        return self._status("open")

    def PdhAddEnglishCounterW(self, query, path, user, counter):
        self.path = path.rpartition("\\")[2]
        return self._status("add")

    def PdhCollectQueryData(self, query):
        self.collected += 1
        return self._status("collect")

    def PdhCloseQuery(self, query):
        self.opened -= 1
        return 0

    def PdhGetFormattedCounterArrayW(self, counter, kind, size, count, buffer):
        values = self.values[self.path]
        if buffer is None and not values:
            return 0
        if buffer is None:
            size._obj.value = 24 * len(values) + 200
            return 0x800007D2 - 2**32
        count._obj.value = len(values)
        for place, (name, status, number) in enumerate(values):
            text = ctypes.create_unicode_buffer(name)
            self.kept.append(text)
            struct.pack_into("<QIIq", buffer, 24 * place, ctypes.addressof(text), status, 0, number)
        return 0


def reader(library, now=lambda: 0.0):
    return PdhReader(lambda: library, now, own=OWN)


def test_each_programs_share_on_the_card_of_this_process():
    library = Pdh(
        [
            (f"pid_{OWN}_{A}", 0, 4096 * MIB), (f"pid_7_{A}", 1, 1024 * MIB), (f"pid_8_{B}", 0, 9000 * MIB),
            (f"pid_9_{A}", 0, 4096), ("_Total", 0, 5), (f"pid_10_{A}", 0xC0000BBA, 77 * MIB),
        ],
        [(f"pid_{OWN}_{A}", 0, 512 * MIB), (f"pid_8_{B}", 0, 300 * MIB)],
    )  # fmt: skip
    assert reader(library).shares() == Shares({OWN: 4096 * MIB, 7: 1024 * MIB}, {OWN: 512 * MIB})
    assert library.opened == 0


def test_a_process_on_no_card_sees_the_one_that_is_used_most():
    library = Pdh([(f"pid_7_{A}", 0, 10 * MIB), (f"pid_8_{B}", 0, 20 * MIB)])
    assert reader(library).shares() == Shares({8: 20 * MIB}, {})


@pytest.mark.parametrize("refuses", ["open", "add", "collect"])
def test_counters_that_are_switched_off_are_not_known(refuses):
    library = Pdh([(f"pid_7_{A}", 0, 10 * MIB)], refuses=refuses)
    assert reader(library).shares() is None
    assert library.opened == 0


def test_nothing_on_any_card_is_not_known_either():
    assert reader(Pdh([])).shares() is None


def test_they_are_collected_every_few_seconds():
    library, now = Pdh([(f"pid_7_{A}", 0, 10 * MIB)]), [0.0]
    asked = reader(library, lambda: now[0])
    for _ in range(5):
        now[0] += 1
        asked.shares()
    assert library.collected == 4  # two counters, twice


def test_other_systems_have_no_such_library():
    assert PdhReader(lambda: None).shares() is None
    assert PdhReader().shares() is None or hasattr(ctypes, "WinDLL")
