// The tab's diagnosis: the paste box, the report to copy, the symptom table's filter and its lit rows, the cures' buttons.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const SAID_MS = 2000;
    const SHOWN_MS = 50;
    const SHOWN_TRIES = 20;
    let asked = 0;

    function tab() {
        return guard.fields.find("vram_guard_tab");
    }

    async function submitted(event) {
        const form = event.target.closest && event.target.closest("#vram_guard_tab [data-diagnose]");
        if (!form) return;
        event.preventDefault();
        const text = form.querySelector("textarea").value;
        const place = tab().querySelector("[data-answer]");
        const mine = ++asked;
        place.setAttribute("aria-busy", "true");
        try {
            const response = await guard.server.post("diagnose", {text: text, page: true});
            if (mine !== asked) return;
            if (response.body.html) {
                place.innerHTML = response.body.html;
                showSettingButtons();
            } else place.textContent = response.body.error || guard.texts.bar_offline || "";
        } catch (error) {
            place.textContent = guard.texts.bar_offline || ""; // the server is away
        } finally {
            place.removeAttribute("aria-busy");
        }
    }

    function cleared(event) {
        if (event.target.matches && event.target.matches("#vram_guard_tab [data-diagnose]")) {
            asked += 1;
            tab().querySelector("[data-answer]").textContent = "";
        }
    }

    async function copy(button) {
        const text = button.closest(".vg-diagnosis").querySelector("[data-report]").textContent;
        await toClipboard(text);
        const label = button.textContent;
        if (label === button.dataset.copied) return;
        button.textContent = button.dataset.copied;
        setTimeout(() => { button.textContent = label; }, SAID_MS);
    }

    async function toClipboard(text) {
        try {
            await navigator.clipboard.writeText(text);
        } catch (error) {
            copyBySelection(text); // no clipboard on plain http from another machine
        }
    }

    function copyBySelection(text) {
        const area = document.createElement("textarea");
        area.value = text;
        area.className = "vg-hidden";
        document.body.appendChild(area);
        area.select();
        document.execCommand("copy");
        area.remove();
    }

    // The tab of pictures that was used last; its fields are what a cure changes.
    function latest() {
        return Array.from(guard.tabs.values()).sort((a, b) => b.askedAt - a.askedAt)[0];
    }

    function showTab(name) {
        const buttons = gradioApp().querySelectorAll("#tabs > .tab-nav button, #tabs button[role=tab]");
        for (const button of buttons) if (button.textContent.trim() === name) return button.click();
    }

    const CURES = {
        fix: async state => { guard.gate.act(state, "fix"); },
        batch_one: async state => {
            const form = guard.fields.read(state.tab);
            if (!(form.batch_size > 1)) return;
            await guard.fields.write(state.tab, "batch_count", (form.batch_count || 1) * form.batch_size);
            await guard.fields.write(state.tab, "batch_size", 1);
        },
        native_size: async state => {
            const [width, height] = (state.answer && state.answer.native_size) || [];
            if (!width) return;
            await guard.fields.write(state.tab, "width", width);
            await guard.fields.write(state.tab, "height", height);
        },
        tiled_vae: async state => {
            const form = guard.fields.read(state.tab);
            await guard.fields.write(state.tab, "never_oom_vae" in form ? "never_oom_vae" : "vae_tiled", true);
        },
    };

    // A tab of any level is opened by its own button; gradio says which that is, or it has the tab's place in the row.
    function openPanel(panel) {
        const nav = panel.parentElement.querySelector(":scope > .tab-nav");
        if (!nav) return;
        const named = nav.querySelector(`[aria-controls="${CSS.escape(panel.id)}"], #${CSS.escape(panel.id + "-button")}`);
        const place = Array.from(panel.parentElement.querySelectorAll(":scope > .tabitem")).indexOf(panel);
        const button = named || nav.querySelectorAll("button")[place];
        if (button) button.click();
    }

    function settingElement(name) {
        const state = latest();
        return guard.fields.element(state ? state.tab : "txt2img", name) || guard.fields.find("setting_" + name);
    }

    function isShown(element) {
        return element.getClientRects().length > 0;
    }

    // gradio shows a panel a moment after its button was pressed, and what is hidden takes no focus.
    async function untilShown(element) {
        for (let tries = 0; tries < SHOWN_TRIES && !isShown(element); tries += 1) {
            await new Promise(done => setTimeout(done, SHOWN_MS));
        }
    }

    async function openSetting(name) {
        const element = settingElement(name);
        if (!element) return;
        const panels = [];
        for (let place = element.closest(".tabitem"); place; place = place.parentElement.closest(".tabitem")) panels.unshift(place);
        panels.forEach(openPanel);
        await untilShown(element);
        element.scrollIntoView({block: "center"});
        const input = element.matches("input") ? element : element.querySelector("input, textarea, select, button");
        if (input) input.focus();
        element.classList.add("vg-shown");
        setTimeout(() => { element.classList.remove("vg-shown"); }, SAID_MS);
    }

    function showSettingButtons() {
        for (const button of tab().querySelectorAll("[data-setting]")) button.hidden = !settingElement(button.dataset.setting);
    }

    // What needs no tab of pictures: the section for it is in this tab.
    const HERE = {
        free: () => guard.free.free("cache"),
        unload: () => guard.free.free("models"),
        restart: () => guard.free.askRestart("restart"),
    };

    async function cure(name) {
        if (HERE[name]) {
            guard.free.show();
            return HERE[name]();
        }
        const state = latest();
        if (!state || !CURES[name]) return;
        showTab(state.tab);
        await CURES[name](state);
        state.look();
    }

    function clicked(event) {
        if (!event.target.closest) return;
        const button = event.target.closest("#vram_guard_tab :is([data-copy], [data-do], [data-setting])");
        if (!button) return;
        if (button.dataset.setting) openSetting(button.dataset.setting);
        else if (button.dataset.do) cure(button.dataset.do);
        else copy(button);
    }

    function plain(text) {
        return text.toLowerCase().normalize("NFD").replace(/[\u0300-\u036f]/g, "");
    }

    function filter() {
        const place = tab();
        const box = place && place.querySelector("#vram_guard_filter");
        if (!box) return;
        const words = plain(box.value).split(/\s+/).filter(Boolean);
        let shown = 0;
        for (const row of place.querySelectorAll("[data-symptom]")) {
            const text = plain(row.textContent);
            row.hidden = !words.every(word => text.includes(word));
            if (!row.hidden) shown += 1;
        }
        for (const table of place.querySelectorAll(".vg-symptoms")) {
            table.hidden = !table.querySelector("[data-symptom]:not([hidden])");
        }
        place.querySelector("[data-filter-none]").hidden = shown > 0;
    }

    function light() {
        const place = tab();
        if (!place) return;
        showSettingButtons();
        for (const row of place.querySelectorAll("[data-symptom]")) {
            const whys = Array.from(place.querySelectorAll(`[data-lit="${row.dataset.symptom}"]`), item => item.textContent);
            row.classList.toggle("vg-is-lit", whys.length > 0);
            row.querySelector(".vg-lamp").hidden = !whys.length;
            const why = row.querySelector(".vg-why");
            why.hidden = !whys.length;
            if (why.textContent !== whys.join(" ")) why.textContent = whys.join(" ");
        }
    }

    function start() {
        const root = gradioApp();
        root.addEventListener("submit", submitted);
        root.addEventListener("reset", cleared);
        root.addEventListener("click", clicked);
        root.addEventListener("input", event => {
            if (event.target.id === "vram_guard_filter") filter();
        });
    }

    guard.diagnosis = {light, toClipboard};
    onUiLoaded(start);
})();
