"""The history, in the browser: a run is kept and shown, saved, copied and erased; with the keyboard, in any theme."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("test_looks", Path(__file__).with_name("test_looks.py"))
_LOOKS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LOOKS)

SECTION = "#vram_guard_tab [data-section=history]"
TEXTS = f"{SECTION} :is(p, th, td, caption, figcaption, summary span, summary time, li, h3, button)"


@pytest.fixture
def opened(open_lab):
    """Return a function that opens the Lab, makes one picture and shows the history."""

    def opened(query="", **options):
        lab = open_lab(query, **options)
        lab.generate.click()
        lab.wait_for_pictures(1)
        lab.show_tab("VRAM Guard")
        lab.page.locator(f"{SECTION} .vg-history-chart").wait_for()
        return lab

    return opened


def answer(lab, text):
    lab.page.locator(f"{SECTION} [data-history-answer]", has_text=text).wait_for()


def press(lab, name):
    lab.page.locator(f"{SECTION} [data-history-do={name}]").press("Enter")


def test_a_run_stands_there_with_its_phases(opened):
    lab = opened()
    newest = lab.page.locator(f"{SECTION} details.vg-history-run").first
    assert "sdxl 1024×1024" in newest.inner_text()
    newest.locator("summary").press("Enter")
    assert newest.locator("tbody th").all_inner_texts() == ["text encoding", "sampling", "VAE decode"]


def test_what_is_open_stays_open_when_a_run_is_added(opened):
    lab = opened()
    newest = lab.page.locator(f"{SECTION} details.vg-history-run").first
    newest.locator("summary").press("Enter")
    mark = newest.get_attribute("data-run")
    count = lab.page.locator(f"{SECTION} details.vg-history-run").count()
    lab.show_tab("txt2img")
    lab.generate.click()
    lab.page.locator("#txt2img_progress .lab-running").last.wait_for()
    lab.page.locator("#txt2img_progress .lab-running").last.wait_for(state="detached")
    lab.show_tab("VRAM Guard")
    runs = f"{SECTION} details.vg-history-run"
    lab.page.wait_for_function(f"document.querySelectorAll('{runs}').length > {min(count, 19)}")
    lab.page.wait_for_function(f"document.querySelector('{runs}').dataset.run !== '{mark}'")
    assert lab.page.locator(f"{runs}[open]").get_attribute("data-run") == mark


@pytest.mark.parametrize(("name", "begin"), [("json", "{"), ("csv", "at,host,")])
def test_everything_is_saved_as_a_file(opened, name, begin):
    lab = opened()
    with lab.page.expect_download() as saved:
        press(lab, name)
    assert saved.value.suggested_filename.endswith(f".{name}")
    assert Path(saved.value.path()).read_text(encoding="utf-8").startswith(begin)
    answer(lab, "The file was saved")


def test_a_row_can_be_copied_and_nothing_is_sent(opened):
    lab = opened()
    elsewhere = []
    lab.page.on("request", lambda request: elsewhere.append(request.url) if "127.0.0.1" not in request.url else None)
    press(lab, "copy")
    answer(lab, "Nothing was sent")
    row = json.loads(lab.page.locator("#vram_guard_row").input_value())
    assert (row["request"]["model"]["family"], row["machine"]["card"]) == ("sdxl", "NVIDIA GeForce RTX 3060")
    assert "lighthouse" not in json.dumps(row)
    assert elsewhere == []


def test_erasing_asks_first_and_can_be_left(opened):
    lab = opened()
    press(lab, "erase")
    focused = "document.activeElement.dataset.historyDo"
    assert lab.page.evaluate(focused) == "cancel"
    lab.page.keyboard.press("Enter")
    assert lab.page.evaluate(focused) == "erase"
    assert lab.page.locator(f"{SECTION} [data-history-ask]").is_hidden()
    assert lab.page.locator(f"{SECTION} .vg-history-run").count() > 0
    press(lab, "erase")
    lab.page.keyboard.press("Escape")
    assert lab.page.evaluate(focused) == "erase"
    assert lab.page.locator(f"{SECTION} [data-history-ask]").is_hidden()
    press(lab, "erase")
    press(lab, "erase-now")
    answer(lab, "The history was erased.")
    lab.page.locator(SECTION, has_text="No generation has been kept yet").wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(opened, theme):
    lab = opened(query=f"?__theme={theme}", color_scheme=theme)
    measured = lab.page.evaluate(_LOOKS.CONTRAST, TEXTS)
    assert len(measured) > 30
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_a_brazilian_browser_is_answered_in_portuguese(opened):
    lab = opened(locale="pt-BR")
    assert "pronta" in lab.page.locator(f"{SECTION} details.vg-history-run").first.inner_text()


def test_in_a_narrow_window_only_the_tables_scroll(opened):
    lab = opened(viewport={"width": 360, "height": 800})
    box = lab.page.locator(SECTION).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    inside = lab.page.locator(f"{SECTION} [data-history]")
    assert inside.evaluate("element => element.scrollWidth <= element.clientWidth")
