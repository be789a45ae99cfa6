import statistics

import pytest

FOLLOWED_MS = 150
MEASURE = """
async ([field, values]) => {
    const input = gradioApp().querySelector(`#txt2img_${field} input[type=range]`);
    const line = gradioApp().querySelector("#txt2img_vram_guard_bar .vg-bar");
    const setter = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    const times = [];
    for (const value of values) {
        const changed = new Promise(done => new MutationObserver((_, self) => {
            self.disconnect();
            done();
        }).observe(line, {childList: true, subtree: true}));
        const began = performance.now();
        setter.call(input, value);
        input.dispatchEvent(new Event("input", {bubbles: true}));
        await changed;
        times.push(performance.now() - began);
    }
    return times;
}
"""
DRAG = """
async ([from, to, step]) => {
    const input = gradioApp().querySelector("#txt2img_width input[type=range]");
    const setter = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
    const seen = {inFlight: 0, most: 0, requests: 0, blank: 0, heights: new Set()};
    const plain = window.fetch;
    window.fetch = async (...call) => {
        if (!String(call[0]).includes("/check")) return plain(...call);
        seen.requests += 1;
        seen.inFlight += 1;
        seen.most = Math.max(seen.most, seen.inFlight);
        try {
            return await plain(...call);
        } finally {
            seen.inFlight -= 1;
        }
    };
    const bar = gradioApp().querySelector("#txt2img_vram_guard_bar");
    let moves = 0;
    for (let value = from; value <= to; value += step) {
        setter.call(input, value);
        input.dispatchEvent(new Event("input", {bubbles: true}));
        moves += 1;
        await new Promise(done => setTimeout(done, 8));
        if (!bar.querySelector(".vg-word")) seen.blank += 1;
        seen.heights.add(bar.offsetHeight);
    }
    await new Promise(done => setTimeout(done, 800));
    window.fetch = plain;
    return {most: seen.most, requests: seen.requests, blank: seen.blank, heights: seen.heights.size, moves};
}
"""


def test_the_bar_appears_under_generate_with_a_verdict_in_sign_and_word(lab):
    assert lab.verdict() == "fits"
    assert lab.bar.locator(".vg-sign").inner_text() == "✓"
    assert lab.bar.locator(".vg-word").inner_text() == "fits"
    above, below = lab.page.locator("#txt2img_generate_box").bounding_box(), lab.bar.bounding_box()
    assert above["y"] + above["height"] <= below["y"] < above["y"] + above["height"] + 40
    assert lab.page.locator(".vram-guard[role=group]").count() == 2  # one for each tab, and none twice


def test_the_bar_follows_a_slider_within_150_ms(lab):
    sizes = list(range(1032, 1032 + 8 * 12, 8))
    times = lab.page.evaluate(MEASURE, ["width", sizes])
    assert statistics.median(times) < FOLLOWED_MS, [round(time) for time in times]


def test_a_dragged_slider_never_builds_a_queue_and_the_bar_neither_blinks_nor_moves(lab):
    before = lab.bar.locator(".vg-figure").inner_text()
    seen = lab.page.evaluate(DRAG, [832, 1472, 8])
    assert seen["most"] == 1
    assert seen["requests"] < seen["moves"]
    assert seen["blank"] == 0
    assert seen["heights"] == 1
    assert lab.bar.locator(".vg-figure").inner_text() != before


@pytest.mark.parametrize(
    ("field", "value", "verdicts", "words"),
    [
        ("batch_size", 16, ("wont_fit",), ("✕", "won't fit")),
        ("width", 512, ("fits",), ("✓", "fits")),
    ],
)
def test_the_words_of_the_verdict_change_with_the_fields(lab, field, value, verdicts, words):
    lab.set(field, value)
    lab.wait_for_verdict(*verdicts)
    assert (lab.bar.locator(".vg-sign").inner_text(), lab.bar.locator(".vg-word").inner_text()) == words


def test_what_other_programs_hold_counts_too(lab):
    lab.page.locator("#lab_others input[type=number]").fill("6")
    lab.wait_for_verdict("wont_fit")


def test_a_change_made_by_the_page_itself_is_noticed(lab):
    lab.page.locator("#lab_try_batch").click()
    lab.wait_for_verdict("wont_fit")
    lab.page.locator("#lab_try_fits").click()
    lab.wait_for_verdict("fits")


def test_hires_lora_and_controlnet_are_read_from_the_page(lab):
    forms = []
    lab.page.on("request", lambda sent: forms.append(sent.post_data_json["form"]) if "/check" in sent.url else None)
    lab.page.locator("#txt2img_prompt textarea").fill("a boat <lora:one:1>")
    lab.unfold("ControlNet")
    lab.page.locator("#txt2img_controlnet_ControlNet-0_controlnet_enable_checkbox input").check()
    with lab.page.expect_request(lambda sent: "/check" in sent.url and sent.post_data_json["form"]["enable_hr"]):
        lab.page.locator("#txt2img_hr-checkbox input").check()
    form = forms[-1]
    assert form["prompt"] == "a boat <lora:one:1>"
    assert form["controlnets"] == [{"enabled": True, "model": "control_canny", "module": "", "low_vram": False}]
    assert (form["enable_hr"], form["hr_scale"], form["hr_upscaler"]) == (True, 2, "Latent")
    assert (form["width"], form["height"], form["batch_size"], form["cfg_scale"]) == (1024, 1024, 1, 7)
    assert (form["checkpoint"], form["vae_tiled"], form["vae_tile_size"]) == ("sd_xl_base_1.0.safetensors", False, 768)


def test_a_screen_reader_hears_of_the_verdict_only_when_it_changes(lab):
    status = lab.bar.locator("[aria-live=polite]").first
    assert status.text_content() == ""
    lab.set("width", 1032)
    lab.set("batch_size", 16)
    lab.wait_for_verdict("wont_fit")
    assert status.text_content().startswith("won't fit, ")


def test_the_phases_open_and_close_by_keyboard_and_give_their_numbers_on_focus(lab):
    opener = lab.bar.locator("button.vg-open")
    opener.focus()
    assert opener.get_attribute("aria-expanded") == "false"
    lab.page.keyboard.press("Enter")
    assert opener.get_attribute("aria-expanded") == "true"
    rows = lab.phases.locator(".vg-row")
    assert [row.inner_text() for row in rows.locator(".vg-row-name").all()] == [
        "text encoding",
        "sampling",
        "VAE decode",
    ]
    rows.last.focus()
    numbers = rows.last.locator(".vg-row-numbers")
    lab.page.wait_for_function("row => row.offsetHeight > 10", arg=numbers.element_handle())
    assert numbers.inner_text() == rows.last.get_attribute("aria-label")
    assert lab.phases.locator("table caption").text_content() == "Memory of each phase, in GiB"
    lab.page.keyboard.press("Escape")
    assert not lab.phases.is_visible()
    assert opener.get_attribute("aria-expanded") == "false"


def test_tab_goes_from_the_bar_through_the_phases_and_back(lab):
    active = "document.activeElement.className.split(' ')[0]"
    lab.bar.locator("button.vg-open").focus()
    lab.page.keyboard.press("Enter")
    stops = []
    for _ in range(5):
        stops.append(lab.page.evaluate(active))
        lab.page.keyboard.press("Tab")
    assert stops == ["vg-close", "vg-row", "vg-row", "vg-row", "vg-open"]
    lab.bar.locator("button.vg-open").click()
    lab.bar.locator("button.vg-open").click()
    assert lab.page.evaluate(active) == "vg-open"


def test_the_open_picture_follows_the_fields(lab):
    lab.bar.locator("button.vg-open").click()
    lab.set("batch_size", 16)
    lab.phases.locator(".vg-over").first.wait_for()
    assert lab.phases.locator(".vg-binding").inner_text().startswith("Won't fit: sampling needs ")


def test_the_other_tab_has_its_own_bar(lab):
    lab.show_tab("img2img")
    bar = lab.page.locator("#img2img_vram_guard_bar")
    bar.locator(".vg-word").wait_for()
    assert bar.get_attribute("data-verdict") == "fits"
    assert not lab.bar.is_visible()


def test_the_bar_speaks_the_language_of_the_browser(open_lab):
    lab = open_lab(locale="pt-BR")
    assert lab.bar.locator(".vg-word").inner_text() == "cabe"
