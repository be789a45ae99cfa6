"""The live picture and the end of a process over HTTP: what is answered, and who may not ask."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.live.watch import Watch
from lib_vram.machine.programs import Program
from lib_vram.message import LANGUAGES, area
from lib_vram.request import Request
from lib_vram.ui import access, answers_live, routes
from lib_vram.ui.sections import live, processes
from lib_vram.units import GIB
from tests.live.stand_in import Clock, Host, card
from tests.ui.test_free_routes import SITES

EVIL = "<img src=x onerror=alert(1)>"
LEFT = Program(77, 1234.5, "python launch.py", "zombie", "Forge", 3 * GIB, is_own_user=True)
GAME = Program(78, 99.25, EVIL, "game", used_bytes=GIB, shared_bytes=2 * GIB)
BODY = {"pid": 77, "started": 1234.5}


class Reader:
    """Names two programs, and remembers what it was asked to end."""

    def __init__(self):
        self.asked, self.came = [], "ended"

    def programs(self, holders, shared=None, *, made_up=False):
        return (LEFT, GAME)

    def end(self, pid, started):
        self.asked.append((pid, started))
        return self.came


@pytest.fixture
def host():
    made = Host()
    made.open = False
    made.is_open_to_others = lambda: made.open
    made.folders = lambda: {"temp": "."}
    return made


@pytest.fixture
def watch(host):
    made = Watch(host, Clock())
    made.reader = Reader()
    return made


@pytest.fixture
def app(host, watch, monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    made = FastAPI()
    routes.add_routes(made, SimpleNamespace(host=host, live=watch))
    return made


@pytest.fixture
def client(app):
    return TestClient(app)


def now(client, **query):
    answer = client.get("/vram-guard/v1/live", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def end(client, body=BODY, **headers):
    return client.post("/vram-guard/v1/end-process", json=body, headers=headers)


# the picture


def test_the_card_is_answered_by_owner_in_words_and_numbers(client):
    answer = now(client)
    assert answer["summary"] == "10.0 GiB of 12.0 GiB in use, 2.0 GiB free."
    shown = [(item["label"], item["shown"], item["share"]) for item in answer["owners"]]
    assert shown[:4] == [
        ("firefox", "1.5 GiB", "12 %"),
        ("Other programs, not named", "512 MiB", "4 %"),
        ("Driver and kernels of this WebUI", "1.0 GiB", "8 %"),
        ("Diffusion model: model.safetensors", "4.0 GiB", "33 %"),
    ]
    assert shown[-2:] == [("Cache of this WebUI, unused", "1.0 GiB", "8 %"), ("Free", "2.0 GiB", "17 %")]
    assert {"label": "Models kept in RAM", "shown": "Text encoder 1.0 GiB"} in answer["system"]
    assert answer["curve"]["samples"] == [[1000.0, 10 * GIB, 7 * GIB, 6 * GIB, 2 * GIB]]


def test_only_what_is_new_of_the_curve_is_sent(client):
    assert len(now(client, since=999.0)["curve"]["samples"]) == 1
    assert now(client, since=1000.0)["curve"]["samples"] == []


@pytest.mark.parametrize("since", ["x", "-1", "nan", "1e99", "inf"])
def test_a_moment_that_is_none_is_refused(client, since):
    assert client.get("/vram-guard/v1/live", params={"since": since}).status_code == 422


@pytest.mark.parametrize(
    ("found", "memory", "summary", "note"),
    [
        (None, None, "This WebUI computes on the CPU: it holds no memory of a card.", None),
        (
            card(source="virtual", free_bytes=10 * GIB), None,
            "2.0 GiB of 12.0 GiB in use, 10.0 GiB free.",
            "This is a virtual card: the WebUI itself computes on the CPU, so nothing of it is on the card.",
        ),
        (
            card(free_bytes=None, used_by_others_bytes=None, holders=(), source="torch"), "as it is",
            "This WebUI holds 7.0 GiB of 12.0 GiB; what others hold is not known.",
            "What is free is not known on this device: the system does not say what other programs hold.",
        ),
        (
            card(holders=()), "as it is", "10.0 GiB of 12.0 GiB in use, 2.0 GiB free.",
            "The driver does not say what it holds for this WebUI alone; a usual figure stands in its place.",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_said(client, host, found, memory, summary, note):
    host.found = found
    host.memory = host.memory if memory else None
    host.weights = ()
    answer = now(client)
    assert answer["summary"] == summary
    assert answer["notes"] == ([note] if note else [])


def test_the_last_generation_is_told_phase_by_phase_with_what_was_predicted(client, host, watch):
    request = Request.from_dict(
        {
            "device": {"name": "RTX", "total_bytes": 12 * GIB, "used_by_others_bytes": 2 * GIB},
            "model": {"family": "sd15"}, "width": 512, "height": 512,
        }
    )  # fmt: skip
    clock = watch._clock
    host.busy = True
    for name, values in (("run", {"request": request}), ("phase", {"name": "sampling"})):
        watch.curve.mark(live.Mark(clock.now, values.get("name", name), values.get("request")))
        watch.now()
        clock.now += 2
    watch.curve.mark(live.Mark(clock.now, "done"))
    answer = now(client)
    assert [(row["label"], row["at"], row["highest"]) for row in answer["phases"]] == [
        ("sampling", "2.0 s", "9.0 GiB"),
        ("done", "4.0 s", ""),
    ]
    assert answer["phases"][0]["predicted"].endswith("GiB")
    assert answer["curve"]["predicted"]["sampling"] > 2 * GIB
    assert answer["curve"]["run"] == [1000.0, 1004.0]
    assert answer["curve"]["now"] == 1004.0


def test_names_of_programs_travel_as_text_and_not_as_markup(client):
    row = now(client)["processes"]["rows"][1]
    assert (row["name"], row["what"]) == (EVIL, "Game. Close it before you generate.")
    assert (row["shown"], row["shared"], row["end"]) == ("1.0 GiB", "2.0 GiB", "")


def test_only_what_was_left_behind_has_a_button(client):
    row = now(client)["processes"]["rows"][0]
    assert row["what"].startswith("A WebUI that was left behind: Forge.")
    assert row["question"] == "End process 77 (python launch.py)?"
    assert (row["pid"], row["started"], row["end"]) == (77, 1234.5, "End it…")


def test_people_on_other_machines_are_told_no_names(client, host):
    host.open = True
    answer = now(client)
    assert answer["processes"]["rows"] == []
    assert "--listen" in answer["processes"]["note"]
    assert "firefox" not in str(answer)
    assert ("Other programs", "2.0 GiB") in [(item["label"], item["shown"]) for item in answer["owners"]]


def test_the_picture_is_behind_the_hosts_login(app, client):
    app.auth = {"user": "secret"}
    assert client.get("/vram-guard/v1/live").status_code == 401


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_frames_are_in_the_pages_language_and_never_change(host, language):
    guard = SimpleNamespace(host=host)
    first = live.html(guard, language) + processes.html(guard, language)
    host.memory = None
    assert live.html(guard, language) + processes.html(guard, language) == first
    assert area(language, "live")["curve_title"] in first
    assert first.count('scope="col"') == 13


# ending


def test_the_process_is_ended_by_its_number_and_its_start(client, watch):
    answer = end(client)
    assert answer.json() == {"pid": 77, "result": "ended", "text": "Process 77 has ended."}
    assert watch.reader.asked == [(77, 1234.5)]


@pytest.mark.parametrize(
    ("came", "status"),
    [("changed", 409), ("not_yours", 403), ("not_zombie", 403), ("refused", 502), ("no_psutil", 501)],
)
def test_what_is_not_ended_is_said_in_one_line(client, watch, came, status):
    watch.reader.came = came
    answer = end(client, {**BODY, "language": "pt"})
    assert answer.status_code == status
    assert answer.json()["error"] == area("pt", "live")[f"ended_{came}"].format(pid=77)


def test_every_result_has_a_status_and_words():
    for came in answers_live.STATUS:
        assert f"ended_{came}" in area("en", "live")


@pytest.mark.parametrize(
    "body",
    [
        {}, {"pid": 77}, {"started": 1234.5}, {"pid": "77", "started": 1234.5}, {"pid": 77.0, "started": 1234.5},
        {"pid": True, "started": 1234.5}, {"pid": [77], "started": 1234.5}, {"pid": 0, "started": 1.0},
        {"pid": 1, "started": 1.0}, {"pid": -1, "started": 1.0}, {"pid": 2**40, "started": 1.0},
        {"pid": 77, "started": "1234.5"}, {"pid": 77, "started": None}, {"pid": 77, "started": -1},
        {"pid": 77, "started": 1e300}, {"pid": "77; rm -rf /", "started": 1.0}, {"pid": "../77", "started": 1.0},
        {"name": "python", "started": 1.0},
    ],
)  # fmt: skip
def test_forged_numbers_are_refused(client, watch, body):
    assert end(client, body).status_code == 422
    assert watch.reader.asked == []


@pytest.mark.parametrize("text", ['{"pid": 77, "started": NaN}', '{"pid": 77, "started": Infinity}'])
def test_a_start_that_is_no_number_is_refused(client, watch, text):
    answer = client.post("/vram-guard/v1/end-process", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert watch.reader.asked == []


@pytest.mark.parametrize("headers", SITES)
def test_other_sites_may_not_end_anything(client, watch, headers):
    assert end(client, **headers).status_code == 403
    assert watch.reader.asked == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_only_post_ends_anything(client, watch, method):
    assert client.request(method, "/vram-guard/v1/end-process?pid=77&started=1234.5").status_code == 405
    assert watch.reader.asked == []


def test_off_while_other_machines_can_reach_the_page(client, host, watch):
    host.open = True
    answer = end(client)
    assert answer.status_code == 403
    assert "--listen" in answer.json()["error"]
    assert watch.reader.asked == []


def test_ending_is_behind_the_hosts_login(app, client, watch):
    app.auth = {"user": "secret"}
    assert end(client).status_code == 401
    assert watch.reader.asked == []


def test_large_bodies_are_not_read(client, watch):
    assert end(client, {**BODY, "more": "x" * 5000}).status_code == 413
    assert watch.reader.asked == []


def test_a_flood_is_let_through_one_at_a_time(client, watch):
    under_way, go_on = threading.Event(), threading.Event()
    ends = watch.reader.end

    def slow(pid, started):
        under_way.set()
        assert go_on.wait(10)
        return ends(pid, started)

    watch.reader.end = slow
    first = []
    thread = threading.Thread(target=lambda: first.append(end(client).status_code))
    thread.start()
    assert under_way.wait(10)
    assert [end(client).status_code for _ in range(9)] == [429] * 9
    go_on.set()
    thread.join(10)
    assert first == [200]
    assert watch.reader.asked == [(77, 1234.5)]
