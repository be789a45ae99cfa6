// VRAM Guard in the page: watches the fields, asks the server, shows the answer. One request at a time per tab;
// while it runs only the latest state of the fields is kept, so dragging a slider never builds a queue.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    if (guard.tabs) return; // loaded twice: the first one stays
    guard.tabs = new Map();
    guard.texts = {};

    const EDIT_MS = 8; // events of one movement are read together
    const AFTER_CLICK_MS = 120; // gradio's own changes after a click have arrived by then
    const TICK_MS = 1000;
    const AGAIN_MS = 5000; // other programs come and go: ask again although no field changed
    const TIMEOUT_MS = 10000;
    const LONGEST_RETRY_MS = 30000;
    const QUIET_FAILURES = 2;
    const FOLDS = "vram-guard-folds";

    function language() {
        const chosen = typeof opts === "undefined" ? null : opts.localization;
        return chosen && chosen !== "None" ? chosen : navigator.language || "en";
    }

    function address(name) {
        return new URL("vram-guard/v1/" + name, document.baseURI).href;
    }

    async function fetchJson(name, options) {
        const stop = new AbortController();
        const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
        try {
            const response = await fetch(address(name), {...options, signal: stop.signal, credentials: "same-origin"});
            return {status: response.status, body: await response.json()};
        } finally {
            clearTimeout(timer);
        }
    }

    function postJson(name, body) {
        return fetchJson(name, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)});
    }

    class Tab {
        constructor(tab) {
            this.tab = tab;
            this.answer = null;
            this.print = null; // the fields that the answer is about
            this.now = null; // the fields as last read
            this.wanted = null; // what is to be asked next
            this.asking = null; // the fields of the request under way
            this.askedPrint = null; // the fields that the open panel is about
            this.failures = 0;
            this.retryAt = 0;
            this.askedAt = 0;
            this.undo = null;
            this.saidPrint = undefined;
            this.waiting = [];
            this.bar = new guard.Bar(tab, name => guard.gate.act(this, name));
        }

        ask() {
            this.askedPrint = this.print;
            this.bar.ask(this.answer.ask_html);
        }

        // Reads the fields; asks when they differ from what was answered or when the answer is old.
        look() {
            if (!this.bar.isShown() && !this.bar.box.hidden) return;
            const form = guard.fields.read(this.tab);
            this.now = JSON.stringify(form);
            this.endOfSaid();
            const old = Date.now() - this.askedAt > AGAIN_MS;
            if (this.now === (this.asking || this.print) && !old) {
                this.wanted = null;
                return;
            }
            this.wanted = {form: form, print: this.now};
            this.pump();
        }

        async pump() {
            if (this.asking || !this.wanted || Date.now() < this.retryAt) return;
            const job = this.wanted;
            this.wanted = null;
            this.asking = job.print;
            this.askedAt = Date.now();
            try {
                this.accept(job, await postJson("check", {tab: this.tab, form: job.form, language: language()}));
            } catch (error) {
                this.failed(guard.texts.bar_offline); // the server is away: said in the bar, not in the console
            } finally {
                this.asking = null;
            }
            this.pump();
        }

        accept(job, response) {
            if (response.status === 401 || response.status === 403) return this.failed(guard.texts.bar_refused);
            if (!response.body || !response.body.bar_html) {
                return this.failed((response.body && response.body.error) || guard.texts.bar_offline);
            }
            this.failures = 0;
            this.retryAt = 0;
            this.answer = response.body;
            this.print = job.print;
            if (this.bar.isAsking() && job.print !== this.askedPrint) this.bar.closeAsk();
            this.bar.show(this.answer);
            showRequest(this.answer.phases_html);
            this.tellWaiting();
        }

        failed(text) {
            this.failures += 1;
            this.retryAt = Date.now() + Math.min(LONGEST_RETRY_MS, 1000 * 2 ** (this.failures - 1));
            this.answer = this.print = null;
            if (this.failures >= QUIET_FAILURES && text) this.bar.showTrouble(text);
            this.tellWaiting();
        }

        isFresh() {
            return this.answer !== null && this.now === this.print;
        }

        canAnswer() {
            return this.failures === 0;
        }

        fresh(limitMs) {
            if (this.isFresh()) return Promise.resolve();
            return new Promise(done => {
                const timer = setTimeout(done, limitMs);
                this.waiting.push(() => {
                    if (!this.isFresh() && this.canAnswer()) return false;
                    clearTimeout(timer);
                    done();
                    return true;
                });
            });
        }

        tellWaiting() {
            this.waiting = this.waiting.filter(tell => !tell());
        }

        // One line under the bar, with Undo when there is something to undo; it ends with the next change of a field.
        said(text, undo) {
            this.undo = undo;
            this.now = this.saidPrint = JSON.stringify(guard.fields.read(this.tab));
            this.bar.showChanged(text, Boolean(undo));
            this.look();
        }

        endOfSaid() {
            if (this.saidPrint === undefined || this.saidPrint === this.now) return;
            this.saidPrint = undefined;
            this.undo = null;
            this.bar.showChanged("", false);
        }
    }

    let soon = null;

    function lookSoon(ms) {
        if (soon !== null && ms === EDIT_MS) return;
        const timer = setTimeout(() => {
            if (ms === EDIT_MS) soon = null;
            lookAll();
        }, ms);
        if (ms === EDIT_MS) soon = timer;
    }

    function lookAll() {
        if (document.hidden) return;
        for (const state of guard.tabs.values()) state.look();
    }

    function tick() {
        if (document.hidden) return;
        for (const state of guard.tabs.values()) {
            state.bar.place();
            state.look();
            state.bar.layOut();
        }
        refreshTab();
    }

    function watch() {
        const root = gradioApp();
        for (const name of ["input", "change"]) root.addEventListener(name, () => lookSoon(EDIT_MS), true);
        for (const name of ["click", "keyup", "pointerup"]) {
            root.addEventListener(name, () => {
                lookSoon(EDIT_MS);
                lookSoon(AFTER_CLICK_MS);
            }, true);
        }
        root.addEventListener("click", rememberFold);
        document.addEventListener("visibilitychange", lookAll);
        window.addEventListener("resize", () => {
            for (const state of guard.tabs.values()) state.bar.layOut();
        });
        setInterval(tick, TICK_MS);
    }

    // ---- the tab "VRAM Guard" ----

    let tabFilled = false;
    let tabAskedAt = 0;

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
        const summary = event.target.closest && event.target.closest("#vram_guard_tab summary");
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

    async function refreshTab() {
        const tab = guard.fields.find("vram_guard_tab");
        if (!tab || !tab.getClientRects().length || Date.now() - tabAskedAt < 3 * TICK_MS) return;
        tabAskedAt = Date.now();
        try {
            const response = await fetchJson("sections?language=" + encodeURIComponent(language()));
            if (response.status === 200) fillTab(tab, response.body);
        } catch (error) {
            tabAskedAt = Date.now() + LONGEST_RETRY_MS / 3; // the server is away; the bar says so
        }
    }

    function fillTab(tab, sections) {
        if (!tabFilled || !tab.querySelector("[data-localised]")) firstFill(tab, sections.tab);
        for (const name in sections) if (name !== "tab" && name !== "request") setInside(name, sections[name]);
        const latest = Array.from(guard.tabs.values()).filter(state => state.answer).sort((a, b) => b.askedAt - a.askedAt)[0];
        if (latest) showRequest(latest.answer.phases_html);
    }

    function firstFill(tab, html) {
        const frame = tab.querySelector(".vg-tab");
        if (!frame) return;
        const holder = document.createElement("div");
        holder.innerHTML = html;
        const made = holder.firstElementChild;
        made.dataset.localised = "";
        const folds = foldsNow();
        for (const fold of made.querySelectorAll("details")) fold.open = folds[fold.dataset.section] !== false;
        frame.replaceWith(made);
        tabFilled = true;
    }

    async function start() {
        guard.gate.listen();
        watch();
        for (const tab of ["txt2img", "img2img"]) {
            const state = new Tab(tab);
            if (state.bar.place()) guard.tabs.set(tab, state);
        }
        try {
            guard.texts = (await fetchJson("texts?language=" + encodeURIComponent(language()))).body;
        } catch (error) {
            guard.texts = {}; // the server is away; the checks below will find it again
        }
        for (const state of guard.tabs.values()) state.bar.say(guard.texts);
        lookAll();
    }

    onUiLoaded(start);
    onAfterUiUpdate(() => {
        for (const state of guard.tabs.values()) if (!state.bar.box.isConnected) state.bar.place();
    });
})();
