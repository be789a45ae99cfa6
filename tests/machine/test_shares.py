from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram.machine.card import Card, Holder
from lib_vram.machine.pdh import Shares
from lib_vram.machine.shares import ShareReader
from lib_vram.units import GIB

OWN = 100
UNKNOWN = (Holder(OWN, "python.exe launch.py", None), Holder(7, "chrome.exe", None))
CARD = Card("RTX", 12 * GIB, 4 * GIB, 3 * GIB, "nvml", holders=UNKNOWN, spills=True)


def reader(platform, pdh=None, drm=None):
    return ShareReader(
        SimpleNamespace(shares=lambda: pdh) if platform == "win32" else None,
        SimpleNamespace(shares=lambda: drm or {}), lambda pid: f"program {pid}",
        own=OWN, platform=platform,
    )  # fmt: skip


def test_windows_counters_say_what_nvml_does_not():
    shares = Shares({OWN: 6 * GIB, 7: GIB, 8: 2 * GIB}, {OWN: 5})
    found = reader("win32", shares)
    card = found.filled(CARD)
    assert card.holders == (
        Holder(OWN, "python.exe launch.py", 6 * GIB), Holder(8, "program 8", 2 * GIB), Holder(7, "chrome.exe", GIB),
    )  # fmt: skip
    assert card.used_by_others_bytes == 2 * GIB
    assert found.shared() == {OWN: 5}


def test_the_kernels_files_say_who_is_on_an_amd_card():
    amd = Card("AMD GPU", 8 * GIB, 3 * GIB, 5 * GIB, "amdgpu")
    assert reader("linux", drm={7: GIB}).filled(amd).holders == (Holder(7, "program 7", GIB),)
    assert reader("linux", drm={7: GIB}).filled(amd).used_by_others_bytes == 5 * GIB


@pytest.mark.parametrize(
    ("platform", "card"),
    [
        ("win32", Card("RTX", 12 * GIB, 4 * GIB, 3 * GIB, "virtual", holders=UNKNOWN)),
        ("win32", Card("RTX", 12 * GIB, 4 * GIB, 3 * GIB, "nvml", holders=(Holder(7, "x", 5),))),
        ("darwin", Card("Apple GPU", 12 * GIB, None, None, "torch")),
    ],
)
def test_what_is_known_already_or_nowhere_stays_as_it_is(platform, card):
    assert reader(platform, Shares({7: GIB}), {7: GIB}).filled(card) is card


def test_counters_that_are_switched_off_leave_the_names():
    assert reader("win32").filled(CARD) is CARD
    assert reader("win32").shared() == {}
    assert reader("linux", Shares({}, {7: 1})).shared() == {}
