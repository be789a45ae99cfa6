// The tab's sections "What fits" and "Restart": asked with the fields of the tab that was used last, while they are looked at.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const TICK_MS = 1000;
    const AGAIN_MS = 15000; // other programs come and go
    const AWAY_MS = 10000; // after an answer that did not come
    const COPIED_MS = 2000;
    const SECTIONS = ["fits", "advice"]; // places for the answer's fits_html and advice_html
    let asking = false;
    let print = null; // the fields and the section that the answer is about
    let nextAt = 0;

    function place(name) {
        return gradioApp().querySelector(`#vram_guard_tab [data-${name}]`);
    }

    function isSeen(name) {
        const found = place(name);
        return Boolean(found && found.closest("details").open && found.getClientRects().length);
    }

    function latest() {
        return Array.from(guard.tabs.values()).sort((a, b) => b.askedAt - a.askedAt)[0];
    }

    // What cannot be read while the other tab is hidden (the picture's size) is as it was last read.
    function formOf(state) {
        const before = state.now ? JSON.parse(state.now) : {};
        return {...before, ...guard.fields.read(state.tab)};
    }

    async function look() {
        if (document.hidden || asking || !SECTIONS.some(isSeen)) return;
        const state = latest();
        if (!state) return;
        const form = formOf(state);
        const now = state.tab + JSON.stringify(form);
        if (Date.now() < nextAt && now === print) return;
        asking = true;
        try {
            const response = await guard.server.post("fits", {tab: state.tab, form: form});
            print = now;
            nextAt = Date.now() + (response.body.complete === false ? 0 : AGAIN_MS);
            show(response.body);
        } catch (error) {
            print = now;
            nextAt = Date.now() + AWAY_MS; // the server is away; the bar says so
        } finally {
            asking = false;
        }
    }

    function show(body) {
        for (const name of SECTIONS) {
            const found = place(name);
            if (!found) continue;
            const html = body[name + "_html"];
            if (html === undefined) {
                if (body.error && !found.dataset.shown) found.textContent = body.error;
            } else if (found.dataset.shown !== html) {
                const first = !found.dataset.shown;
                const focused = found.contains(document.activeElement) ? document.activeElement.dataset.what : undefined;
                found.dataset.shown = html;
                found.innerHTML = html;
                if (focused) keepFocus(found, focused);
                if (name === "fits" && !first) tell(found);
            }
        }
    }

    // The button that was pressed is gone once its value is in the fields: then the section's title takes the focus.
    function keepFocus(found, what) {
        (found.querySelector(`[data-what="${what}"]`) || found.closest("details").querySelector("summary")).focus();
    }

    async function use(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-use]");
        if (!button) return;
        const values = JSON.parse(button.dataset.use);
        for (const name in values) await guard.fields.write("txt2img", name, values[name]);
        look();
    }

    // A screen reader hears the answers when they change, not the tables.
    function tell(found) {
        const answers = Array.from(found.querySelectorAll("[data-said] :is(dt, dd > span, dd:not(:has(span))), p[data-said]"), item => item.textContent);
        place("fits-said").textContent = answers.join("; ");
    }

    async function copyLines(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-copy-lines]");
        if (!button) return;
        const text = button.closest(".vg-lines-block").querySelector("code").textContent;
        await guard.diagnosis.toClipboard(text);
        const label = button.textContent;
        if (label === button.dataset.copied) return;
        button.textContent = button.dataset.copied;
        setTimeout(() => { button.textContent = label; }, COPIED_MS);
    }

    onUiLoaded(() => {
        setInterval(look, TICK_MS);
        gradioApp().addEventListener("click", copyLines);
        gradioApp().addEventListener("click", use);
    });
})();
