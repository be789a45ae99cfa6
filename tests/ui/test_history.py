"""The section *History* and what its script is answered."""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram import units
from lib_vram.learning.record import Rescue
from lib_vram.learning.recorder import Recorder
from lib_vram.learning.store import Store
from lib_vram.message import LANGUAGES, area, say
from lib_vram.request import VaeSpec
from lib_vram.ui import access, routes
from lib_vram.ui.sections import SECTIONS, history
from lib_vram.units import GIB, MIB
from tests.learning.makers import MACHINE, REQUEST, estimate, failed, phase, record, run
from tests.learning.test_durations import timed

RESCUE = Rescue(5.0, "a1111", "vae_decode", "vae_tiled", True, 2, 1.5, "sdxl")


def seen(off=0, **changes):
    said = estimate()
    return replace(
        run(record(off=off), **changes), binding="vae_decode", expected_bytes=said.peak_bytes, low_bytes=said.low_bytes,
        high_bytes=said.high_bytes,
    )  # fmt: skip


def text_of(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


class Host:
    open = False

    def is_open_to_others(self):
        return self.open


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(Store(tmp_path), lambda request: MACHINE, lambda request: estimate(), lambda: None, lambda _: None)
    yield made
    made.close()


@pytest.fixture
def guard(recorder):
    return SimpleNamespace(host=Host(), learned=SimpleNamespace(recorder=recorder))


@pytest.fixture
def client(guard, monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    monkeypatch.setattr(access, "READ_SECONDS", 0)
    app = FastAPI()
    routes.add_routes(app, guard)
    return TestClient(app)


def post(client, name, body=None, **headers):
    return client.post(f"/vram-guard/v1/{name}", json=body or {}, headers=headers)


def test_the_section_is_in_the_tab():
    assert history in SECTIONS


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_every_sentence_with_the_same_figures(language):
    english, other = area("en", "learning"), area(language, "learning")
    assert list(other) == sorted(english)
    for key, text in other.items():
        fields = [{name for _, name, _, _ in string.Formatter().parse(item) if name} for item in (text, english[key])]
        assert fields[0] == fields[1], key
        assert text.strip()


def test_without_a_run_it_says_what_will_stand_here():
    assert text_of(history.inside((), (), None, "en")).startswith("No generation has been kept yet.")


def test_the_summary_counts_the_runs_of_the_machine_that_ran_last():
    other = replace(MACHINE, driver="old")
    html = history.inside([run(machine=other), seen(), seen(off=3 * 1024**3)], (), None, "en")
    assert "2 runs of this kind of machine" in html
    assert "1 of the last 2 peaks lay in the band" in html


def test_each_phase_stands_computed_beside_measured():
    html = history.inside([run(record(off=0))] * 3, (), None, "en")
    assert "VAE decode sdxl 3 6.8 GiB 6.8 GiB ±0 % ± 0.0 %" in text_of(html)


def test_a_run_says_what_was_asked_expected_and_measured():
    assert "✓ done" in text_of(history.inside([seen()], (), None, "en"))
    line = "sdxl 1024×1024 · 9.0 s · expected 7.3 GiB · measured 7.3 GiB (±0 %)"
    assert history.together(line) in history.inside([seen()], (), None, "en")
    assert history.together(line).count("\u00a0") == 4


def test_a_rescued_run_is_not_measured_against_what_it_was_to_take():
    html = history.inside([run(record(off=-900), is_rescued=True, expected_bytes=8 * 1024**3)], (), None, "en")
    assert "expected" in html
    assert "measured 7" not in html


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("unknown", "failed for another reason"), ("", "failed for another reason"),
        ("other_processes", "ran out of memory: another program took it"), ("corrupt_file", "failed: damaged file"),
        ("a_new_kind", "failed: a new kind"),
    ],
)  # fmt: skip
def test_a_failure_is_named_as_people_call_it(error, said):
    assert f"✕ {said}" in text_of(history.inside([run(outcome="failed", error=error)], (), None, "en"))


def test_of_a_failure_that_its_own_need_does_not_explain_it_is_said_how_much_was_left():
    small = phase(floor=20 * MIB, weights=2038 * MIB)
    spare = units.human(11 * GIB - small.needs_bytes)
    said = f"✕ ran out of memory in VAE decode, with {spare} to spare on the card"
    assert said in text_of(history.inside([failed(small)], (), None, "en"))
    assert "to spare" not in text_of(history.inside([failed(phase(floor=4000 * MIB))], (), None, "en"))


@pytest.mark.parametrize(("count", "folded"), [(8, ""), (9, "1 older run"), (40, "12 older runs")])
def test_only_the_newest_runs_are_seen_before_anything_is_opened(count, folded):
    html = history.inside([seen(at=float(at)) for at in range(count)], (), None, "en")
    before, _, after = html.partition('<details data-run="older"><summary>')
    assert before.count('class="vg-history-run"') == 8
    assert after.startswith(folded)
    assert after.count('class="vg-history-run"') == min(count, history.MOST_RUNS) - 8
    assert f'data-run="{count - 1:.3f}"' in before


def test_a_peak_that_is_not_known_exactly_is_said_to_be_at_least():
    html = text_of(history.inside([run(record(exact=False))], (), None, "en"))
    assert "at least 6.8 GiB" in html


def test_failures_and_rescues_stand_together_the_newest_first():
    html = text_of(history.inside([failed(at=2.0), seen()], (RESCUE,), None, "en"))
    begin = html.index("Failures, and what rescued them")
    assert html.index("rescued: Tiled VAE; 2 pictures; 1.5 s", begin) < html.index(
        "ran out of memory in VAE decode sdxl"
    )


def test_a_rescue_that_the_infotext_names_is_shown_as_it_is_there():
    html = history.inside([seen()], (replace(RESCUE, action="batch 4x1 -> 2x2 <b>", is_rescued=False),), None, "en")
    assert "not rescued: batch 4x1 -&gt; 2x2 &lt;b&gt;" in html


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("batch 4x1 -> 2x2; VAE tiled 1024", "batch 4×1 → 2×2, VAE in tiles of 1024 pixels"),
        ("VAE tiled", "Tiled VAE"),
        ("cond and uncond apart", "Prompt and negative prompt one after the other"),
        ("kept free 1024 -> 2048 MiB", "kept free 1024 → 2048 MiB"),
        ("hires 2 -> 1.5", "Hires. fix 2 → 1.5"),
        ("weights stored in fp8", "Weights stored in fp8"),
    ],
)
def test_what_rescued_a_run_is_said_in_words(action, said):
    html = history.inside([seen()], (replace(RESCUE, action=action, images=0, seconds=None),), None, "en")
    assert f"rescued: {said}" in text_of(html)


def test_a_rescue_says_what_its_run_was_to_make():
    rescued = run(at=100.0, seconds=9.0, is_rescued=True)
    shown = text_of(history.inside([rescued, seen()], (replace(RESCUE, at=108.0),), None, "en"))
    assert shown.endswith("2 pictures; 1.5 s sdxl 1024×1024")
    elsewhere = text_of(history.inside([rescued, seen()], (replace(RESCUE, at=300.0),), None, "en"))
    assert elsewhere.endswith("2 pictures; 1.5 s sdxl")


def test_what_a_change_cost_in_time_is_shown():
    tiled = VaeSpec(tiled=True)
    runs = [timed(10.0), timed(10.0), timed(12.0, vae=tiled), timed(12.0, vae=tiled)]
    assert "Tiled VAE sdxl 1024×1024 · Tiled VAE 10.0 s a picture 12.0 s a picture +20 % 2 + 2" in text_of(
        history.inside(runs, (), None, "en")
    )


def test_a_trouble_with_the_file_is_said_first():
    html = history.inside([seen()], (), say("learning.damaged", name="x"), "en")
    assert html.startswith('<p class="vg-history-note">The file of past runs was damaged.')


def test_the_picture_has_words_for_those_who_do_not_see_it():
    html = history.inside([seen(), seen(off=3 * 1024**3)], (), None, "en")
    label = "Error over time: 2 runs, 1 of them inside the band that was shown, the last off by +41 %"
    assert f'role="img" aria-label="{label}"' in html
    assert html.count('class="vg-history-outside"') == 2  # the run and the legend


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_can_be_shown_in_every_language(language):
    html = history.inside([seen(), failed(), run(record(exact=False), outcome="stopped")], (RESCUE,), None, language)
    assert "learning." not in html
    assert "{" not in html


def test_what_is_kept_is_escaped():
    html = history.inside([run(request={"model": {"family": "<script>"}, "width": 1, "height": 1})], (), None, "en")
    assert "<script>" not in html


def test_the_page_gets_the_inside_once_and_again_when_something_changed(client, recorder):
    recorder.store.add(seen())
    first = post(client, "history").json()
    assert (first["runs"], "1 run of this kind" in first["html"]) == (1, True)
    assert post(client, "history", {"stamp": first["stamp"]}).json() == {"stamp": first["stamp"]}
    recorder.store.add(seen())
    assert "2 runs of this kind" in post(client, "history", {"stamp": first["stamp"]}).json()["html"]


def test_the_language_is_the_pages(client, recorder):
    recorder.store.add(seen())
    assert "1 ejecución" in post(client, "history", {"language": "es"}).json()["html"]


@pytest.mark.parametrize(("kind", "begin"), [("json", "{"), ("csv", "at,host,")])
def test_everything_can_be_saved(client, recorder, kind, begin):
    recorder.store.add(seen())
    answer = post(client, "history-export", {"format": kind}).json()
    assert answer["text"].startswith(begin)
    assert answer["name"].endswith(kind)
    assert answer["name"] in answer["said"]


@pytest.mark.parametrize("kind", [None, "exe", ["csv"]])
def test_other_formats_are_refused_by_name(client, kind):
    answer = post(client, "history-export", {"format": kind})
    assert (answer.status_code, "format" in answer.json()["error"]) == (422, True)


def test_the_newest_run_is_the_row_for_a_report(client, recorder):
    recorder.store.add(seen())
    answer = post(client, "history-row").json()
    assert json.loads(answer["row"])["request"]["width"] == REQUEST.width
    assert "Nothing was sent" in answer["copied"]


def test_without_a_run_there_is_no_row(client):
    assert post(client, "history-row").json()["row"] == ""


def test_erasing_must_be_confirmed_and_leaves_nothing(client, recorder):
    recorder.store.add(seen())
    assert post(client, "history-erase").status_code == 422
    assert len(recorder.store.runs()) == 1
    answer = post(client, "history-erase", {"confirm": True}).json()
    assert answer == {"erased": True, "said": "The history was erased."}
    assert recorder.store.runs() == ()


@pytest.mark.parametrize("site", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
@pytest.mark.parametrize("name", ["history", "history-export", "history-row", "history-erase"])
def test_another_sites_page_may_not_ask(client, recorder, site, name):
    recorder.store.add(seen())
    assert post(client, name, {"confirm": True, "format": "csv"}, **site).status_code == 403
    assert len(recorder.store.runs()) == 1


def test_where_other_machines_reach_the_page_nothing_is_erased(client, guard, recorder):
    guard.host.open = True
    recorder.store.add(seen())
    assert post(client, "history-erase", {"confirm": True}).status_code == 403
    assert len(recorder.store.runs()) == 1
    assert 'data-history-do="erase"' not in history.html(guard, "en")


def test_a_guard_that_keeps_nothing_answers_all_the_same(monkeypatch):
    monkeypatch.setattr(access, "BETWEEN_SECONDS", 0)
    monkeypatch.setattr(access, "READ_SECONDS", 0)
    app = FastAPI()
    routes.add_routes(app, SimpleNamespace(host=Host()))
    client = TestClient(app)
    assert "No generation has been kept" in post(client, "history").json()["html"]
    assert post(client, "history-row").json()["row"] == ""
    assert post(client, "history-erase", {"confirm": True}).json()["erased"]
    assert post(client, "history-export", {"format": "csv"}).json()["text"].startswith("at,host,")


@pytest.mark.parametrize("name", ["history", "history-export", "history-row"])
def test_a_page_that_asks_without_end_is_turned_away_and_others_are_answered(guard, monkeypatch, name):
    monkeypatch.setattr(access, "READ_SECONDS", 60)
    app = FastAPI()
    routes.add_routes(app, guard)
    client, body = TestClient(app), {"format": "csv"}
    assert [post(client, name, body).status_code for _ in range(3)] == [200, 429, 429]
    others = {"history", "history-export", "history-row"} - {name}
    assert {post(client, other, body).status_code for other in others} == {200}
