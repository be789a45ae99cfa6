// The tab's section "History": read while it is looked at; its files are saved and its row is copied here.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const TICK_MS = 1000;
    const AGAIN_MS = 4000;
    const AWAY_MS = 10000; // after an answer that did not come
    const WAIT_MS = 60000; // a long history as a file
    const TURN_MS = 1200; // the server lets one request through at a time, and none right after another
    let asking = false;
    let stamp = null; // of what is shown
    let nextAt = 0;

    function part(name) {
        return gradioApp().querySelector(`#vram_guard_tab [data-history${name ? "-" + name : ""}]`);
    }

    function isSeen() {
        const place = part("");
        return Boolean(place && place.closest("details").open && place.getClientRects().length);
    }

    async function look() {
        if (document.hidden || asking || Date.now() < nextAt || !isSeen()) return;
        asking = true;
        try {
            const shown = part("").dataset.shown ? stamp : null; // the page may have been built anew
            const response = await guard.server.post("history", {stamp: shown});
            nextAt = Date.now() + AGAIN_MS;
            if (response.status === 200) show(response.body);
        } catch (error) {
            nextAt = Date.now() + AWAY_MS; // the server is away; the bar says so
        } finally {
            asking = false;
        }
    }

    // What a person has opened, and where the focus is, stays so.
    function show(body) {
        const place = part("");
        if (!place || body.html === undefined) return;
        stamp = body.stamp;
        const open = new Set(Array.from(place.querySelectorAll("details[open]"), item => item.dataset.run));
        const focused = place.contains(document.activeElement) && document.activeElement.closest("details");
        place.innerHTML = body.html;
        place.dataset.shown = "yes";
        for (const item of place.querySelectorAll("details")) {
            item.open = open.has(item.dataset.run);
            if (focused && focused.dataset.run === item.dataset.run) item.querySelector("summary").focus();
        }
        for (const time of place.querySelectorAll("time[datetime]")) {
            const moment = new Date(time.getAttribute("datetime"));
            if (!isNaN(moment)) time.textContent = moment.toLocaleString([], {dateStyle: "short", timeStyle: "short"});
        }
    }

    function say(text) {
        const answer = part("answer");
        if (answer) answer.textContent = text || "";
    }

    async function save(format) {
        const body = await ask("history-export", {format: format});
        if (!body) return;
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([body.text], {type: body.type + ";charset=utf-8"}));
        link.download = body.name;
        document.body.append(link);
        link.click();
        link.remove();
        setTimeout(() => URL.revokeObjectURL(link.href), WAIT_MS);
        say(body.said);
    }

    async function copy() {
        const body = await ask("history-row", {});
        if (!body) return;
        const holder = part("row");
        holder.hidden = !body.row;
        if (!body.row) return say(body.none);
        const text = holder.querySelector("textarea");
        text.value = body.row;
        try {
            await navigator.clipboard.writeText(body.row);
            say(body.copied);
        } catch (error) {
            text.focus(); // no clipboard without https: it is selected, to be copied by hand
            text.select();
            say(body.by_hand);
        }
    }

    function askErase(open) {
        const panel = part("ask");
        panel.hidden = !open;
        const next = panel.parentElement.querySelector(`[data-history-do="${open ? "cancel" : "erase"}"]`);
        if (next) next.focus();
    }

    async function erase() {
        askErase(false);
        const body = await ask("history-erase", {confirm: true});
        if (!body) return;
        say(body.said);
        part("row").hidden = true;
        nextAt = 0;
        look();
    }

    async function ask(name, body) {
        try {
            let response = await guard.server.post(name, body, WAIT_MS);
            if (response.status === 429) { // two buttons pressed at once, or another page at work
                await new Promise(resolve => setTimeout(resolve, TURN_MS));
                response = await guard.server.post(name, body, WAIT_MS);
            }
            if (response.status === 200) return response.body;
            say(response.body.error);
        } catch (error) {
            say(guard.texts.bar_offline); // the server is away
        }
        return null;
    }

    function clicked(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-history-do]");
        if (!button) return;
        const what = button.dataset.historyDo;
        if (what === "json" || what === "csv") save(what);
        else if (what === "copy") copy();
        else if (what === "erase") askErase(true);
        else if (what === "cancel") askErase(false);
        else if (what === "erase-now") erase();
    }

    function pressed(event) {
        if (event.key !== "Escape" || !event.target.closest) return;
        if (!event.target.closest("#vram_guard_tab [data-history-ask]")) return;
        event.preventDefault();
        askErase(false);
    }

    onUiLoaded(() => {
        gradioApp().addEventListener("click", clicked);
        gradioApp().addEventListener("keydown", pressed);
        setInterval(look, TICK_MS);
    });
})();
