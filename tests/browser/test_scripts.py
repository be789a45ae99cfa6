"""Scripts without ids are read from the page as Forge and its relatives show them."""

import pytest

ACCORDION = """
(({id, title, box, fields, inside}) => {
    const made = document.createElement("div");
    made.className = "block input-accordion";
    if (id) made.id = id;
    const numbers = fields.map(([label, value]) =>
        `<div class="block"><div class="head"><label><span>${label}</span></label>` +
        `<input type="number" value="${value}"></div><input type="range" value="1"></div>`);
    made.innerHTML = `<div class="label-wrap"><span>${title}</span></div>` +
        `<div>${inside ? `<label><input type="checkbox" ${box ? "checked" : ""}><span>Enabled</span></label>` : ""}` +
        `${numbers.join("")}</div>`;
    const hidden = inside ? "" : `<div id="${id}-checkbox"><input type="checkbox" ${box ? "checked" : ""}></div>`;
    const tab = document.querySelector("#tab_txt2img");
    tab.insertAdjacentHTML("beforeend", hidden);
    tab.appendChild(made);
})
"""
LATER = "(() => { const now = Date.now; Date.now = () => now() + 20000; })()"
"""What was not on the page is looked for again after a while."""
TILES = [["Tile Width", 768], ["Tile Height", 512], ["Tile Overlap", 64], ["Tile Batch Size", 4]]
KOHYA = [["Block Number", 3], ["Downscale Factor", 2], ["Start Percent", 0], ["End Percent", 0.35]]


def show(lab, title, fields=(), *, box=True, inside=False):
    """Put an accordion into the page, ticked by a hidden box of its own or by the first one inside."""
    show.number = getattr(show, "number", 0) + 1
    argument = {"id": f"input-accordion-test-{show.number}", "title": title, "box": box, "fields": list(fields),
                "inside": inside}  # fmt: skip
    lab.page.evaluate(ACCORDION, argument)


def read(lab):
    lab.page.evaluate(LATER)
    form = lab.page.evaluate("window.vramGuard.fields.read('txt2img')")
    return form["unet_tiles"], form["hr_fix"], form["guidance"]


@pytest.mark.parametrize("inside", [False, True], ids=["box of its own", "box inside"])
def test_scripts_that_are_on_are_read_with_their_numbers(lab, inside):
    show(lab, "MultiDiffusion Integrated", TILES, inside=inside)
    show(lab, "Kohya HRFix Integrated", KOHYA, inside=inside)
    show(lab, "SelfAttentionGuidance Integrated (SD 1.x, SD 2.x, SDXL)", inside=inside)
    show(lab, "FreeU Integrated (SD 1.x, SD 2.x, SDXL)", box=False, inside=inside)
    assert read(lab) == ([768, 512, 64, 4], [3, 2, 0, 0.35], ["sag"])


def test_scripts_that_are_off_or_missing_say_nothing(lab):
    show(lab, "MultiDiffusion Integrated", TILES, box=False)
    assert read(lab) == (None, None, [])


TILED_DIFFUSION = """
(() => {
    const number = (id, value) => `<div id="${id}"><input type="number" value="${value}"></div>`;
    const box = id => `<div id="${id}"><input type="checkbox" checked></div>`;
    document.querySelector("#tab_txt2img").insertAdjacentHTML("beforeend", box("MD-t2i-enabled-checkbox") +
        number("MD-t2i-latent-tile-width", 96) + number("MD-t2i-latent-tile-height", 64) +
        number("MD-t2i-latent-tile-overlap", 48) + number("MD-t2i-latent-tile-batch-size", 4) +
        box("MD-t2i-overwrite-image-size") + number("MD-overwrite-width-t2i", 2048) +
        number("MD-overwrite-height-t2i", 1536));
})()
"""


def test_tiled_diffusion_is_read_by_its_ids_and_sets_the_size(lab):
    lab.page.evaluate(TILED_DIFFUSION)
    form = lab.page.evaluate("window.vramGuard.fields.read('txt2img')")
    assert (form["unet_tile_cells"], form["width"], form["height"]) == ([96, 64, 48, 4], 2048, 1536)
    assert form["unet_sets_size"] is True
    lab.page.evaluate("document.querySelector('#MD-t2i-enabled-checkbox input').checked = false")
    assert "unet_tile_cells" not in lab.page.evaluate("window.vramGuard.fields.read('txt2img')")


ENLARGING = """
(({keeps, upscaler}) => {
    const number = (id, value) => `<div id="${id}"><input type="number" value="${value}"></div>`;
    const made = document.createElement("div");
    made.innerHTML = '<div id="MD-i2i-enabled-checkbox"><input type="checkbox" checked></div>' +
        `<div id="MD-i2i-keep-input-size"><input type="checkbox" ${keeps ? "checked" : ""}></div>` +
        `<div id="MD-i2i-upscaler-index"><input value="${upscaler}"></div>` + number("MD-i2i-upscaler-factor", 1.5) +
        ["width", "height", "overlap", "batch-size"].map(name => number("MD-i2i-latent-tile-" + name, 64)).join("");
    document.querySelector("#tab_txt2img").appendChild(made);
    const form = {tab: "img2img", width: 512, height: 512, image_width: 1000, image_height: 600};
    window.vramGuard.fields.more.forEach(more => more(form, "img2img"));
    made.remove();
    return [form.width, form.height, form.unet_sets_size === true];
})
"""


@pytest.mark.parametrize(
    ("keeps", "upscaler", "size"),
    [
        (True, "None", [1000, 600, True]),
        (True, "ESRGAN_4x", [1500, 900, True]),
        (False, "ESRGAN_4x", [768, 768, True]),
        (False, "None", [512, 512, False]),
    ],
)
def test_in_img2img_tiled_diffusion_takes_the_start_pictures_size_and_enlarges_it(lab, keeps, upscaler, size):
    assert lab.page.evaluate(ENLARGING, {"keeps": keeps, "upscaler": upscaler}) == size
