"""A fault of ours is said once and stops nothing."""

from __future__ import annotations

import pytest

from lib_vram.errors import Refused
from lib_vram.guard import fail_open


@pytest.fixture(autouse=True)
def fresh():
    fail_open.forget()


def test_the_substitute_gets_the_fault_and_the_arguments():
    @fail_open.fail_open(instead=lambda fault, number: (type(fault), number))
    def broken(number):
        raise ValueError(number)

    assert broken(3) == (ValueError, 3)


def test_each_kind_of_fault_is_logged_once_with_its_traceback(caplog):
    faults = iter([ValueError("a"), ValueError("b"), KeyError("c")])

    @fail_open.fail_open(instead=lambda fault: None)
    def broken():
        raise next(faults)

    for _ in range(3):
        broken()
    assert [record.exc_info[0] for record in caplog.records] == [ValueError, KeyError]


def test_a_refusal_travels():
    @fail_open.fail_open(instead=lambda fault: None)
    def refusing():
        raise Refused("no")

    with pytest.raises(Refused):
        refusing()
