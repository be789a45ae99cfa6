import dataclasses
import json
from types import SimpleNamespace

import gradio as gr
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import lib_vram
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard.undone import Undone
from lib_vram.host.base import FieldWrite, Settings
from lib_vram.machine.card import Card, Holder
from lib_vram.message import Message, say
from lib_vram.plan.result import Plan, Step
from lib_vram.request import Request
from lib_vram.ui import routes
from lib_vram.units import GIB

REQUEST = {
    "device": {"name": "RTX", "total_bytes": 12 * GIB},
    "model": {"family": "sd15"},
    "width": 512,
    "height": 512,
}
EVIL = "<img src=x onerror=alert(1)>"


class FakeHost:
    name = "a1111"
    title = "AUTOMATIC1111"

    def version(self):
        return "1.10"

    def settings(self):
        return Settings(mode="ask")

    def card(self):
        return Card("RTX", 12 * GIB, 11 * GIB, GIB, "virtual")

    def is_open_to_others(self):
        return False

    def field_writes(self, plan, original):
        return (FieldWrite("batch_size", 1, 4),)


class FakeGuard:
    """Answers with a fixed check, whatever the fields say; remembers what it was asked."""

    def __init__(self):
        self.host = FakeHost()
        self.undone = Undone()
        self.live = SimpleNamespace(warnings=lambda: (say("live.spill", spilled_bytes=2 * GIB),))
        self.asked = []

    def check_form(self, tab, form):
        self.asked.append((tab, form))
        if form.get("fault"):
            raise RuntimeError("a fault of ours")
        request = Request.from_dict(REQUEST)
        phase = PhaseEstimate("vae_decode", 5 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, 9 * GIB, "profile")
        estimate = Estimate("wont_fit", 11 * GIB, "vae_decode", 14 * GIB, phases=(phase,), notes=(Message(EVIL),))
        step = Step("batch_to_count", "batch_size", 4, 1, GIB, "time", Message(EVIL))
        plan = Plan(True, (step,), request, estimate)
        return SimpleNamespace(request=request, estimate=estimate, plan=plan)


@pytest.fixture
def guard():
    return FakeGuard()


@pytest.fixture
def client(guard):
    app = FastAPI()
    routes.add_routes(app, guard)
    return TestClient(app)


def post(client, name, body, **headers):
    return client.post(f"/vram-guard/v1/{name}", json=body, headers=headers)


def test_a_check_brings_verdict_html_and_the_writes_of_a_fix(client, guard):
    answer = post(client, "check", {"tab": "txt2img", "form": {"width": 512}, "language": "pt_BR"}).json()
    assert guard.asked == [("txt2img", {"width": 512})]
    assert answer["verdict"] == "wont_fit"
    assert answer["mode"] == "ask"
    assert answer["writes"] == [{"field": "batch_size", "value": 1}]
    assert "não cabe" in answer["bar_html"]
    assert "Faltaria memória" in answer["ask_html"]
    assert answer["changed_text"].startswith("Batch size 4 → 1: ")
    assert answer["estimate"]["binding_phase"] == "vae_decode"
    assert answer["plan"]["steps"][0]["id"] == "batch_to_count"


def test_nothing_that_comes_from_a_name_becomes_markup(client):
    answer = post(client, "check", {"tab": "txt2img", "form": {}}).json()
    for part in ("bar_html", "phases_html", "ask_html"):
        assert "<img" not in answer[part]


@pytest.mark.parametrize(("is_open", "shown"), [(False, ["a game"]), (True, [])])
def test_status_tells_other_machines_of_no_program(client, guard, monkeypatch, is_open, shown):
    held = dataclasses.replace(guard.host.card(), holders=(Holder(41, "a game", GIB),))
    monkeypatch.setattr(guard.host, "card", lambda: held)
    monkeypatch.setattr(guard.host, "is_open_to_others", lambda: is_open)
    card = client.get("/vram-guard/v1/status").json()["card"]
    assert [item["name"] for item in card["holders"]] == shown


def test_status_names_version_host_card_mode_and_languages(client):
    answer = client.get("/vram-guard/v1/status").json()
    card = answer.pop("card")
    assert answer == {
        "version": lib_vram.__version__,
        "host": "a1111",
        "host_title": "AUTOMATIC1111",
        "host_version": "1.10",
        "mode": "ask",
        "languages": ["en", "pt", "es"],
    }
    assert card["total_bytes"] == 12 * GIB


def test_texts_and_sections_come_in_the_language_asked_for(client):
    assert client.get("/vram-guard/v1/texts?language=es").json()["button_undo"] == "Deshacer"
    assert client.get("/vram-guard/v1/texts?language=xx").json()["button_undo"] == "Undo"
    sections = client.get("/vram-guard/v1/sections?language=pt").json()
    assert list(sections)[:4] == ["tab", "live", "processes", "free"]
    assert {"request", "diagnosis", "symptoms", "checklist", "questions", "sources", "about", "failure"} <= set(
        sections
    )
    assert "Roda em" in sections["about"]


@pytest.mark.parametrize("name", ["estimate", "plan"])
def test_the_contracts_bodies_are_answered(client, name):
    answer = post(client, name, REQUEST)
    assert answer.status_code == 200
    assert ("verdict" if name == "estimate" else "steps") in answer.json()


@pytest.mark.parametrize(
    ("name", "body", "error"),
    [
        ("estimate", {**REQUEST, "width": 0}, "width: got 0, takes a whole number from 64 to 16384"),
        ("plan", {**REQUEST, "height": "tall"}, "height: got 'tall', takes a whole number from 64 to 16384"),
        ("estimate", {**REQUEST, "colour": 1}, None),
        ("check", {"tab": "extras", "form": {}}, "tab: got 'extras', takes one of txt2img, img2img"),
        ("check", {"tab": ["txt2img"], "form": {}}, "tab: got ['txt2img'], takes one of txt2img, img2img"),
        ("check", {"tab": "txt2img", "form": 3}, "form: got 3, takes an object with the fields of the page"),
    ],
)
def test_a_bad_field_is_one_line_that_names_it(client, name, body, error):
    answer = post(client, name, body)
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert "\n" not in answer.json()["error"]
    assert error in (None, answer.json()["error"])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'"x"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object_is_refused_in_one_line(client, body):
    answer = client.post("/vram-guard/v1/check", content=body)
    assert answer.status_code == 422
    assert answer.json() == {"error": "The request is not a JSON object."}


def test_a_body_over_a_mebibyte_is_refused_before_it_is_read_whole(client, guard):
    body = json.dumps({"tab": "txt2img", "form": {"prompt": "x" * 10_000_000}}).encode()
    answer = client.post("/vram-guard/v1/check", content=body)
    assert answer.status_code == 413
    assert answer.json() == {"error": "The request is larger than 1 MiB."}
    assert guard.asked == []


def test_a_fault_of_ours_is_said_clearly_and_logged(client, caplog):
    answer = post(client, "check", {"tab": "txt2img", "form": {"fault": True}})
    assert answer.status_code == 500
    assert answer.json()["error"] == (
        "VRAM Guard could not answer: RuntimeError: a fault of ours. The generation is not affected."
    )
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://public.example"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://tunnel.example", "X-Forwarded-Host": "tunnel.example"}, 200),
    ],
)
def test_only_the_hosts_own_page_may_post(client, headers, status):
    assert post(client, "check", {"tab": "txt2img", "form": {}}, **headers).status_code == status


def test_asking_twice_for_the_routes_adds_them_once_and_a_fresh_app_gets_its_own(guard):
    app = FastAPI()
    routes.add_routes(app, guard)
    count = len(app.routes)
    routes.add_routes(app, guard)
    assert len(app.routes) == count
    fresh = FastAPI()
    routes.add_routes(fresh, guard)
    assert TestClient(fresh).get("/vram-guard/v1/status").status_code == 200


@pytest.fixture
def locked_app(guard):
    with gr.Blocks(analytics_enabled=False) as blocks:
        gr.Markdown("x")
    blocks.auth = [("ana", "secret")]
    app = gr.routes.App.create_app(blocks)
    app.auth = {"ana": "secret"}
    routes.add_routes(app, guard)
    return app


def test_behind_the_hosts_login_only_who_is_logged_in_is_answered(locked_app):
    client = TestClient(locked_app, base_url="https://testserver")
    assert client.get("/vram-guard/v1/status").status_code == 401
    assert post(client, "check", {"tab": "txt2img", "form": {}}).json() == {"error": "Log in to the WebUI first."}
    assert client.post("/login", data={"username": "ana", "password": "secret"}).status_code == 200
    assert client.get("/vram-guard/v1/status").status_code == 200
    assert post(client, "check", {"tab": "txt2img", "form": {}}).status_code == 200


def test_a_run_that_has_left_the_card_is_said_with_every_check(client):
    answer = post(client, "check", {"tab": "txt2img", "form": {}}).json()
    assert answer["live_text"].startswith("2.0 GiB of this generation lie in the computer's RAM")
    assert "CUDA - Sysmem Fallback Policy" in answer["live_text"]
