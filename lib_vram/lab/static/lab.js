// What a WebUI's own script gives to extensions, for the Lab: the root of the page, the callbacks, and Ctrl+Enter.
function gradioApp() {
    const app = document.querySelector("gradio-app");
    return app && app.shadowRoot ? app.shadowRoot : app || document;
}

const labCallbacks = {loaded: [], updated: []};

function onUiLoaded(callback) {
    labCallbacks.loaded.push(callback);
}

function onAfterUiUpdate(callback) {
    labCallbacks.updated.push(callback);
}

(function() {
    "use strict";
    const UPDATE_PAUSE_MS = 200;
    let started = false;
    let updateTimer = null;

    function watch() {
        const observer = new MutationObserver(() => {
            if (!started && gradioApp().querySelector("#txt2img_prompt textarea")) {
                started = true;
                readMore();
                for (const callback of labCallbacks.loaded) callback();
            }
            clearTimeout(updateTimer);
            updateTimer = setTimeout(() => labCallbacks.updated.forEach(callback => callback()), UPDATE_PAUSE_MS);
        });
        observer.observe(document.body, {childList: true, subtree: true});
    }

    // The virtual machine is a part of every request here.
    function readMore() {
        const fields = window.vramGuard.fields;
        const number = id => {
            const input = gradioApp().querySelector(`#${id} input[type=number]`);
            return input && input.value !== "" ? Number(input.value) : undefined;
        };
        const chosen = id => {
            const block = gradioApp().querySelector("#" + id);
            const input = block && (block.querySelector("input[type=radio]:checked") || block.querySelector("input:not([type=radio])"));
            return input ? input.value : undefined;
        };
        fields.more.push(form => {
            const card = gradioApp().querySelector("#lab_card input");
            form.lab_card = card ? card.value : "";
            form.lab_total_gib = number("lab_total");
            form.lab_others_gib = number("lab_others");
            for (const name of ["host", "flags", "mode", "vae_dtype", "attention"]) form["lab_" + name] = chosen("lab_" + name);
            if (form.refiner_checkpoint === "None") form.refiner_checkpoint = "";
        });
    }

    function shownTab() {
        return ["txt2img", "img2img"].find(tab => {
            const button = gradioApp().querySelector(`#${tab}_generate`);
            return button && button.getClientRects().length > 0;
        });
    }

    document.addEventListener("keydown", event => {
        const tab = shownTab();
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !tab) return;
        gradioApp().querySelector(`#${tab}_generate`).click();
        event.preventDefault();
    });

    document.addEventListener("DOMContentLoaded", watch);
})();
