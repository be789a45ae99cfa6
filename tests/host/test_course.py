import sys
from types import SimpleNamespace

import pytest

from lib_vram.host.course import steps_of, was_stopped


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"steps": 20}, 20),
        ({"steps": 20, "denoising_strength": 0.5}, 20),
        ({"steps": 20, "init_images": ["x"], "denoising_strength": 0.4}, 8),
        ({"steps": 20, "init_images": ["x"], "denoising_strength": 0.0}, 1),
        ({"steps": 20, "enable_hr": True, "denoising_strength": 0.5}, 30),
        ({"steps": 20, "enable_hr": True, "hr_second_pass_steps": 10, "denoising_strength": 0.5}, 25),
        ({"steps": 20, "enable_hr": True, "hr_second_pass_steps": 0, "denoising_strength": None}, 40),
        ({"steps": "many"}, None),
        ({"steps": True}, None),
        ({}, None),
    ],
)
def test_the_steps_are_those_that_are_computed(fields, steps):
    assert steps_of(SimpleNamespace(**fields)) == steps


@pytest.mark.parametrize("name", ["interrupted", "skipped", "stopping_generation"])
def test_the_host_says_that_a_person_stopped_it(monkeypatch, name):
    state = SimpleNamespace(interrupted=False)
    monkeypatch.setitem(sys.modules, "modules.shared", SimpleNamespace(state=state))
    assert not was_stopped()
    setattr(state, name, True)
    assert was_stopped()


def test_without_a_host_nobody_stopped_anything(monkeypatch):
    monkeypatch.delitem(sys.modules, "modules.shared", raising=False)
    assert not was_stopped()
