"""The card now, its curve and the programs on it, in the browser."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("test_looks", Path(__file__).with_name("test_looks.py"))
_LOOKS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LOOKS)

EVIL = "python <img src=x onerror='window.evil=1'>"
LEFT = {
    "key": "77-1234.5", "pid": 77, "started": 1234.5, "name": EVIL, "kind": "zombie", "what": "A WebUI left behind",
    "shown": "3.0 GiB", "shared": "", "end": "End it…", "question": "End process 77?",
}  # fmt: skip
SECTIONS = "#vram_guard_tab :is([data-section=live], [data-section=processes])"
TEXTS = f"{SECTIONS} :is(p, li, th, td, dt, dd, h2, h3, caption, summary, button, label, select)"


@pytest.fixture
def visited(open_lab):
    """Return a function that opens the Lab; answers that a test changes are let go of before the page closes."""
    pages = []

    def visited(**options):
        lab = open_lab(**options)
        pages.append(lab.page)
        return lab

    yield visited
    for page in pages:
        page.unroute_all(behavior="ignoreErrors")


@pytest.fixture
def opened(visited):
    """Return a function that opens the tab and waits for the first picture."""

    def opened(**options):
        lab = visited(**options)
        lab.show_tab("VRAM Guard")
        lab.page.locator("[data-live=owners] tr").first.wait_for()
        return lab

    return opened


def left_behind(page):
    """Let the server's answers name a WebUI that was left behind, and one be ended."""

    def with_one(route):
        response = route.fetch()
        answer = response.json()
        answer["processes"]["rows"] = [LEFT]  # whatever this machine has beside it
        route.fulfill(response=response, json=answer)

    page.route("**/vram-guard/v1/live*", with_one)
    page.route(
        "**/vram-guard/v1/end-process", lambda route: route.fulfill(json={"text": "Process 77 has ended.", "pid": 77})
    )


def owners(lab):
    return [row.split("\t")[0].strip() for row in lab.page.locator("[data-live=owners]").inner_text().splitlines()]


def test_a_generation_is_seen_by_owner_with_its_phases_and_the_prediction(opened):
    lab = opened()
    assert lab.page.locator("[data-live=summary]").inner_text() != ""
    lab.show_tab("txt2img")
    lab.generate.click()
    lab.wait_for_pictures(1)
    lab.show_tab("VRAM Guard")
    lab.page.locator("[data-live=owners] tr", has_text="Diffusion model").wait_for()
    assert {"Text encoder", "VAE", "Free"} <= set(owners(lab))
    lab.page.locator("[data-live=window]").select_option("0")
    lab.page.locator("[data-live=curve] .vg-live-predicted-line").first.wait_for(state="attached")
    assert lab.page.locator("[data-live=curve] text", has_text="VAE decode").count() == 1
    lab.page.locator("[data-section=live] summary", has_text="as a table").click()
    rows = lab.page.locator("[data-live=phases] tr")
    assert rows.last.locator("th").inner_text() == "done"
    decode = rows.filter(has_text="VAE decode").locator("td").all_inner_texts()
    assert decode[1] == decode[2] != ""


def test_the_owners_fill_the_bar(opened):
    lab = opened()
    box = lab.page.locator("[data-live=bar] svg")
    widths = lab.page.evaluate(
        "[...document.querySelectorAll('[data-live=bar] rect')].map(box => Number(box.getAttribute('width')))"
    )
    assert box.count() == 1
    assert abs(sum(widths) - 1000) < 1


@pytest.mark.parametrize("away", ["folded", "another tab", "hidden page"])
def test_nothing_is_asked_while_nobody_looks(opened, away):
    lab = opened()
    asked = []
    if away == "folded":
        for name in ("live", "processes"):
            lab.page.locator(f"[data-section={name}] > summary").click()
    elif away == "another tab":
        lab.show_tab("txt2img")
        lab.generate.wait_for()
    else:
        lab.page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    lab.page.evaluate("vramGuard.live.idle()")  # an answer that was under way is there
    lab.page.on("request", lambda request: asked.append(request.url) if "/v1/live" in request.url else None)
    for _ in range(3):
        lab.page.evaluate("vramGuard.live.look()")
    assert asked == []


def test_only_what_is_new_is_asked_for(opened):
    lab = opened()
    with lab.page.expect_request("**/v1/live?since=*") as asked:
        pass
    assert float(asked.value.url.split("since=")[1].split("&")[0]) > 1e9


def test_one_that_was_left_behind_is_ended_after_a_question_with_the_keyboard_alone(opened):
    lab = opened(prepare=left_behind)
    page = lab.page
    button = page.locator("[data-processes=rows] button")
    button.wait_for()
    button.focus()
    page.keyboard.press("Enter")
    question = page.locator("[data-processes=question]")
    assert question.inner_text().startswith("End process 77?")
    assert page.evaluate("'endCancel' in document.activeElement.dataset")
    page.keyboard.press("Escape")
    assert not question.is_visible()
    assert page.evaluate("document.activeElement.dataset.end") == "77-1234.5"
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    with page.expect_request("**/v1/end-process") as asked:
        page.keyboard.press("Enter")
    assert {key: json.loads(asked.value.post_data)[key] for key in ("pid", "started")} == {"pid": 77, "started": 1234.5}
    page.locator("[data-processes=answer]", has_text="Process 77 has ended.").wait_for()
    assert not question.is_visible()


def test_names_of_programs_stay_text(opened):
    lab = opened(prepare=left_behind)
    row = lab.page.locator("[data-processes=rows] tr[data-kind=zombie]")
    row.wait_for()
    assert EVIL in row.inner_text()
    assert lab.page.evaluate("window.evil") is None


def test_the_focus_stays_on_a_button_while_figures_change(opened):
    lab = opened(prepare=left_behind)
    lab.page.locator("[data-processes=rows] button").focus()
    lab.page.evaluate("document.querySelector('[data-processes=rows]').dataset.print = ''")
    lab.page.evaluate("vramGuard.live.draw()")
    assert lab.page.evaluate("document.activeElement.dataset.end") == "77-1234.5"


def test_pictures_have_names_and_tables_beside_them(opened):
    lab = opened()
    for name in ("bar", "curve"):
        picture = lab.page.locator(f"[data-live={name}]")
        assert picture.get_attribute("role") == "img"
        assert picture.get_attribute("aria-label")
    assert lab.page.locator("[data-section=live] caption").first.inner_text() == "Who holds the card now"
    assert lab.page.locator("[data-live=owners] th[scope=row]").count() >= 2


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(opened, theme):
    lab = opened(query=f"?__theme={theme}", color_scheme=theme, prepare=left_behind)
    lab.page.locator("[data-processes=rows] button").click()
    measured = lab.page.evaluate(_LOOKS.CONTRAST, TEXTS)
    assert len(measured) > 20
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_a_narrow_window_in_spanish_keeps_everything_in_it(opened):
    lab = opened(viewport={"width": 360, "height": 800}, locale="es-ES", prepare=left_behind)
    lab.page.locator("[data-processes=rows] button").wait_for()
    assert lab.page.locator("[data-section=live] caption").first.inner_text() == "Quién ocupa la tarjeta ahora"
    assert lab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def checks(page, change):
    """Let every check of the fields be answered with what ``change`` makes of the server's answer."""

    def changed(route):
        response = route.fetch()
        answer = response.json()
        change(answer)
        route.fulfill(response=response, json=answer)

    page.route("**/vram-guard/v1/check*", changed)


def test_the_bar_frees_memory_in_pieces_with_one_press_and_says_what_came_of_it(visited):
    button = '<button type="button" class="vg-fix" data-act="free">Free memory</button>'
    lab = visited(prepare=lambda page: checks(page, lambda answer: answer.update(bar_html=answer["bar_html"] + button)))
    with lab.page.expect_request("**/v1/free") as asked:
        lab.bar.locator("[data-act=free]").first.click()
    assert json.loads(asked.value.post_data)["level"] == "models"
    lab.bar.locator(".vg-changed", has_text=re.compile("nothing to free|went back to the card")).wait_for()


def test_a_run_that_has_left_the_card_is_said_under_the_bar_until_it_is_over(visited):
    said = {"text": "2.0 GiB of this generation lie in the computer's RAM"}
    lab = visited(prepare=lambda page: checks(page, lambda answer: answer.update(live_text=said["text"])))
    line = lab.bar.locator(".vg-changed")
    line.filter(has_text=said["text"]).wait_for()
    said["text"] = ""
    lab.set("steps", 21)
    lab.page.wait_for_function("!document.querySelector('#txt2img_vram_guard_bar .vg-changed.vg-said')")
    assert line.inner_text().strip() == ""
