"""A checkpoint that is loaded outside a generation stands in the journal while it is read."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lib_vram.host.loading import LoadWatch


class Told:
    def __init__(self):
        self.heard = []

    def loading(self):
        self.heard.append("loading")
        return True

    def loaded(self):
        self.heard.append("loaded")


@pytest.fixture
def models(monkeypatch):
    made = SimpleNamespace(read=[])

    def load_model_weights(name):
        made.read.append(name)
        if name == "broken":
            raise RuntimeError("CUDA out of memory")

    def load_model(name):
        made.load_model_weights(name)
        return f"model of {name}"

    made.load_model, made.load_model_weights = load_model, load_model_weights
    monkeypatch.setitem(sys.modules, "modules.sd_models", made)
    return made


def test_a_load_is_told_of_once_and_returns_what_it_returned(models):
    told = Told()
    LoadWatch(told).start()
    assert models.load_model("a") == "model of a"
    assert (told.heard, models.read) == (["loading", "loaded"], ["a"])
    models.load_model_weights("b")
    assert told.heard == ["loading", "loaded"] * 2


def test_a_load_that_fails_is_over_too_and_fails_as_it_would(models):
    told = Told()
    LoadWatch(told).start()
    with pytest.raises(RuntimeError, match="out of memory"):
        models.load_model("broken")
    models.load_model("a")
    assert told.heard == ["loading", "loaded"] * 2


def test_the_host_gets_its_loaders_back_and_a_second_start_wraps_once(models):
    told, before = Told(), models.load_model
    watch = LoadWatch(told)
    watch.start()
    watch.start()
    models.load_model("a")
    assert told.heard == ["loading", "loaded"]
    watch.stop()
    assert models.load_model is before


def test_a_host_without_these_loaders_is_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, "modules.sd_models", raising=False)
    LoadWatch(Told()).start()


def test_a_wrapper_that_another_extension_covers_says_nothing_once_we_are_gone(models):
    told = Told()
    watch = LoadWatch(told)
    watch.start()
    ours = models.load_model
    models.load_model = lambda name: f"their {ours(name)}"
    watch.stop()
    assert models.load_model("a") == "their model of a"
    assert told.heard == []
    watch.start()
    models.load_model("b")
    assert told.heard == ["loading", "loaded"]
