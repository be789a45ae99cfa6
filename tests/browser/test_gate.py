import pytest


def asked(lab):
    lab.panel.wait_for(state="visible", timeout=5_000)


def test_what_fits_runs_without_a_question(lab):
    lab.generate.click()
    lab.wait_for_pictures(1)
    assert not lab.panel.is_visible()


def test_generate_asks_about_what_will_not_fit_with_the_focus_on_the_fix(lab):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    assert lab.focused() == "fix-run"
    assert "It would run out of memory in sampling: it needs " in lab.panel.inner_text()
    assert [button.inner_text() for button in lab.panel.get_by_role("button").all()] == [
        "Fix it for me",
        "Run anyway",
        "Cancel",
    ]
    assert lab.panel.get_attribute("role") == "dialog"
    described = lab.page.locator(f"#{lab.panel.get_attribute('aria-describedby')}")
    assert described.inner_text().startswith("It would run out of memory in sampling")
    assert lab.log() == ""


@pytest.mark.parametrize("way", ["Escape", "Cancel"])
def test_cancel_leaves_everything_and_gives_the_focus_back(lab, way):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    if way == "Escape":
        lab.page.keyboard.press("Escape")
    else:
        lab.panel.get_by_role("button", name="Cancel").click()
    assert not lab.panel.is_visible()
    assert lab.focused() == "txt2img_generate"
    assert lab.values("batch_size", "batch_count") == [16, 1]
    assert lab.area("txt2img_progress").inner_text() == ""


def test_run_anyway_really_runs_out_of_memory(lab):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    lab.panel.get_by_role("button", name="Run anyway").click()
    lab.wait_for_log("OutOfMemoryError: CUDA out of memory. Tried to allocate ")
    assert "VRAM Guard" not in lab.log()
    lab.page.wait_for_function(
        "document.querySelector('#txt2img_vram_guard_run :is(textarea, input)').value === ''", timeout=5_000
    )


def test_a_second_press_of_generate_runs_it(lab):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
    assert not lab.panel.is_visible()


def test_the_fix_writes_the_fields_and_makes_the_same_number_of_pictures(lab):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    lab.page.keyboard.press("Enter")
    lab.wait_for_pictures(16)
    size, count = lab.values("batch_size", "batch_count")
    assert size * count == 16
    assert size < 16
    assert lab.verdict() in ("fits", "tight")
    assert f"Batch size 16 → {size:.0f}, Batch count 1 → {count:.0f}" in lab.bar.locator(".vg-changed").inner_text()


def test_a_fix_in_the_page_is_recorded_in_the_infotext_until_it_is_undone(lab):
    lab.wont_fit()
    lab.bar.locator("button.vg-fix").click()
    lab.bar.locator("button.vg-undo").wait_for()
    size, count = (int(value) for value in lab.values("batch_size", "batch_count"))
    run = lab.page.locator("#txt2img_vram_guard_run").locator("textarea, input").first
    assert run.input_value() == f"fixed: batch 16x1 -> {size}x{count}"
    lab.generate.click()
    lab.wait_for_pictures(16)
    assert f"VRAM Guard: batch 16x1 -> {size}x{count}" in lab.page.locator(".lab-infotext").first.inner_text()
    lab.bar.locator("button.vg-undo").click()
    lab.bar.locator(".vg-changed", has_text="Undone: the fields are as they were.").wait_for()
    assert run.input_value() == ""


def test_undo_gives_exactly_the_changed_fields_back(lab):
    lab.set("height", 1032)
    lab.wont_fit()
    lab.bar.locator("button.vg-fix").click()
    lab.bar.locator("button.vg-undo").click()
    lab.bar.locator(".vg-changed", has_text="Undone: the fields are as they were.").wait_for()
    lab.wait_for_verdict("wont_fit")
    assert lab.page.evaluate("document.activeElement.className") == "vg-open"
    assert lab.values("batch_size", "batch_count", "height") == [16, 1, 1032]
    assert not lab.bar.locator("button.vg-undo").is_visible()


def test_undo_stays_until_the_next_change(lab):
    lab.wont_fit()
    lab.bar.locator("button.vg-fix").click()
    undo = lab.bar.locator("button.vg-undo")
    undo.wait_for()
    lab.page.wait_for_timeout(1500)
    assert undo.is_visible()
    height = lab.bar.bounding_box()["height"]
    lab.set("width", 960)
    undo.wait_for(state="detached")
    assert abs(lab.bar.bounding_box()["height"] - height) < 0.5  # nothing moves under the hand that changes a field


def test_a_fix_that_switches_tiled_vae_on_is_taken_by_the_page(lab):
    lab.set("width", 1536)
    lab.set("height", 1536)
    lab.wait_for_verdict("wont_fit")
    lab.generate.click()
    asked(lab)
    lab.panel.get_by_role("button", name="Fix it for me").click()
    lab.wait_for_pictures(1)
    assert lab.page.locator("#txt2img_vram_guard_tiled input").is_checked()
    assert lab.values("width", "height") == [1536, 1536]


def test_ctrl_enter_is_a_press_of_generate(lab):
    lab.wont_fit()
    lab.page.locator("#txt2img_prompt textarea").press("Control+Enter")
    asked(lab)
    assert lab.focused() == "fix-run"
    lab.page.keyboard.press("Control+Enter")
    lab.wait_for_log("CUDA out of memory")


def test_a_press_right_after_a_change_waits_for_the_fresh_answer(lab):
    lab.page.evaluate(
        """() => {
            const input = document.querySelector("#txt2img_batch_size input[type=number]");
            input.value = 16;
            input.dispatchEvent(new Event("input", {bubbles: true}));
        }"""
    )
    lab.generate.click()
    asked(lab)


def test_shift_enter_in_the_prompt_is_held_up_too(lab):
    lab.wont_fit()
    lab.page.locator("#txt2img_prompt textarea").press("Shift+Enter")
    asked(lab)
    assert lab.log() == ""


def test_a_slow_answer_never_holds_a_press_up(lab):
    lab.page.evaluate(
        """() => {
            const plain = window.fetch;
            window.fetch = async (...call) => {
                if (String(call[0]).includes("/check")) await new Promise(done => setTimeout(done, 4000));
                return plain(...call);
            };
        }"""
    )
    lab.set("batch_size", 16)
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
    assert not lab.panel.is_visible()


def test_generate_forever_is_not_held_up_by_a_question(lab):
    lab.wont_fit()
    lab.page.wait_for_timeout(200)
    lab.page.evaluate("document.querySelector('#txt2img_generate').click()")
    lab.wait_for_log("VRAM Guard")
    assert not lab.panel.is_visible()


def test_show_never_asks(lab):
    lab.choose("lab_mode", "Show")
    lab.wont_fit()
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
    assert not lab.panel.is_visible()


def test_off_hides_the_bar_and_lets_everything_run(lab):
    lab.choose("lab_mode", "Off")
    lab.bar.wait_for(state="hidden")
    lab.set("batch_size", 16)
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
    lab.choose("lab_mode", "Ask")
    lab.bar.wait_for(state="visible", timeout=10_000)


def test_fix_mode_fixes_the_fields_and_runs_without_a_question(lab):
    lab.choose("lab_mode", "Fix")
    lab.wont_fit()
    lab.generate.click()
    lab.wait_for_pictures(16)
    size, count = lab.values("batch_size", "batch_count")
    assert size * count == 16
    assert lab.bar.locator("button.vg-undo").is_visible()


def test_where_nothing_fits_the_panel_says_what_would_and_offers_no_fix(lab):
    lab.page.locator("#lab_total input[type=number]").fill("2")
    lab.wait_for_verdict("wont_fit")
    lab.generate.click()
    asked(lab)
    assert lab.panel.locator("[data-act=fix-run]").count() == 0
    assert lab.focused() == "run"


def test_a_question_about_fields_that_have_changed_since_goes_away(lab):
    lab.wont_fit()
    lab.generate.click()
    asked(lab)
    lab.set("batch_size", 1)
    lab.panel.wait_for(state="hidden")


def test_without_a_server_the_press_goes_through_and_the_bar_says_so_quietly(lab):
    said = []
    lab.page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    lab.page.route("**/vram-guard/v1/check", lambda route: route.abort())
    lab.set("batch_size", 16)
    lab.bar.locator(".vg-trouble").wait_for(timeout=10_000)
    assert lab.bar.locator(".vg-trouble").inner_text().replace("\n", " ") == "? no answer from the server"
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
    lab.page.wait_for_timeout(3000)
    assert len([text for text in said if "check" in text or "ERR_FAILED" in text]) <= 5  # it backs off
    lab.page.unroute("**/vram-guard/v1/check")
    lab.wait_for_verdict("wont_fit")


def test_a_fault_of_our_own_while_it_fixes_does_not_swallow_the_press(lab):
    lab.choose("lab_mode", "Fix")
    lab.page.evaluate("() => { window.vramGuard.fields.write = () => { throw new Error('a fault of ours'); }; }")
    lab.wont_fit()
    lab.generate.click()
    lab.wait_for_pictures(16)  # the server's hook fixes it in the page's place


def test_a_fault_of_our_own_while_it_asks_does_not_swallow_the_press(lab):
    lab.page.evaluate("() => { window.vramGuard.Bar.prototype.ask = () => { throw new Error('a fault of ours'); }; }")
    lab.wont_fit()
    lab.generate.click()
    lab.wait_for_log("CUDA out of memory")
