import pytest

from lib_vram.message import area
from lib_vram.ui.sections import SECTIONS

EVIL = '<img src=x onerror="window.evil=1"> <lora:"><script>window.evil=1</script>:1>'
CONTRAST = """
selector => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d");
    const rgb = colour => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const light = colour => {
        const [r, g, b] = Array.from(rgb(colour)).slice(0, 3).map(v => {
            v /= 255;
            return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (rgb(colour)[3] === 255) return colour;
        }
        return "white";
    };
    return Array.from(document.querySelectorAll(selector)).filter(e => e.offsetHeight).map(e => {
        const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
        return [e.className, (a + 0.05) / (b + 0.05)];
    });
}
"""
TEXTS = (
    ".vram-guard :is(.vg-sign, .vg-word, .vg-figure, .vg-part, .vg-fix, .vg-binding, .vg-row-name, .vg-row-need,"
    " .vg-row-numbers, .vg-legend li, .vg-notes li, .vg-button, .vg-ask-title, .vg-ask-sentence, .vg-cost,"
    " .vg-ask-again)"
)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_a_contrast_of_four_and_a_half(open_lab, theme):
    lab = open_lab(f"?__theme={theme}", color_scheme=theme)
    lab.wont_fit()
    lab.bar.locator("button.vg-open").click()
    measured = lab.page.evaluate(CONTRAST, TEXTS)
    lab.page.keyboard.press("Escape")
    lab.generate.click()
    lab.panel.wait_for(state="visible")
    measured += lab.page.evaluate(CONTRAST, TEXTS)
    assert len(measured) > 15
    assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


@pytest.mark.parametrize("width", [360, 768])
def test_in_a_narrow_window_nothing_leaves_the_page(open_lab, width):
    lab = open_lab(viewport={"width": width, "height": 800})
    lab.wont_fit()
    lab.bar.locator("button.vg-open").click()
    boxes = [lab.bar.bounding_box(), lab.phases.bounding_box()]
    lab.page.keyboard.press("Escape")
    lab.generate.click()
    lab.panel.wait_for(state="visible")
    boxes.append(lab.panel.bounding_box())
    for box in boxes:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert lab.bar.locator(".vg-figure").is_visible()


def test_text_from_prompt_and_names_stays_text(lab):
    lab.page.locator("#txt2img_prompt textarea").fill(EVIL)
    lab.page.locator("#lab_card input").fill("<img src=x onerror='window.evil=1'>")
    lab.page.locator("#lab_card input").press("Enter")
    lab.set("batch_size", 2)
    lab.bar.locator("button.vg-open").click()
    lab.generate.click()
    lab.wait_for_pictures(2)
    lab.show_tab("VRAM Guard")
    lab.page.locator("#vram_guard_tab dd", has_text="<img src=x").wait_for()
    assert lab.page.evaluate("window.evil") is None
    assert "<img src=x" in lab.area("vram_guard_tab").inner_text()


def test_the_tab_shows_the_request_the_card_the_sources_and_the_version_and_remembers_folds(lab):
    lab.show_tab("VRAM Guard")
    tab = lab.area("vram_guard_tab")
    tab.locator("[data-section=request] .vg-row").first.wait_for(timeout=10_000)
    titles = [summary.inner_text() for summary in tab.locator("[data-section] > summary").all()]
    assert titles == [area("en", "ui")[f"section_{section.NAME}"] for section in SECTIONS]
    tab.locator("[data-section=live]", has_text="NVIDIA GeForce RTX 3060").wait_for(timeout=10_000)
    tab.locator("[data-section=sources] summary").click()
    lab.page.wait_for_timeout(300)
    lab.page.reload()
    lab.bar.locator(".vg-word").wait_for(timeout=30_000)
    lab.show_tab("VRAM Guard")
    tab.locator("[data-localised]").wait_for(timeout=10_000)
    folds = {
        fold.get_attribute("data-section"): fold.get_attribute("open") is not None
        for fold in tab.locator("[data-section]").all()
    }
    assert len(folds) == len(titles)
    assert [section for section, is_open in folds.items() if not is_open] == ["sources"]


def test_motion_is_still_for_those_who_ask_for_it(open_lab):
    lab = open_lab(reduced_motion="reduce")
    lab.bar.locator("button.vg-open").click()
    numbers = lab.phases.locator(".vg-row-numbers").first
    assert numbers.evaluate("element => getComputedStyle(element).transitionDuration") == "0s"


def test_the_list_of_sections_opens_one_and_goes_to_it_by_keyboard(open_lab):
    lab = open_lab()
    lab.show_tab("VRAM Guard")
    section = lab.page.locator("#vram_guard_tab details[data-section=checklist]")
    section.locator("> summary").click()
    jumps = lab.page.locator("#vram_guard_tab nav[aria-label='Sections of this tab'] button")
    assert jumps.count() == lab.page.locator("#vram_guard_tab details[data-section]").count()
    lab.page.locator("[data-jump=checklist]").focus()
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_function("document.activeElement.parentElement.dataset.section === 'checklist'")
    assert section.get_attribute("open") is not None
