"""The controls of one run in our accordion: a fix writes them, Undo takes them back, the form reads them."""

import pytest

WRITTEN = {
    "fp8_weights": True, "live_preview": "off", "attention": "sub_quad", "upscaler_tile": 64,
    "vae_tiled": True, "controlnet_low_vram:0": True,
}  # fmt: skip
BEFORE = {
    "fp8_weights": False, "live_preview": "", "attention": "", "upscaler_tile": 0,
    "vae_tiled": False, "controlnet_low_vram:0": False,
}  # fmt: skip


def write(lab, values):
    lab.page.evaluate(
        "values => { for (const name in values) vramGuard.fields.write('txt2img', name, values[name]); }", values
    )


def held(lab, values):
    """Return which of ``values`` the page has, once gradio has taken them."""
    lab.page.wait_for_timeout(300)
    code = "values => Object.keys(values).filter(name => vramGuard.fields.holds('txt2img', name, values[name]))"
    return lab.page.evaluate(code, values)


@pytest.fixture
def with_a_unit(lab):
    lab.unfold("ControlNet")
    lab.page.locator("#txt2img_controlnet_ControlNet-0_controlnet_enable_checkbox input").click()
    lab.unfold("VRAM Guard")
    return lab


def test_a_fix_writes_the_controls_of_one_run_and_undo_takes_them_back(with_a_unit):
    lab = with_a_unit
    assert sorted(held(lab, BEFORE)) == sorted(BEFORE)
    write(lab, WRITTEN)
    assert sorted(held(lab, WRITTEN)) == sorted(WRITTEN)
    form = lab.page.evaluate("vramGuard.fields.read('txt2img')")
    names = ("fp8_weights", "live_preview", "attention", "upscaler_tile", "vae_tiled")
    assert {name: form[name] for name in names} == {name: WRITTEN[name] for name in names}
    assert form["controlnets"][0]["low_vram"] is True
    write(lab, BEFORE)
    assert sorted(held(lab, BEFORE)) == sorted(BEFORE)
