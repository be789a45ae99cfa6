// The page's fields: reading them as one plain object, and writing single ones so that gradio 3 and 4 notice.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};

    // Logical name → element ids ({tab} is txt2img or img2img); the first id that exists is read.
    const NUMBERS = {
        width: ["{tab}_width"],
        height: ["{tab}_height"],
        batch_size: ["{tab}_batch_size"],
        batch_count: ["{tab}_batch_count"],
        cfg_scale: ["{tab}_cfg_scale"],
        steps: ["{tab}_steps"],
        hr_scale: ["{tab}_hr_scale"],
        hr_resize_x: ["{tab}_hr_resize_x"],
        hr_resize_y: ["{tab}_hr_resize_y"],
        refiner_switch_at: ["{tab}_switch_at"],
        vae_tile_size: ["{tab}_vram_guard_tile_size"],
        reserve_mb: ["{tab}_vram_guard_reserve"],
        upscaler_tile: ["{tab}_vram_guard_upscaler_tile"],
    };
    const TEXTS = {
        prompt: ["{tab}_prompt"],
        negative_prompt: ["{tab}_neg_prompt"],
    };
    const CHOICES = {
        checkpoint: ["setting_sd_model_checkpoint"],
        vae: ["setting_sd_vae"],
        sampler: ["{tab}_sampling"],
        hr_upscaler: ["{tab}_hr_upscaler"],
        refiner_checkpoint: ["{tab}_checkpoint"],
    };
    const SWITCHES = {
        enable_hr: ["{tab}_hr-checkbox", "{tab}_enable_hr"],
        enable_refiner: ["{tab}_enable-checkbox"],
        vae_tiled: ["{tab}_vram_guard_tiled"],
        cond_uncond_apart: ["{tab}_vram_guard_apart"],
        unload_idle: ["{tab}_vram_guard_unload"],
        fp8_weights: ["{tab}_vram_guard_fp8"],
    };
    const RADIOS = {
        live_preview: ["{tab}_vram_guard_preview"],
        attention: ["{tab}_vram_guard_attention"],
    };
    // Forge gives these no id: they are found by their label, in English or as the localisation shows it.
    const BY_LABEL = {
        checkpoint: {label: "Checkpoint", scope: "#quicksettings", kind: "choice"},
        text_encoders: {label: "VAE / Text Encoder", scope: "#quicksettings", kind: "tokens"},
        gpu_weights_mb: {label: "GPU Weights (MB)", scope: "#quicksettings", kind: "number"},
        never_oom_unet: {label: "Enabled for UNet (always maximize offload)", or: "Enabled for UNet (always offload)", scope: "#tab_{tab}", kind: "switch"},
        never_oom_vae: {label: "Enabled for VAE (always tiled)", or: "Enabled for VAE (always tile)", scope: "#tab_{tab}", kind: "switch"},
    };
    // multidiffusion's Tiled VAE names its elements after the tab in short; older ones have a plain checkbox.
    const TILED_VAE = {txt2img: "t2i", img2img: "i2i"};
    const UNIT_ENABLED = "_controlnet_enable_checkbox";
    const UNIT_LOW_VRAM = "controlnet_low_vram:"; // and the unit's place among those that are on

    const labelled = new Map(); // "scope label" → {element, looked}
    const LOOK_AGAIN_MS = 10000;

    function find(id) {
        return gradioApp().querySelector("#" + CSS.escape(id));
    }

    function findFirst(ids, tab) {
        for (const id of ids) {
            const element = find(id.replace("{tab}", tab));
            if (element) return element;
        }
        return null;
    }

    function findLabelled(tab, entry) {
        const scope = entry.scope.replace("{tab}", tab);
        const key = scope + " " + entry.label;
        const known = labelled.get(key);
        if (known && (known.element ? known.element.isConnected : Date.now() - known.looked < LOOK_AGAIN_MS)) {
            return known.element;
        }
        const element = lookForLabel(scope, entry.label) || (entry.or ? lookForLabel(scope, entry.or) : null);
        labelled.set(key, {element: element, looked: Date.now()});
        return element;
    }

    function lookForLabel(scope, label) {
        const within = gradioApp().querySelector(scope);
        if (!within) return null;
        const translated = (window.localization || {})[label];
        for (const span of within.querySelectorAll("label span, .head span, span[data-testid='block-info']")) {
            const text = span.textContent.trim();
            if (text !== label && text !== translated) continue;
            let element = span;
            while (element !== within && !element.querySelector("input, textarea")) element = element.parentElement;
            return element === within ? null : element;
        }
        return null;
    }

    function numberInput(element) {
        return element && (element.querySelector("input[type=number]") || element.querySelector("input[type=range]"));
    }

    function switchInput(element) {
        return element && (element.matches("input[type=checkbox]") ? element : element.querySelector("input[type=checkbox]"));
    }

    function numberOf(element) {
        const input = numberInput(element);
        return input && input.value !== "" && isFinite(input.value) ? Number(input.value) : undefined;
    }

    function textOf(element) {
        const input = element && element.querySelector("textarea, input");
        return input ? input.value : undefined;
    }

    function choiceOf(element) {
        if (!element) return undefined;
        const select = element.querySelector("select");
        if (select) return select.value;
        const chosen = element.querySelector("input[type=radio]:checked");
        if (chosen) return chosen.value;
        const input = element.querySelector("input:not([type=radio])");
        return input ? input.value : undefined;
    }

    function tokensOf(element) {
        if (!element) return undefined;
        return Array.from(element.querySelectorAll(".token"), token => (token.querySelector("span") || token).textContent.trim());
    }

    function switchOf(element) {
        const input = switchInput(element);
        return input ? input.checked : undefined;
    }

    const READ = {number: numberOf, choice: choiceOf, tokens: tokensOf, switch: switchOf};

    function put(form, name, value) {
        if (value !== undefined) form[name] = value;
    }

    function readTable(form, tab, table, read) {
        for (const name in table) put(form, name, read(findFirst(table[name], tab)));
    }

    function enabledUnits(tab) {
        const boxes = gradioApp().querySelectorAll(`[id^="${tab}_controlnet"][id$="${UNIT_ENABLED}"]`);
        return Array.from(boxes).filter(switchOf).map(box => box.id.slice(0, -UNIT_ENABLED.length));
    }

    function modelOf(unit) {
        return choiceOf(find(unit + "_controlnet_model_dropdown")) || "";
    }

    function readControlnets(tab) {
        return enabledUnits(tab).map(unit => ({
            enabled: true,
            model: modelOf(unit),
            module: choiceOf(find(unit + "_controlnet_preprocessor_dropdown")) || "",
            low_vram: switchOf(find(unit + "_controlnet_low_vram_checkbox")) || false,
        }));
    }

    // The server counts the units that have a model.
    function lowVramOf(tab, place) {
        const unit = enabledUnits(tab).filter(id => !["", "None", "none"].includes(modelOf(id)))[place];
        return unit ? find(unit + "_controlnet_low_vram_checkbox") : null;
    }

    function tiledVaeSwitch(tab) {
        const short = TILED_VAE[tab];
        return find(`MDV-${short}-enabled-checkbox`) || find(`MD-${short}-enable`);
    }

    function readTiledVae(form, tab) {
        if (switchOf(tiledVaeSwitch(tab))) put(form, "tiled_vae_tile", numberOf(find(`MD-${TILED_VAE[tab]}-dec-size`)));
    }

    function readImage(form) {
        if (tabIndex("img2img_tabs_resize") === 1) put(form, "resize_scale", numberOf(find("img2img_scale")));
        const area = find("mode_img2img");
        for (const image of area ? area.querySelectorAll("img, canvas") : []) {
            const width = image.naturalWidth || (image.tagName === "CANVAS" ? image.width : 0);
            const height = image.naturalHeight || (image.tagName === "CANVAS" ? image.height : 0);
            if (!width || !height || !image.getClientRects().length) continue;
            form.image_width = width;
            form.image_height = height;
            return;
        }
    }

    function tabIndex(id) {
        const bar = find(id);
        const buttons = bar ? Array.from(bar.querySelectorAll("button[role=tab], .tab-nav > button")) : [];
        return buttons.findIndex(button => button.classList.contains("selected"));
    }

    function read(tab) {
        const form = {};
        readTable(form, tab, NUMBERS, numberOf);
        readTable(form, tab, TEXTS, textOf);
        readTable(form, tab, CHOICES, choiceOf);
        readTable(form, tab, SWITCHES, switchOf);
        readTable(form, tab, RADIOS, choiceOf);
        for (const name in BY_LABEL) {
            if (!(name in form)) put(form, name, READ[BY_LABEL[name].kind](findLabelled(tab, BY_LABEL[name])));
        }
        const styles = tokensOf(find(tab + "_styles"));
        if (styles && styles.length) form.styles = styles;
        if (tab === "txt2img") put(form, "hr_checkpoint", choiceOf(find("hr_checkpoint")));
        form.controlnets = readControlnets(tab);
        readTiledVae(form, tab);
        if (tab === "img2img") readImage(form);
        for (const more of guard.fields.more) more(form, tab);
        return form;
    }

    function elementOf(tab, name) {
        if (name === "tiled_vae") return tiledVaeSwitch(tab);
        if (name === "tiled_vae_tile") return find(`MD-${TILED_VAE[tab]}-dec-size`);
        if (name.startsWith(UNIT_LOW_VRAM)) return lowVramOf(tab, Number(name.slice(UNIT_LOW_VRAM.length)));
        const ids = NUMBERS[name] || SWITCHES[name] || RADIOS[name] || (name === "resize_scale" ? ["img2img_scale"] : null);
        const element = ids ? findFirst(ids, tab) : null;
        return element || (BY_LABEL[name] ? findLabelled(tab, BY_LABEL[name]) : null);
    }

    function value(tab, name) {
        const element = elementOf(tab, name);
        if (name in RADIOS) return choiceOf(element);
        return isSwitch(name) ? switchOf(element) : numberOf(element);
    }

    function isSwitch(name) {
        return name in SWITCHES || name === "tiled_vae" || name.startsWith(UNIT_LOW_VRAM) || (BY_LABEL[name] || {}).kind === "switch";
    }

    function setInput(input, text) {
        const own = Object.getPrototypeOf(input);
        Object.getOwnPropertyDescriptor(own, "value").set.call(input, text);
        input.dispatchEvent(new Event("input", {bubbles: true}));
        input.dispatchEvent(new Event("change", {bubbles: true}));
    }

    // Leaving the field is what makes gradio clamp a number to its slider and tell the host's own listeners.
    function write(tab, name, wanted) {
        const element = elementOf(tab, name);
        if (isSwitch(name)) {
            const box = switchInput(element);
            if (box && box.checked !== wanted) box.click();
            return;
        }
        if (name in RADIOS) {
            const choice = element && Array.from(element.querySelectorAll("input[type=radio]")).find(input => input.value === wanted);
            if (choice && !choice.checked) choice.click();
            return;
        }
        const input = numberInput(element);
        if (!input) return;
        setInput(input, String(wanted));
        input.dispatchEvent(new Event("blur"));
    }

    function holds(tab, name, wanted) {
        const now = value(tab, name);
        return typeof wanted === "number" ? Math.abs(now - wanted) < 0.005 : now === wanted;
    }

    // The script's hidden argument for the next runs: "", "run", or what a fix has changed, for the infotext.
    function writeRun(tab, text) {
        const element = find(tab + "_vram_guard_run");
        const input = element && element.querySelector("textarea, input");
        if (input) setInput(input, text);
        return Boolean(input);
    }

    guard.fields = {find, choice: choiceOf, element: elementOf, read, value, write, holds, writeRun, more: []};
})();
