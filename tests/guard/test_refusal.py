"""Refusing a run from its ``init``."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram.errors import Refused
from lib_vram.guard.refusal import lift, refuse


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
