// The tab "VRAM Guard": its sections in the page's language, fresh while they are looked at, folded as they were left.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const FOLDS = "vram-guard-folds";
    const REFRESH_MS = 3000;
    const AWAY_MS = 10000; // how long the tab waits for a server that did not answer
    let filled = false;
    let askedAt = 0;

    function inside(name) {
        return gradioApp().querySelector(`#vram_guard_tab [data-inside="${name}"]`);
    }

    function setInside(name, html) {
        const place = inside(name);
        if (place && place.dataset.html !== html) {
            place.dataset.html = html;
            place.innerHTML = html;
        }
    }

    function showRequest(html) {
        setInside("request", html);
    }

    function foldsNow() {
        try {
            return JSON.parse(localStorage.getItem(FOLDS)) || {};
        } catch (error) {
            return {}; // storage is off or holds something else: every section starts open
        }
    }

    // Only what a person folds: a "toggle" event also comes from the page being built.
    function rememberFold(event) {
        const summary = event.target.closest && event.target.closest("#vram_guard_tab .vg-section > summary");
        if (!summary) return;
        const fold = summary.parentElement;
        setTimeout(() => {
            try {
                localStorage.setItem(FOLDS, JSON.stringify({...foldsNow(), [fold.dataset.section]: fold.open}));
            } catch (error) {
                return; // storage is off: the fold works, it is only not remembered
            }
        });
    }

    // The list of the sections: to one of them, open, with its title in focus.
    function jumped(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-jump]");
        if (!button) return;
        const fold = button.closest(".vg-tab").querySelector(`details[data-section="${button.dataset.jump}"]`);
        if (!fold) return;
        fold.open = true;
        fold.scrollIntoView({block: "start"});
        fold.querySelector("summary").focus({preventScroll: true});
    }

    async function refresh() {
        const tab = guard.fields.find("vram_guard_tab");
        if (!tab || !tab.getClientRects().length || Date.now() - askedAt < REFRESH_MS) return;
        askedAt = Date.now();
        try {
            const response = await guard.server.get("sections");
            if (response.status === 200) fillTab(tab, response.body);
        } catch (error) {
            askedAt = Date.now() + AWAY_MS; // the server is away; the bar says so
        }
    }

    function fillTab(tab, sections) {
        if (!filled || !tab.querySelector("[data-localised]")) firstFill(tab, sections.tab);
        for (const name in sections) if (name !== "tab" && name !== "request") setInside(name, sections[name]);
        const latest = Array.from(guard.tabs.values()).filter(state => state.answer).sort((a, b) => b.askedAt - a.askedAt)[0];
        if (latest) showRequest(latest.answer.phases_html);
        guard.diagnosis.light();
    }

    function firstFill(tab, html) {
        const frame = tab.querySelector(".vg-tab");
        if (!frame) return;
        const holder = document.createElement("div");
        holder.innerHTML = html;
        const made = holder.firstElementChild;
        made.dataset.localised = "";
        const folds = foldsNow();
        for (const fold of made.querySelectorAll("details[data-section]")) fold.open = folds[fold.dataset.section] !== false;
        frame.replaceWith(made);
        filled = true;
    }

    onUiLoaded(() => gradioApp().addEventListener("click", jumped));
    guard.sections = {refresh, rememberFold, showRequest};
})();
