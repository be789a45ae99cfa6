"""Restart advice in the browser: copied with the keyboard, in both themes, in a narrow window, in Spanish."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("test_looks", Path(__file__).with_name("test_looks.py"))
_LOOKS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_LOOKS)

SECTION = "#vram_guard_tab [data-section=restart_advice]"
TEXTS = f"{SECTION} :is(p, h3, code, summary, button, .vg-word, .vg-sign, .vg-figure, .vg-cost, .vg-file)"


@pytest.fixture
def advised(open_lab):
    """Return a function that opens the Lab with a card on which its first request will not fit."""

    def opened(query="", **options):
        lab = open_lab(query, **options)
        total = lab.page.locator("#lab_total input[type=number]")
        total.fill("7.5")
        total.press("Tab")
        lab.wait_for_verdict("wont_fit")
        lab.show_tab("VRAM Guard")
        lab.page.locator(f"{SECTION} .vg-advice").wait_for()
        return lab

    return opened


def test_the_line_is_copied_with_the_keyboard(advised):
    lab = advised(permissions=["clipboard-read", "clipboard-write"])
    first = lab.page.locator(f"{SECTION} .vg-advice > li").first
    assert first.locator("h3").inner_text() == "+ --medvram-sdxl"
    assert first.locator("[data-verdict]").evaluate_all("all => all.map(e => e.dataset.verdict)") == [
        "wont_fit",
        "fits",
    ]
    button = first.get_by_role("button", name="Copy for webui-user").first
    button.focus()
    lab.page.keyboard.press("Enter")
    lab.page.locator(f"{SECTION} button", has_text="Copied").wait_for()
    copied = lab.page.evaluate("navigator.clipboard.readText()")
    assert copied == first.locator("code").first.inner_text()
    assert "--medvram-sdxl" in copied


def test_the_other_system_s_line_is_folded_and_stays_open_when_nothing_changes(advised):
    lab = advised()
    fold = lab.page.locator(f"{SECTION} .vg-advice details").first
    assert not fold.locator("code").is_visible()
    fold.locator("summary").focus()
    lab.page.keyboard.press("Enter")
    assert fold.locator("code").is_visible()
    lab.show_tab("txt2img")
    lab.page.locator("#txt2img_prompt textarea").fill("a prompt needs no memory")
    with lab.page.expect_response("**/vram-guard/v1/fits", timeout=20_000):
        lab.show_tab("VRAM Guard")
    assert fold.locator("code").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(advised, theme):
    lab = advised(query=f"?__theme={theme}", color_scheme=theme)
    measured = lab.page.evaluate(_LOOKS.CONTRAST, TEXTS)
    assert len(measured) > 15
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_in_a_narrow_window_long_lines_scroll_in_their_box(advised):
    lab = advised(viewport={"width": 360, "height": 800}, locale="es-ES")
    for part in (SECTION, f"{SECTION} .vg-lines"):
        box = lab.page.locator(part).first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    assert lab.page.locator(f"{SECTION} > summary").inner_text() == "Opciones de arranque que ayudarían"
