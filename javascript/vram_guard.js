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
    const LONGEST_RETRY_MS = 30000;
    const QUIET_FAILURES = 2;

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
            this.fixedBy = []; // the steps that the last fix took
            this.records = []; // what fixes have changed, while the fields still say so
            this.saidPrint = undefined;
            this.liveText = ""; // what is said about the generation at work
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
            this.endOfRecord();
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
                this.accept(job, await guard.server.post("check", {tab: this.tab, form: job.form}));
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
            this.sayLive(this.answer.live_text || "");
            guard.sections.showRequest(this.answer.phases_html);
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

        // While a generation runs: that it has left the card or the RAM. A line about a fix stays before it.
        sayLive(text) {
            if (text === this.liveText || this.saidPrint !== undefined) return;
            this.liveText = text;
            this.bar.showChanged(text, false);
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

        // Goes into the infotext of every run until a field of the fix gets another value.
        keepRecord(text, writes) {
            if (text) this.records.push({text: text, writes: writes});
            guard.fields.writeRun(this.tab, this.runText());
        }

        endOfRecord() {
            const kept = this.records.filter(
                record => record.writes.every(write => guard.fields.holds(this.tab, write.field, write.value)));
            if (kept.length === this.records.length) return;
            this.records = kept;
            guard.fields.writeRun(this.tab, this.runText());
        }

        runText() {
            return this.records.length ? "fixed: " + this.records.map(record => record.text).join("; ") : "";
        }

        endOfSaid() {
            if (this.saidPrint === undefined || this.saidPrint === this.now) return;
            this.saidPrint = undefined;
            this.liveText = "";
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
        guard.sections.refresh();
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
        root.addEventListener("click", guard.sections.rememberFold);
        document.addEventListener("visibilitychange", lookAll);
        window.addEventListener("resize", () => {
            for (const state of guard.tabs.values()) state.bar.layOut();
        });
        setInterval(tick, TICK_MS);
    }

    async function start() {
        guard.gate.listen();
        watch();
        for (const tab of ["txt2img", "img2img"]) {
            const state = new Tab(tab);
            if (state.bar.place()) guard.tabs.set(tab, state);
        }
        try {
            guard.texts = (await guard.server.get("texts")).body;
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
