"""A change that a person takes back twice is not proposed a third time, until it is to be offered again."""

from __future__ import annotations

SECTION = "#vram_guard_tab [data-section=left_alone]"


def fixed_and_undone(lab):
    """Press *Fix it for me*, then *Undo*; return what the fix had made of the batch size."""
    lab.wont_fit()
    lab.bar.locator("button.vg-fix").click()
    lab.bar.locator("button.vg-undo").wait_for()
    size = lab.values("batch_size")[0]
    with lab.page.expect_response("**/vram-guard/v1/undone"):
        lab.bar.locator("button.vg-undo").click()
    lab.bar.locator(".vg-changed", has_text="Undone: the fields are as they were.").wait_for()
    lab.set("batch_size", 1)
    lab.wait_for_verdict("fits", "tight")
    return size


def test_what_is_undone_twice_is_offered_again_only_when_asked_for(lab):
    assert fixed_and_undone(lab) < 16
    assert fixed_and_undone(lab) < 16
    lab.wont_fit()
    with lab.page.expect_response("**/vram-guard/v1/check"):
        lab.set("batch_size", 15)
    lab.wait_for_verdict("wont_fit")
    lab.bar.locator("button.vg-fix").click()
    lab.bar.locator(".vg-changed", has_text="Cond and uncond").wait_for()
    assert lab.values("batch_size") == [15]
    lab.bar.locator("button.vg-undo").click()
    lab.wait_for_verdict("wont_fit")

    lab.show_tab("VRAM Guard")
    section = lab.page.locator(SECTION)
    section.locator("li", has_text="Smaller batch, more runs").wait_for()
    section.get_by_role("button", name="Offer them again").press("Enter")
    section.locator("p", has_text="A fix may propose any change.").wait_for()
    lab.show_tab("txt2img")
    assert fixed_and_undone(lab) < 16


def test_the_section_is_in_the_language_of_the_page(open_lab):
    lab = open_lab("?__lang=es", locale="es-ES")
    lab.show_tab("VRAM Guard")
    lab.page.locator(SECTION, has_text="Un arreglo puede proponer cualquier cambio.").wait_for()
