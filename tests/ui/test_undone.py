"""Taking a change back is counted, shown in the tab, and can be forgotten; nobody else decides it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.guard.undone import Undone
from lib_vram.host.base import Settings
from lib_vram.message import LANGUAGES, area
from lib_vram.plan.levers import LEVERS
from lib_vram.plan.preferences import KEPT
from lib_vram.ui import access, routes
from lib_vram.ui.sections import left_alone

ADDRESS = "/vram-guard/v1/undone"


class FakeHost:
    keep = ()
    is_open = False

    def settings(self):
        return Settings(keep=self.keep)

    def is_open_to_others(self):
        return self.is_open


@pytest.fixture
def guard():
    return SimpleNamespace(host=FakeHost(), undone=Undone())


@pytest.fixture
def client(guard, monkeypatch):
    monkeypatch.setattr(access, "READ_SECONDS", 0)
    app = FastAPI()
    routes.add_routes(app, guard)
    return TestClient(app)


def test_what_is_undone_twice_is_left_out_until_it_is_offered_again(client, guard):
    first = client.post(ADDRESS, json={"steps": ["batch_to_count", "vae_tiled"]}).json()
    second = client.post(ADDRESS, json={"steps": ["batch_to_count"]}).json()
    assert (first["left_out"], second["left_out"]) == ([], ["batch_to_count"])
    assert "Smaller batch, more runs" in second["html"]
    assert "data-offer-again" in second["html"]
    assert client.post(ADDRESS, json={"offer_again": True}).json()["left_out"] == []
    assert guard.undone.too_often() == ()


@pytest.mark.parametrize("steps", [None, "batch_to_count", ["something else"], [3], [["batch_to_count"]], {}])
def test_steps_that_are_no_changes_are_refused_by_name(client, guard, steps):
    answer = client.post(ADDRESS, json={"steps": steps})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("steps:")


def test_it_is_off_where_others_can_reach_the_page(client, guard):
    guard.host.is_open = True
    assert client.post(ADDRESS, json={"steps": ["vae_tiled"]}).status_code == 403
    assert client.post(ADDRESS, json={"offer_again": True}).status_code == 403


def test_another_site_cannot_decide_it(client, guard):
    answer = client.post(ADDRESS, json={"steps": ["vae_tiled"]}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_the_section_says_when_nothing_is_left_alone(guard):
    html = left_alone.html(guard, "en")
    assert "A fix may propose any change." in html
    assert "button" not in html


def test_the_section_lists_what_the_settings_keep(guard):
    guard.host.keep = ("hires", "size", "nonsense")
    html = left_alone.html(guard, "en")
    assert html.index("Size") < html.index("Hires. fix")
    assert "nonsense" not in html
    assert "button" not in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_change_and_every_kept_thing_has_a_name_in_each_language(language):
    words = area(language, "plan")
    assert {f"lever_{lever}" for lever in LEVERS} <= set(words)
    assert {f"keep_{name}" for name in KEPT} <= set(words)


def test_a_flood_is_turned_away_and_not_counted(client, guard, monkeypatch):
    monkeypatch.setattr(access, "READ_SECONDS", 60)
    answers = [client.post(ADDRESS, json={"steps": ["vae_tiled"]}).status_code for _ in range(3)]
    assert answers == [200, 429, 429]
    assert guard.undone.too_often() == ()
