"""The background thread that measures what is loaded."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

from lib_vram.host import tracing
from lib_vram.host.measuring import Measurer
from lib_vram.host.tracing import GivenUp, LoadedModel
from lib_vram.message import render
from lib_vram.physics import cache


class Missing(LoadedModel):
    """A model of which one profile is missing."""

    def missing(self):
        return [("new-denoise-fp16-neo", None, "fp16")]


MODEL = Missing("new", "neo", "neo 1", ())


@pytest.fixture(autouse=True)
def no_cache():
    yield
    cache.use(None)


@pytest.fixture
def measured(monkeypatch):
    """Return the names that were measured; nothing is traced."""
    names = []
    monkeypatch.setattr(tracing, "measure", lambda model, name, *_: names.append(name))
    return names


def measurer(loaded=lambda: MODEL, is_busy=lambda: False, done=lambda: None):
    return Measurer(loaded, is_busy, done, folder=None)


def test_what_is_missing_is_measured_once_and_told(measured):
    told = threading.Event()
    made = measurer(done=told.set)
    made.look()
    assert told.wait(30)
    made.wait(30)
    assert measured == ["new-denoise-fp16-neo"] and not made.is_measuring and made.note() is None


def test_it_says_how_long_it_will_take_while_it_waits_for_a_generation(measured):
    generating = threading.Event()
    generating.set()
    made = measurer(is_busy=generating.is_set)
    made.look()
    assert render(made.note()) == "this model is being measured (4 s)"
    assert measured == []
    generating.clear()
    made.wait(30)
    assert measured == ["new-denoise-fp16-neo"]


def test_a_reason_is_kept_until_the_next_model(monkeypatch):
    def gives_up(*_):
        raise GivenUp("its forward asks for a value")

    monkeypatch.setattr(tracing, "measure", gives_up)
    made = measurer()
    made.look()
    made.wait(30)
    assert render(made.note()) == "this model could not be measured: its forward asks for a value"
    monkeypatch.setattr(tracing, "measure", lambda *_: None)
    made.look()
    made.wait(30)
    assert made.note() is None


def test_text_encoders_that_cannot_be_measured_leave_the_rest_in_use(monkeypatch):
    class OfText(Missing):
        def missing(self):
            return [("loaded-text_encode-fp16-neo", None, "fp16"), ("loaded-denoise-fp16-neo", None, "fp16")]

    def measure(model, name, *_):
        if "text" in name:
            raise GivenUp("it is not known how it is called")
        names.append(name)

    names, told = [], threading.Event()
    monkeypatch.setattr(tracing, "measure", measure)
    made = measurer(loaded=lambda: OfText("loaded", "neo", "neo 1", ()), done=told.set)
    made.look()
    assert told.wait(30)
    made.wait(30)
    assert names == ["loaded-denoise-fp16-neo"] and made.note() is None


def test_whatever_the_hosts_code_raises_ends_quietly():
    def fails():
        raise OSError("gone")

    made = measurer(loaded=fails)
    made.look()
    made.wait(30)
    assert render(made.note()) == "this model could not be measured: OSError: gone"


def test_nothing_loaded_is_nothing_to_say(measured):
    made = measurer(loaded=lambda: None)
    made.look()
    made.wait(30)
    assert made.note() is None and measured == []


def test_stopping_ends_it_without_a_word(measured):
    made = measurer(is_busy=lambda: True)
    made.look()
    made.stop()
    made.wait(30)
    assert not made.is_measuring and made.note() is None and measured == []
