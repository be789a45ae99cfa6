"""Many runs in a row on every host, with failures, interrupts and reloads: no patch, option or run is left behind."""

from __future__ import annotations

import random
import threading

import pytest

from lib_vram import callbacks
from tests.fakehost.processing import api_run, page_run

RUNS = 60
OWN = (
    {"mode": "run"}, {"tiled": True, "tile_size": 512}, {"apart": True}, {"mode": "fix"},
    {"mode": "fix", "tiled": True}, {"mode": "refuse"}, {"live_preview": "off"}, {"unload_idle": True},
)  # fmt: skip


class OutOfMemoryError(RuntimeError):
    """As torch words it."""


def state_of(fake):
    """Return every function and value of the host's modules, of their classes, and the options."""
    found = {}
    renewed = ("modules.scripts", "scripts_txt2img")  # the host's own runner of scripts, at every reload
    for name, module in fake.modules.items():
        for key, value in vars(module).items():
            found[name, key] = id(value)
            if isinstance(value, type):
                found |= {(name, key, member): id(inner) for member, inner in vars(value).items()}
    found.pop(renewed, None)
    return found, dict(fake.opts.data)


def what_fails(fake, chance):
    """Return what the host's next sampling or decode raises, mostly nothing."""
    fault = chance.choices((None, OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), ValueError("x")),
                           (8, 1, 1))[0]  # fmt: skip
    where = chance.choice(("sample", "decode"))
    original = getattr(type(fake), where)

    def step(p):
        if fault is not None and vars(fake).pop(where, None):
            raise fault
        original(fake, p)

    return where, step


@pytest.fixture
def kept(fake, tmp_path):
    guard = callbacks.guard()
    guard.learned.open(tmp_path / "history")
    yield guard
    guard.learned.recorder.close()


def test_sixty_runs_leave_nothing_behind(fake, kept):
    fake.unload_scripts()
    before = state_of(fake)
    fake.load_scripts()
    chance = random.Random(11)
    outcomes = set()
    for number in range(RUNS):
        if chance.random() < 0.08:
            fake.unload_scripts()
            fake.load_scripts()
        where, step = what_fails(fake, chance)
        setattr(fake, where, step)
        p = fake.make(own=[chance.choice(OWN)], width=chance.choice((512, 768)), n_iter=chance.choice((1, 2)),
                      batch_size=chance.choice((1, 4)), enable_hr=chance.random() < 0.3)  # fmt: skip
        try:
            outcomes.add(api_run(p)[0] if number % 2 else len(page_run(p)) > 0)
        except (OutOfMemoryError, ValueError, TypeError):
            outcomes.add("raised")
        vars(fake).pop(where, None)
    assert {True, 200} <= outcomes
    assert outcomes & {"raised", 500}
    fake.unload_scripts()
    after = state_of(fake)
    assert {key for key in before[0] if after[0].get(key) != before[0][key]} == set()
    assert after[1] | before[1] == after[1]
    assert after[1].get("batch_cond_uncond", True) is True  # the host's own default, which it may write down
    recorder = kept.learned.recorder
    recorder.settle()
    assert 0 < len(recorder.store.runs()) <= RUNS
    recorder.close(30.0)
    assert recorder._thread not in threading.enumerate()
