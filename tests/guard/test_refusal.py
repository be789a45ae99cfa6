"""Refusing a run from its ``init``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram.errors import Refused
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard.refusal import figures, lift, refuse
from lib_vram.units import MIB


def test_the_run_ends_with_the_text_wherever_init_is_called():
    p = SimpleNamespace()
    refuse(p, "it will not fit")
    with pytest.raises(Refused, match="it will not fit"):
        p.init([], [], [])


def test_a_lifted_refusal_is_gone_and_a_foreign_init_stays():
    p = SimpleNamespace()
    refuse(p, "no")
    lift(p)
    assert not hasattr(p, "init")
    p.init = foreign = lambda: None
    lift(p)
    assert p.init is foreign


@pytest.mark.parametrize(
    ("need_mib", "room_mib", "shown"),
    [(9216, 7168, ("9.0 GiB", "7.0 GiB")), (622, 600, ("622 MiB", "600 MiB")), (4826, 4800, ("4826 MiB", "4800 MiB"))],
)
def test_need_and_room_are_never_shown_as_the_same_figure(need_mib, room_mib, shown):
    phase = PhaseEstimate("sampling", 0, 0, need_mib * MIB, 0, 0, 0, "rule")
    assert figures(Estimate("wont_fit", room_mib * MIB, "sampling", phases=(phase,))) == shown
