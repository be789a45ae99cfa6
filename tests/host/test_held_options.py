"""Options that a run has otherwise: never written to the settings file, and the user's again when it is over."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.host import webui
from tests.fakehost.processing import page_run

KEY = "show_progress_type"
USERS, OURS = "TAESD", "Approx cheap"


@pytest.fixture
def host(fake):
    fake.opts.data[KEY] = USERS
    return callbacks.guard().host


@pytest.fixture
def saved(fake, monkeypatch):
    """Saves as the hosts do; returns what the file then holds."""
    written = {}

    def save(options, name):
        written[name] = json.loads(json.dumps(options.data))

    monkeypatch.setattr(type(fake.opts), "save", save, raising=False)

    def now():
        fake.opts.save("config.json")
        return written["config.json"]

    return now


def test_settings_saved_in_the_middle_of_a_run_are_the_users(fake, host, saved):
    p, before = fake.make(), dict(fake.opts.data)
    own_save = type(fake.opts).save
    host.hold_option(p, KEY, OURS)
    assert fake.opts.data[KEY] == OURS
    assert saved() == before
    host.end_run(p)
    assert saved() == before == fake.opts.data
    assert type(fake.opts).save is own_save


def test_what_the_user_sets_in_the_middle_of_a_run_is_saved_and_stays(fake, host, saved):
    p = fake.make()
    host.hold_option(p, KEY, OURS)
    fake.opts.data[KEY] = "Full"
    assert saved()[KEY] == "Full"
    host.end_run(p)
    assert fake.opts.data[KEY] == "Full"


def test_saving_goes_on_when_the_copy_cannot_be_made(fake, host, saved, monkeypatch):
    monkeypatch.setattr(webui, "vars", lambda *_: 1 / 0, raising=False)
    copied = webui._as_the_user_has_them(fake.opts, {KEY: USERS}, {KEY: fake.opts.data[KEY]})
    assert copied is fake.opts


def test_an_override_of_the_same_option_does_not_bring_our_value_back_after_the_run(fake, host):
    p = fake.make(override_settings={KEY: "Full"})
    p.scripts = SimpleNamespace(run_hook=lambda name, p, *_: HOOKS.get(name, lambda *_: None)(host, p))
    page_run(p)
    assert fake.record.options[0][KEY] == OURS
    assert fake.opts.data[KEY] == USERS and p.override_settings == {KEY: "Full"}


HOOKS = {
    "before_process": lambda host, p: host.hold_option(p, KEY, OURS),
    "postprocess": lambda host, p: host.end_run(p),
}


@pytest.mark.parametrize("flag", ["freeze_settings", "freeze_settings_in_sections", "freeze_specific_settings"])
def test_with_frozen_settings_the_host_is_not_asked_to_override_anything(fake, host, monkeypatch, flag):
    flags = SimpleNamespace(**{flag: True})
    monkeypatch.setattr(fake.modules["modules.shared"], "cmd_opts", flags, raising=False)
    p = fake.make()
    host.override(p, KEY, OURS)
    assert p.override_settings == {} and fake.opts.data[KEY] == OURS
    host.end_run(p)
    assert fake.opts.data[KEY] == USERS


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_runs_that_end_in_either_order_the_settings_stay_the_users(fake, host, saved, first_to_end):
    runs, before = [fake.make(), fake.make()], dict(fake.opts.data)
    for p, ours in zip(runs, (OURS, "Approx NN"), strict=True):
        host.hold_option(p, KEY, ours)
        assert host.option(KEY, None) == USERS
    host.end_run(runs.pop(first_to_end))
    assert host.option(KEY, None) == USERS
    assert saved() == before
    host.end_run(runs.pop())
    assert saved() == before == fake.opts.data
    assert (host.meanwhile, host._held) == ({}, {})
