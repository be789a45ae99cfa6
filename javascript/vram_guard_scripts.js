// Scripts of the page that change the UNet's work: diffusion in tiles, guidance, Kohya's HR fix. They have no ids of
// their own: each is an accordion found by how its title begins, and its fields by their labels.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};

    const GUIDANCE = {
        sag: "SelfAttentionGuidance Integrated",
        pag: "PerturbedAttentionGuidance Integrated",
        freeu: "FreeU Integrated",
    };
    const TILES = {title: "MultiDiffusion Integrated", labels: ["Tile Width", "Tile Height", "Tile Overlap", "Tile Batch Size"]};
    const HR_FIX = {title: "Kohya HRFix Integrated", labels: ["Block Number", "Downscale Factor", "Start Percent", "End Percent"]};
    const TILED_DIFFUSION = {txt2img: "t2i", img2img: "i2i"};
    const TILE_PARTS = ["width", "height", "overlap", "batch-size"];
    const LOOK_AGAIN_MS = 10000;
    const found = new Map(); // "tab title" → {element, looked}

    function shown(label) {
        return (window.localization || {})[label] || label;
    }

    function accordion(tab, title) {
        const key = tab + " " + title;
        const known = found.get(key);
        if (known && (known.element ? known.element.isConnected : Date.now() - known.looked < LOOK_AGAIN_MS)) {
            return known.element;
        }
        const element = lookFor(tab, title);
        found.set(key, {element: element, looked: Date.now()});
        return element;
    }

    function lookFor(tab, title) {
        const within = guard.fields.find("tab_" + tab);
        const heads = within ? Array.from(within.querySelectorAll(".label-wrap")) : [];
        const head = heads.find(item => {
            const text = item.textContent.trim();
            return text.startsWith(title) || text.startsWith(shown(title));
        });
        return head ? head.parentElement : null;
    }

    // Newer hosts tick the accordion itself, by a hidden box with its id; in others the first box inside says it.
    function isOn(element) {
        if (!element) return false;
        const own = element.id ? guard.fields.find(element.id + "-checkbox") : null;
        const box = (own || element).querySelector("input[type=checkbox]");
        return Boolean(box && box.checked);
    }

    function number(element, label) {
        const spans = Array.from(element.querySelectorAll("label span, .head span, span[data-testid='block-info']"));
        let place = spans.find(span => [label, shown(label)].includes(span.textContent.trim())) || null;
        while (place && place !== element && !place.querySelector("input[type=number], input[type=range]")) place = place.parentElement;
        return place && place !== element ? inputNumber(place) : null;
    }

    function inputNumber(element) {
        const input = element && (element.querySelector("input[type=number]") || element.querySelector("input[type=range]"));
        return input && input.value !== "" && isFinite(input.value) ? Number(input.value) : null;
    }

    function numbers(tab, script) {
        const element = accordion(tab, script.title);
        return isOn(element) ? script.labels.map(label => number(element, label)) : null;
    }

    // A1111's Tiled Diffusion has ids, sizes in cells of the latent, and gives the run a size of its own.
    function readTiledDiffusion(form, tab) {
        const short = TILED_DIFFUSION[tab];
        const part = name => guard.fields.find(`MD-${short}-${name}`);
        if (!isTicked(part("enabled-checkbox") || part("enabled"))) return;
        form.unet_tile_cells = TILE_PARTS.map(name => inputNumber(part("latent-tile-" + name)));
        const own = tab === "txt2img" ? overwrittenSize(short, part) : enlargedSize(form, part);
        if (!own || !own.every(side => side > 0)) return;
        form.unet_sets_size = true; // whatever else is asked for
        [form.width, form.height] = own;
        delete form.resize_scale;
    }

    function overwrittenSize(short, part) {
        if (!isTicked(part("overwrite-image-size"))) return null;
        return ["width", "height"].map(side => inputNumber(guard.fields.find(`MD-overwrite-${side}-${short}`)));
    }

    // img2img: the start picture's size, unless that is unticked, times the factor of an upscaler.
    function enlargedSize(form, part) {
        const keeps = isTicked(part("keep-input-size"));
        const enlarges = ![undefined, "", "None"].includes(guard.fields.choice(part("upscaler-index")));
        if (!keeps && !enlarges) return null;
        const factor = enlarges ? inputNumber(part("upscaler-factor")) : 1;
        const scale = keeps ? 1 : form.resize_scale;
        const start = keeps || scale ? [form.image_width, form.image_height] : [form.width, form.height];
        return start.map(side => Math.trunc(Math.trunc(side * (scale || 1)) * factor));
    }

    function isTicked(element) {
        const box = element && (element.matches("input") ? element : element.querySelector("input[type=checkbox]"));
        return Boolean(box && box.checked);
    }

    function read(form, tab) {
        form.unet_tiles = numbers(tab, TILES);
        readTiledDiffusion(form, tab);
        form.hr_fix = numbers(tab, HR_FIX);
        form.guidance = Object.keys(GUIDANCE).filter(name => isOn(accordion(tab, GUIDANCE[name])));
        form.stitched = stitched(tab);
    }

    // Neo's reference pictures: both tabs have the same id, so the one in this tab is looked for.
    function stitched(tab) {
        const within = guard.fields.find("tab_" + tab);
        const gallery = within && within.querySelector("#image_stitch_ref_latent");
        const images = gallery && isOn(gallery.closest(".input-accordion")) ? Array.from(gallery.querySelectorAll("img")) : [];
        const seen = new Map(images.filter(image => image.naturalWidth).map(image => [image.src, [image.naturalWidth, image.naturalHeight]]));
        return Array.from(seen.values());
    }

    guard.fields.more.push(read);
})();
