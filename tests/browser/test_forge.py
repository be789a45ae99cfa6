"""Forge's own memory settings have no ids: they are found by their labels, whatever language the page is in."""

import pytest

TRANSLATED = {
    "GPU Weights (MB)": "Pesos na GPU (MB)",
    "Enabled for VAE (always tiled)": "Ligado para o VAE (sempre em blocos)",
}


def wont_fit(lab):
    """Stand in for Forge with a picture whose decode does not fit on a card of 8 GiB."""
    lab.choose("lab_host", "Forge")
    lab.page.locator("#lab_total input[type=number]").fill("8")
    lab.page.locator("#lab_others input[type=number]").fill("2")
    lab.set("width", 2048)
    lab.set("height", 2048)
    lab.wait_for_verdict("wont_fit")


def never_oom(lab, label="Enabled for VAE (always tiled)"):
    """Return the switch that Forge's own script shows, in this tab."""
    return lab.page.locator("#tab_txt2img label", has_text=label).locator("input")


def test_the_fix_uses_forges_own_switch_and_undo_takes_it_back(lab):
    wont_fit(lab)
    lab.generate.click()
    lab.panel.wait_for(state="visible")
    lab.page.keyboard.press("Enter")
    lab.wait_for_pictures(1)
    assert never_oom(lab).is_checked()
    assert lab.values("width", "height", "batch_size") == [2048, 2048, 1]
    assert "Never OOM, VAE always tiled off → on" in lab.bar.locator(".vg-changed").inner_text()
    lab.bar.locator("button.vg-undo").click()
    lab.wait_for_verdict("wont_fit")
    assert not never_oom(lab).is_checked()


@pytest.mark.parametrize("translated", [False, True], ids=["in English", "translated"])
def test_gpu_weights_and_never_oom_are_read_by_their_labels(open_lab, translated):
    def page_in_portuguese(page):
        def replaced(route):
            body = route.fetch().text()
            for label, shown in TRANSLATED.items():
                body = body.replace(label, shown)
            route.fulfill(body=body, content_type="text/html")

        page.add_init_script(f"window.localization = {TRANSLATED}")
        page.route("**/?translated", replaced)

    lab = open_lab("?translated", prepare=page_in_portuguese) if translated else open_lab()
    forms = []
    lab.page.on("request", lambda sent: forms.append(sent.post_data_json["form"]) if "/check" in sent.url else None)
    wont_fit(lab)
    assert forms[-1]["gpu_weights_mb"] == 7168
    assert forms[-1]["never_oom_vae"] is False
    lab.bar.locator("button.vg-fix").click()
    lab.wait_for_verdict("fits", "tight")
    assert forms[-1]["never_oom_vae"] is True
    label = TRANSLATED["Enabled for VAE (always tiled)"] if translated else "Enabled for VAE (always tiled)"
    assert never_oom(lab, label).is_checked()
