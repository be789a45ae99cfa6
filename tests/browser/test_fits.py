"""What fits, in the browser: for what the fields say, in the page's language, with the keyboard, in any window."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("test_looks", Path(__file__).with_name("test_looks.py"))
_LOOKS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LOOKS)

SECTION = "#vram_guard_tab [data-section=what_fits]"
TEXTS = f"{SECTION} :is(p, dt, dd, caption, th, .vg-word, .vg-sign, .vg-figure, .vg-badge, .vg-also, td.vg-soft)"


@pytest.fixture
def opened(open_lab):
    def opened(query="", host=None, **options):
        lab = open_lab(query, **options)
        if host:
            lab.choose("lab_host", host)
        lab.show_tab("VRAM Guard")
        lab.page.locator(f"{SECTION} table").first.wait_for()
        return lab

    return opened


def test_it_is_about_the_fields_as_they_are(opened):
    lab = opened()
    lab.show_tab("txt2img")
    lab.set("width", 832)
    lab.set("height", 1216)
    lab.set("batch_size", 3)
    lab.show_tab("VRAM Guard")
    lab.page.locator(SECTION, has_text="832×1216, batch size 3").wait_for()
    said = lab.page.locator(f"{SECTION} [role=status]")
    assert "Largest batch at this size; " in said.text_content()
    now = lab.page.locator(f"{SECTION} tr.vg-now").first
    assert now.locator("th").inner_text().split()[0] == "832×1216"
    assert "Batch size 3" in lab.page.locator(f"{SECTION} thead").first.inner_text().replace("batch", "Batch")


def test_the_largest_batch_is_put_into_the_fields_with_the_keyboard(opened):
    lab = opened()
    button = lab.page.locator(f"{SECTION} [data-what=batch]")
    batch = lab.page.locator(f"{SECTION} dd", has=lab.page.locator("[data-what=batch]")).locator("span").inner_text()
    button.focus()
    lab.page.keyboard.press("Enter")
    lab.page.locator(SECTION, has_text=f"1024×1024, batch size {batch}").wait_for()
    assert lab.values("batch_size") == [float(batch)]
    assert not button.count()
    assert lab.page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_a_table_is_reached_and_scrolled_with_the_keyboard(opened):
    lab = opened(viewport={"width": 360, "height": 800})
    region = lab.page.locator(f"{SECTION} [role=region]").first
    assert region.get_attribute("aria-label") == "Common sizes on this card"
    lab.page.locator(f"{SECTION} > summary").focus()
    for _ in ("the largest size", "the largest batch", "the table"):
        lab.page.keyboard.press("Tab")
    assert region.evaluate("element => element === document.activeElement")
    lab.page.keyboard.press("ArrowRight")
    lab.page.wait_for_function(f"document.querySelector('{SECTION} [role=region]').scrollLeft > 0")


def test_an_answer_that_is_the_same_leaves_the_place_alone(opened):
    lab = opened()
    lab.page.evaluate(f"document.querySelector('{SECTION} table').dataset.mark = 'kept'")
    lab.show_tab("txt2img")
    lab.page.locator("#txt2img_prompt textarea").fill("a prompt needs no memory")
    with lab.page.expect_response("**/vram-guard/v1/fits", timeout=20_000):
        lab.show_tab("VRAM Guard")
    assert lab.page.locator(f"{SECTION} table[data-mark=kept]").count() == 1


def test_nothing_is_asked_while_both_sections_that_need_it_are_folded(opened):
    lab = opened()
    asked = []
    lab.page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/fits") else None)
    lab.page.locator(f"{SECTION} > summary").click()
    lab.page.locator("#vram_guard_tab [data-section=restart_advice] > summary").click()
    lab.show_tab("txt2img")
    lab.set("batch_size", 2)
    lab.show_tab("VRAM Guard")
    with lab.page.expect_response("**/vram-guard/v1/sections*", timeout=20_000):
        pass
    assert asked == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(opened, theme):
    lab = opened(query=f"?__theme={theme}", color_scheme=theme)
    measured = lab.page.evaluate(_LOOKS.CONTRAST, TEXTS)
    assert len(measured) > 60
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_a_brazilian_browser_is_answered_in_portuguese(opened):
    lab = opened(locale="pt-BR", host="Forge")
    assert lab.page.locator(f"{SECTION} caption").first.inner_text() == "Tamanhos comuns nesta placa"
    assert "cabe" in lab.page.locator(f"{SECTION} td").first.inner_text()


def test_in_a_narrow_window_only_the_tables_scroll(opened):
    lab = opened(viewport={"width": 360, "height": 800})
    box = lab.page.locator(SECTION).bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
