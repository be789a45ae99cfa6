"""Recover in the tab: the list, its two requests, and who may not ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.errors import BadInput
from lib_vram.guard.kept_latents import Kept
from lib_vram.host.freeing import Busy
from lib_vram.host.lab import LabHost
from lib_vram.host.rescue_latents import CannotRecover, Recovered
from lib_vram.message import LANGUAGES, area, say
from lib_vram.ui import access, answers_recover, routes
from lib_vram.ui.sections import recover as section

ID = "1700000000000-12-1"
KEPT = Kept(ID, 1.7e9, 1000, 12, "a1111", "model", "txt2img", 512, 768, ("a <cat>\nSteps: 1",) * 2, (7, 8))


class Latents:
    def __init__(self):
        self.kept = [KEPT]
        self.dropped = []

    def left(self):
        return self.kept

    def find(self, name):
        if name != ID:
            raise BadInput("id", got=name, takes="the name of latents in the list")
        return KEPT

    def drop(self, name):
        self.dropped.append(name)
        self.kept = []


@pytest.fixture
def latents(monkeypatch):
    made = Latents()
    for module in (answers_recover, section):
        monkeypatch.setattr(module, "kept_latents", lambda: made)
    return made


@pytest.fixture
def host():
    made = SimpleNamespace(open=False)
    made.is_open_to_others = lambda: made.open
    return made


@pytest.fixture
def client(host, latents, monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    app = FastAPI()
    routes.add_routes(app, SimpleNamespace(host=host))
    return TestClient(app)


def post(client, name="recover", **body):
    return client.post(f"/vram-guard/v1/{name}", json={"id": ID, **body})


def answering(monkeypatch, result):
    def decode(host, latents, name):
        if isinstance(result, Exception):
            raise result
        latents.drop(name)
        return result

    monkeypatch.setattr(answers_recover, "decode_and_save", decode)


def test_the_files_and_the_shorter_list_are_answered(client, monkeypatch):
    answering(monkeypatch, Recovered(("a.png", "b.png"), KEPT.infotexts))
    answer = post(client).json()
    assert answer["files"] == ["a.png", "b.png"]
    assert answer["said"] == "2 decoded and saved: a.png, b.png"
    assert answer["html"] == section.list_html([], "en")


def test_deleting_takes_it_off_the_list(client, latents):
    assert post(client, "recover-delete").json()["said"] == "Deleted."
    assert latents.dropped == [ID]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Busy("at work"), 409), (CannotRecover(say("rescue.recover_other_model", model="m", loaded="n")), 409),
        (BadInput("id", got="x", takes="y"), 422), (ValueError("broken"), 500),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(client, monkeypatch, fault, status):
    answering(monkeypatch, fault)
    answer = post(client)
    assert answer.status_code == status
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("name", ["recover", "recover-delete"])
@pytest.mark.parametrize("given", ["../../x", None, 3, {"a": 1}])
def test_a_name_that_is_not_in_the_list_is_refused(client, monkeypatch, latents, name, given):
    monkeypatch.setattr(answers_recover, "decode_and_save", lambda host, latents, name: latents.find(name))
    assert post(client, name, id=given).status_code == 422
    assert latents.dropped == []


@pytest.mark.parametrize("name", ["recover", "recover-delete"])
def test_a_page_that_others_reach_changes_nothing(client, host, latents, name):
    host.open = True
    assert post(client, name).status_code == 403
    assert "data-recover" not in section.html(SimpleNamespace(host=host), "en")
    assert latents.dropped == []


@pytest.mark.parametrize("name", ["recover", "recover-delete"])
def test_another_site_may_not_ask(client, name, latents):
    answer = client.post(f"/vram-guard/v1/{name}", json={"id": ID}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, latents.dropped) == (403, [])


def test_the_lab_says_that_it_has_none(latents, monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    app = FastAPI()
    routes.add_routes(app, SimpleNamespace(host=LabHost()))
    answer = post(TestClient(app))
    assert (answer.status_code, answer.json()["error"]) == (409, "The Lab has no latents: recover in the WebUI.")


def test_the_list_names_pictures_size_and_model_and_escapes_the_prompt(latents, host):
    shown = section.parts(SimpleNamespace(host=host), "en")[section.LIST]
    assert "2 × 512×768 · model · a &lt;cat&gt;" in shown
    assert shown.count(f'data-recover-id="{ID}"') == 2


def test_an_empty_list_says_so(host):
    assert section.list_html([], "en").startswith('<p class="vg-soft">Nothing is waiting')


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_section_speaks_every_language(host, latents, language):
    shown = section.html(SimpleNamespace(host=host), language) + section.list_html([KEPT], language)
    assert area(language, "rescue")["recover_button"] in shown
    assert "rescue." not in shown


def test_other_machines_are_told_of_no_prompt(latents, host):
    guard = SimpleNamespace(host=host)
    assert "cat" in section.parts(guard, "en")[section.LIST]
    host.open = True
    assert section.parts(guard, "en") == {}
