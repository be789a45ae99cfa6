"""The section "What fits": what the tables say reaches the page, in words, signs and the page's language."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.estimate.estimator import estimate
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.message import LANGUAGES
from lib_vram.plan.advice import advise
from lib_vram.plan.fit import Fit, largest
from lib_vram.request import Request
from lib_vram.ui import answers_fits, routes
from lib_vram.ui.sections import restart_advice, what_fits
from lib_vram.units import GIB

SDXL = {"width": 1024, "height": 1024}


@pytest.fixture
def guard():
    return Guard(LabHost())


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    monkeypatch.setattr(answers_fits, "ANSWER_SECONDS", 60)


@pytest.fixture
def client(guard):
    app = FastAPI()
    routes.add_routes(app, guard)
    return TestClient(app)


def ask(client, form=SDXL, tab="txt2img", language="en", **headers):
    body = {"tab": tab, "form": form, "language": language}
    return client.post("/vram-guard/v1/fits", json=body, headers=headers)


def test_the_answer_is_that_of_the_command_line(client, guard):
    answer = ask(client).json()
    request = guard.host.request_from_form("txt2img", SDXL)
    assert answer["largest_size"] == largest(request, "size").to_dict()
    assert answer["largest_batch"] == largest(request, "batch").to_dict()
    cells = [cell for row in answer["sizes"]["rows"] for cell in row["cells"] if row["current"]]
    assert [cell["verdict"] for cell in cells] == [
        estimate(request.replace(batch_size=cell["batch_size"])).verdict for cell in cells
    ]


def test_what_this_machine_has_learned_reaches_every_cell_and_the_largest(client, guard, monkeypatch):
    computed = ask(client).json()
    assert computed["largest_size"]["width"] > 1024

    def corrected(result, request):
        too_large = request.width * request.height > 1024 * 1024
        return replace(result, verdict="wont_fit") if too_large else result

    monkeypatch.setattr(guard.learned, "correct_of", lambda request: corrected)
    learned = ask(client, {**SDXL, "batch_size": 2}).json()
    assert learned["largest_size"]["width"] == 1024
    for row in learned["sizes"]["rows"]:
        if row["width"] * row["height"] > 1024 * 1024:
            assert {cell["verdict"] for cell in row["cells"]} == {"wont_fit"}


def test_every_cell_has_a_sign_and_a_word(client):
    html = ask(client).json()["fits_html"]
    assert html.count("data-verdict=") == html.count('class="vg-sign"') == html.count('class="vg-word"') > 30
    for sign, word, verdict in (("✓", "fits", "fits"), ("!", "tight", "tight"), ("✕", "won&#x27;t fit", "wont_fit")):
        assert (
            f'<td data-verdict="{verdict}"><span class="vg-sign" aria-hidden="true">{sign}</span>'
            f'<span class="vg-word">{word}</span>' in html
        )


def test_each_table_has_a_caption_and_heads_and_scrolls_with_the_keyboard(client):
    html = ask(client).json()["fits_html"]
    assert html.count("<table") == html.count("<caption>") == html.count('tabindex="0"') == 3
    assert html.count('scope="row"') == html.count("<tr") - html.count("<thead>")


def test_the_largest_size_is_shown_as_the_host_makes_it():
    device = {"total_bytes": 8 * GIB}
    request = Request.from_dict({"host": "neo", "model": {"family": "sdxl"}, **SDXL, "device": device})
    found = replace(answers_fits.compute(request), largest_size=Fit(1816, 1816, 1, 0))
    assert "<dd>1792×1792</dd>" in what_fits.fits_html(found, "img2img", "en")
    html = what_fits.fits_html(found, "txt2img", "en")
    assert 'data-use="{&quot;width&quot;: 1792, &quot;height&quot;: 1792}"' in html
    assert 'aria-label="Use size 1792×1792">Use</button>' in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_advice_names_both_files_and_keeps_what_the_host_was_started_with(client, language):
    copy = {"en": "Copy for webui-user.bat", "pt": "Copiar para webui-user.bat", "es": "Copiar para webui-user.bat"}
    form = {**SDXL, "lab_total_gib": 5, "lab_flags": "--medvram"}
    answer = ask(client, form, language=language).json()
    first = answer["advice"][0]
    assert first["sh"] == ['export COMMANDLINE_ARGS="--lowvram"']
    assert first["text"] in answer["advice_html"]
    assert copy[language] in answer["advice_html"]
    assert answer["advice_html"].count("data-copy-lines") == sum(
        bool(item[file]) for item in answer["advice"] for file in ("bat", "sh")
    )


def test_a_host_s_own_arguments_reach_the_lines_and_its_passwords_do_not(client, guard, monkeypatch):
    monkeypatch.setattr(guard.host, "launch_arguments", lambda: ("--api", "--gradio-auth", "me:secret"))
    answer = ask(client, {**SDXL, "lab_total_gib": 7}).json()
    assert answer["advice"][0]["sh"] == ['export COMMANDLINE_ARGS="--api --gradio-auth *** --medvram-sdxl"']
    assert "secret" not in str(answer)
    assert "keep your own value: --gradio-auth." in answer["advice_html"]


def test_strangers_see_no_flags_but_those_about_memory(client, guard, monkeypatch):
    monkeypatch.setattr(guard.host, "launch_arguments", lambda: ("--ckpt-dir", "/home/me/models"))
    monkeypatch.setattr(guard.host, "is_open_to_others", lambda: True)
    answer = ask(client, {**SDXL, "lab_total_gib": 7}).json()
    assert answer["advice"][0]["sh"] == ['export COMMANDLINE_ARGS="--medvram-sdxl"']
    assert "/home/me" not in str(answer)
    assert "only the flags about memory: keep your others." in answer["advice_html"]


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        (SDXL, "This request fits as it is"),
        (
            {**SDXL, "lab_host": "Forge", "width": 4096, "height": 4096, "lab_total_gib": 3},
            "No flag of this WebUI would",
        ),
    ],
)
def test_without_advice_it_is_said_why(client, form, sentence):
    answer = ask(client, form).json()
    assert answer["advice"] == []
    assert sentence in answer["advice_html"]


def test_on_windows_the_bat_comes_first(guard):
    request = guard.host.request_from_form("txt2img", {**SDXL, "lab_total_gib": 7})
    advice = advise(request, windows=True)
    html = restart_advice.advice_html(request, advice, "wont_fit", "en", windows=True)
    assert html.index("webui-user.bat") < html.index("<summary>webui-user.sh</summary>")
    assert "expandable_segments" not in html


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_of_it_is_in_the_language_of_the_page(client, language):
    expected = {"en": "Largest batch", "pt": "Maior lote", "es": "Mayor lote"}[language]
    assert expected in ask(client, language=language).json()["fits_html"]
    assert "advice." not in ask(client, {**SDXL, "lab_host": "Forge"}, language=language).json()["fits_html"]


def test_fields_that_make_no_request_are_answered_with_the_reason(client):
    answer = ask(client, {"width": "wide", "height": "<img src=x>"}).json()
    assert not answer["known"]
    assert "<img" not in answer["fits_html"]
    assert answer["fits_html"].startswith('<p class="vg-soft" data-said>')


@pytest.mark.parametrize(
    ("body", "field"), [({"tab": "extras", "form": {}}, "tab"), ({"tab": "txt2img", "form": []}, "form"), ({}, "tab")]
)
def test_a_bad_body_is_one_line(client, body, field):
    answer = client.post("/vram-guard/v1/fits", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"{field}: ")


def test_another_site_is_refused(client):
    assert ask(client, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_what_takes_longer_is_answered_in_pieces_and_finished_by_asking_again(client, monkeypatch):
    monkeypatch.setattr(answers_fits, "ANSWER_SECONDS", 0)
    form = {**SDXL, "lab_total_gib": 9.5}
    first = ask(client, form).json()
    assert not first["complete"]
    assert '<td class="vg-soft">computing…</td>' in first["fits_html"]
    assert "advice_html" not in first
    monkeypatch.setattr(answers_fits, "ANSWER_SECONDS", 60)
    whole = ask(client, form).json()
    assert whole["complete"]
    assert "computing…" not in whole["fits_html"]
    for before, after in zip(first["sizes"]["rows"], whole["sizes"]["rows"], strict=True):
        for early, late in zip(before["cells"], after["cells"], strict=True):
            assert early["verdict"] in ("unknown", late["verdict"])


def test_what_will_not_fit_and_is_not_known_whole_is_said(client, guard, monkeypatch):
    device = {"total_bytes": GIB}
    data = {"host": "neo", "model": {"family": "flux2_klein_9b"}, **SDXL, "device": device}
    request = Request.from_dict({**data, "controlnets": [{"family": "flux2_klein_9b"}]})
    monkeypatch.setattr(guard.host, "request_from_form", lambda tab, form: request)
    answer = ask(client)
    assert answer.status_code == 200
    assert not answer.json()["known"]


def test_one_is_computed_at_a_time_and_who_waits_too_long_is_told(client, monkeypatch):
    monkeypatch.setattr(answers_fits, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(answers_fits, "_turn", threading.Lock())
    with answers_fits._turn:
        assert ask(client).status_code == 429
    assert ask(client).status_code == 200


def test_the_frame_is_the_same_whatever_happens(guard):
    before = what_fits.html(guard, "en"), restart_advice.html(guard, "en")
    guard.host.request_from_form("txt2img", {**SDXL, "lab_host": "Forge"})
    assert (what_fits.html(guard, "en"), restart_advice.html(guard, "en")) == before


def test_pieces_of_an_answer_come_to_an_end(client, monkeypatch):
    monkeypatch.setattr(answers_fits, "ANSWER_SECONDS", 0.1)
    form = {**SDXL, "lab_total_gib": 6, "lab_host": "Forge", "lab_attention": "sub_quad"}
    first = ask(client, form).json()
    later = (ask(client, form).json() for _ in range(200))
    last = next(answer for answer in later if answer["complete"])
    assert not first["complete"]
    assert last["largest_size"]["width"] and "known" not in last["largest_size"]
