"""What went wrong, the symptom table and the checklist, in the browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("test_looks", Path(__file__).with_name("test_looks.py"))
_LOOKS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LOOKS)

OLD = (
    "<img src=x onerror='window.evil=1'> CUDA out of memory. Tried to allocate 58.07 GiB (GPU 0; 12.00 GiB total "
    "capacity; 2.56 GiB already allocated; 6.11 GiB free; 3.60 GiB reserved in total by PyTorch)"
)
TEXTS = (
    "#vram_guard_tab :is([data-section=diagnosis], [data-section=symptoms], [data-section=checklist],"
    " [data-section=questions]) :is(p, li, th, td, dt, dd, h2, h3, h4, label, caption, summary, button, textarea)"
)


@pytest.fixture
def opened(open_lab):
    def opened(**options):
        lab = open_lab(**options)
        lab.show_tab("VRAM Guard")
        lab.area("vram_guard_tab").locator("#vram_guard_paste").wait_for()
        return lab

    return opened


def explain(lab, text=OLD):
    lab.page.locator("#vram_guard_paste").fill(text)
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    lab.page.locator("[data-answer] .vg-summary").wait_for()


def test_a_pasted_error_is_explained_with_the_keyboard_alone_and_stays_text(opened):
    lab = opened()
    explain(lab)
    answer = lab.page.locator("[data-answer]")
    assert "58.1 GiB" in answer.inner_text()
    assert "<img src=x" in answer.inner_text()
    assert lab.page.evaluate("window.evil") is None
    assert answer.get_attribute("aria-live") == "polite"
    lab.page.locator("#vram_guard_paste").focus()
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    assert answer.inner_text().strip() == ""


def test_the_filter_leaves_the_rows_that_hold_its_words(opened):
    lab = opened()
    rows = lab.page.locator("[data-symptom]")
    every = rows.count()
    lab.page.locator("#vram_guard_filter").fill("hypernetwork")
    lab.page.wait_for_function("document.querySelectorAll('[data-symptom]:not([hidden])').length < 4")
    assert 0 < lab.page.locator("[data-symptom]:not([hidden])").count() < every
    assert lab.page.locator("[data-symptom=training]").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_these_sections_has_a_contrast_of_four_and_a_half(opened, theme):
    lab = opened(query=f"?__theme={theme}", color_scheme=theme)
    explain(lab)
    measured = lab.page.evaluate(_LOOKS.CONTRAST, TEXTS)
    assert len(measured) > 60
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_a_spanish_browser_is_answered_in_spanish(opened):
    lab = opened(locale="es-ES")
    explain(lab)
    assert lab.page.locator("[data-section=symptoms] caption").first.inner_text() == "Memoria de la GPU"
    assert lab.page.locator("[data-answer] .vg-kind").inner_text().lower() == "memoria de la gpu"
    assert "Más" in lab.page.locator("[data-section=symptoms] details summary").first.inner_text()


def test_in_a_narrow_window_these_sections_do_not_widen_the_page(opened):
    lab = opened(viewport={"width": 360, "height": 800})
    explain(lab)
    box = lab.page.locator("[data-answer]").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


SETTINGS_PAGE = """() => {
    const page = document.createElement("div");
    page.innerHTML = `<div><div class="tab-nav"><button>Other</button><button id="opener">Upscaling</button></div>
        <div class="tabitem" id="settings_other"></div><div class="tabitem" id="settings_upscaling">
        <div id="setting_ESRGAN_tile"><input type="number"></div></div></div>`;
    page.querySelector("#opener").addEventListener("click", () => { window.opened = true; });
    gradioApp().querySelector("#tabs").after(page);
}"""


def test_a_cure_opens_its_setting_where_the_page_has_it(opened):
    lab = opened()
    row = lab.page.locator("[data-symptom=upscaling]")
    row.locator("summary").click()
    button = row.locator("[data-setting=ESRGAN_tile]").first
    assert button.is_hidden()
    lab.page.evaluate(SETTINGS_PAGE)
    lab.page.evaluate("window.vramGuard.diagnosis.light()")
    button.click()
    lab.page.wait_for_function("window.opened && document.activeElement.closest('#setting_ESRGAN_tile')")


def test_a_cure_writes_the_models_own_size_in_the_shape_of_the_picture(opened):
    lab = opened()
    lab.show_tab("txt2img")
    lab.set("width", 2048)
    lab.set("height", 1024)
    lab.page.wait_for_function("[...vramGuard.tabs.values()].some(state => state.answer && state.answer.native_size)")
    lab.show_tab("VRAM Guard")
    row = lab.page.locator("[data-symptom=large-sizes]")
    row.locator("[data-do=native_size]").click()
    lab.page.wait_for_function("document.querySelector('#txt2img_height input[type=number]').value === '728'")
    assert lab.values("width", "height") == [1448, 728]
