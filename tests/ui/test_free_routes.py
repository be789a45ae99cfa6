"""The two requests that change something: what they answer, and who may not ask."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.host.freeing import Busy, Freed, Memory, Restarting
from lib_vram.message import LANGUAGES, area, say
from lib_vram.ui import access, routes
from lib_vram.ui.sections import free as section
from lib_vram.units import GIB

FREED = Freed("cache", Memory(2 * GIB, 5 * GIB, GIB, 6 * GIB), Memory(2 * GIB, 2 * GIB, GIB, 9 * GIB))
SITES = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://testserver.evil.example"},
    {"Origin": "http://testserver@evil.example"},
    {"Origin": "http://testserver:81"},
]


class FakeHost:
    """Remembers what it was asked to do."""

    def __init__(self):
        self.done = []
        self.open = self.busy = False

    def is_open_to_others(self):
        return self.open

    def free(self, level):
        return self._do(("free", level), FREED)

    def restart(self, how):
        steps = None if how == "reload" else say("free.steps_shell")
        return self._do(("restart", how), Restarting(steps is None, steps))

    def _do(self, what, result):
        if self.busy:
            raise Busy("at work")
        self.done.append(what)
        return result


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def app(host, monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    made = FastAPI()
    routes.add_routes(made, SimpleNamespace(host=host))
    return made


@pytest.fixture
def client(app):
    return TestClient(app)


ASKED = [("free", {"level": "cache"}), ("free", {"level": "models"}), ("restart", {"how": "reload"})]


def post(client, name, body, **headers):
    return client.post(f"/vram-guard/v1/{name}", json=body, headers=headers)


def test_freeing_answers_before_after_and_what_it_came_to(client, host):
    answer = post(client, "free", {"level": "cache"}).json()
    assert host.done == [("free", "cache")]
    assert answer["freed_bytes"] == 3 * GIB
    assert answer["before"]["reserved_bytes"] == 5 * GIB
    assert answer["after"]["free_bytes"] == 9 * GIB
    assert answer["summary"] == "The cache was emptied: 3.0 GiB went back to the card."
    assert "html" not in answer


def test_the_page_gets_a_table_by_owner_in_its_language(client):
    html = post(client, "free", {"level": "cache", "page": True, "language": "pt_BR"}).json()["html"]
    assert "O cache foi esvaziado: 3.0 GiB" in html
    assert '<th scope="row">Outros programas</th><td>1.0 GiB</td><td>1.0 GiB</td>' in html
    assert "RAM" not in html


def test_restarting_says_that_it_is_under_way_or_how_to_do_it_by_hand(client):
    assert post(client, "restart", {"how": "reload"}).json() == {"how": "reload", "started": True, "steps": None}
    by_hand = post(client, "restart", {"how": "restart"}).json()
    assert not by_hand["started"]
    assert "webui.sh" in by_hand["steps"]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("free", {}), ("free", {"level": "all"}), ("free", {"level": ["cache"]}), ("free", {"level": "../cache"}),
        ("free", {"level": "CACHE"}), ("free", {"level": None}), ("restart", {"how": "stop"}), ("restart", {"how": {}}),
        ("restart", {"how": "restart; rm -rf /"}),
    ],
)  # fmt: skip
def test_unknown_levels_are_refused(client, host, name, body):
    assert post(client, name, body).status_code == 422
    assert host.done == []


@pytest.mark.parametrize("headers", SITES)
@pytest.mark.parametrize(("name", "body"), ASKED)
def test_other_sites_may_not_ask(client, host, name, body, headers):
    assert post(client, name, body, **headers).status_code == 403
    assert host.done == []


def test_the_own_page_and_programs_may(client, host):
    for headers in ({}, {"Origin": "http://testserver"}, {"Sec-Fetch-Site": "same-origin"}):
        assert post(client, "free", {"level": "cache"}, **headers).status_code == 200
    assert len(host.done) == 3


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
@pytest.mark.parametrize("name", ["free", "restart"])
def test_only_post_changes_anything(client, host, method, name):
    assert client.request(method, f"/vram-guard/v1/{name}?level=cache&how=reload").status_code == 405
    assert host.done == []


def test_behind_the_hosts_login(app, client, host):
    app.auth = {"user": "secret"}
    assert post(client, "free", {"level": "cache"}).status_code == 401
    assert host.done == []


@pytest.mark.parametrize(("name", "body"), ASKED)
def test_off_while_other_machines_can_reach_the_page(client, host, name, body):
    host.open = True
    answer = post(client, name, body)
    assert answer.status_code == 403
    assert "--listen" in answer.json()["error"]
    assert host.done == []


@pytest.mark.parametrize(("name", "body"), ASKED)
def test_refused_in_words_while_a_generation_runs(client, host, name, body):
    host.busy = True
    answer = post(client, name, body)
    assert answer.status_code == 409
    assert "Interrupt" in answer.json()["error"]


def test_large_bodies_are_not_read(client, host):
    assert post(client, "free", {"level": "cache", "more": "x" * 5000}).status_code == 413
    assert host.done == []


def test_a_flood_is_let_through_one_at_a_time(client, host):
    """Nine requests that come while the first is under way are turned away, and none of them waits."""
    under_way, go_on = threading.Event(), threading.Event()
    free = host.free

    def slow(level):
        under_way.set()
        assert go_on.wait(10)
        return free(level)

    host.free = slow
    first = []
    thread = threading.Thread(target=lambda: first.append(post(client, "free", {"level": "cache"}).status_code))
    thread.start()
    assert under_way.wait(10)
    assert [post(client, *ASKED[place % 3]).status_code for place in range(9)] == [429] * 9
    go_on.set()
    thread.join(10)
    assert first == [200]
    assert host.done == [("free", "cache")]


def test_right_after_one_the_next_is_turned_away():
    now = [10.0]
    turn = access.Turn(lambda: now[0])
    with turn.taken("en"):
        now[0] = 20.0
    now[0] = 20.9
    with pytest.raises(access.Declined), turn.taken("en"):
        pass
    now[0] = 21.0
    with turn.taken("en"):
        pass


@pytest.mark.parametrize("path", ["free/", "free/../restart", "../v1/free", "free%2f..%2frestart", "free;restart"])
def test_tricks_with_the_path_reach_nothing(client, host, path):
    answer = client.post(f"/vram-guard/v1/{path}", json={"level": "x"}, follow_redirects=False)
    assert answer.status_code in (307, 404, 422)
    assert host.done == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_section_says_what_is_lost_before_it_restarts(host, language):
    html = section.html(SimpleNamespace(host=host), language)
    words = area(language, "free")
    assert html.index(words["loss_queue"]) < html.index(words["button_go"])
    assert html.count("data-restart-go") == 2
    assert 'aria-live="polite"' in html


def test_the_section_says_why_it_is_off(host):
    host.open = True
    assert "button" not in section.html(SimpleNamespace(host=host), "en")
