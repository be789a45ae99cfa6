"""Recover in the tab: what was cut off is listed, its buttons ask the server, and the answer is shown and read out."""

from __future__ import annotations

import json

SECTION = "#vram_guard_tab [data-section=recover]"
ITEM = (
    '<ul class="vg-list"><li><span id="said">2 × 512×512</span>'
    '<button type="button" class="vg-button" data-recover="recover" data-recover-id="1-2-3">Recover</button>'
    '<button type="button" class="vg-button" data-recover="recover-delete" data-recover-id="1-2-3">Delete</button>'
    "</li></ul>"
)


def with_latents(lab, answers):
    """Let the server list one batch, and answer each of the two requests as ``answers`` says; return what was asked."""
    asked = []

    def sections(route):
        body = route.fetch().json()
        body["recover_list"] = ITEM
        route.fulfill(json=body)

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        asked.append((name, json.loads(route.request.post_data)["id"]))
        status, body = answers[name]
        route.fulfill(status=status, json=body)

    lab.page.route("**/vram-guard/v1/sections*", sections)
    lab.page.route("**/vram-guard/v1/recover*", answer)
    lab.show_tab("VRAM Guard")
    lab.page.locator(f"{SECTION} li").wait_for()
    return asked


def test_the_answer_takes_the_place_of_the_list_and_has_the_focus(lab):
    gone = '<p class="vg-soft">Nothing is waiting</p>'
    asked = with_latents(lab, {"recover": (200, {"said": "2 decoded and saved: a.png", "html": gone})})
    section = lab.page.locator(SECTION)
    section.get_by_role("button", name="Recover", exact=True).press("Enter")
    answer = section.locator("[data-recover-answer]", has_text="2 decoded and saved: a.png")
    answer.wait_for()
    section.locator("p", has_text="Nothing is waiting").wait_for()
    assert asked == [("recover", "1-2-3")]
    assert answer.evaluate("it => it === document.activeElement")


def test_what_cannot_be_done_is_said_and_the_list_stays(lab):
    with_latents(lab, {"recover-delete": (409, {"error": "A generation is at work."})})
    section = lab.page.locator(SECTION)
    section.get_by_role("button", name="Delete", exact=True).click()
    section.locator("[data-recover-answer]", has_text="A generation is at work.").wait_for()
    assert section.locator("li").count() == 1


def test_an_empty_list_says_so(lab):
    lab.show_tab("VRAM Guard")
    lab.page.locator(f"{SECTION} p", has_text="Nothing is waiting: no run was cut off").wait_for()
