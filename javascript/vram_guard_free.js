// The tab's section "Free memory and restart": asks the server, shows what came of it, comes back after a restart.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const FREE_WAIT_MS = 120000; // moving many GiB to a slow computer's RAM
    const POLL_MS = 500;
    const GRACE_MS = 15000; // a server that was never seen away has restarted between two looks
    const GIVE_UP_MS = 120000;
    let working = false;

    function place() {
        return gradioApp().querySelector("#vram_guard_tab [data-free-answer]");
    }

    function text(name) {
        const found = gradioApp().querySelector(`#vram_guard_tab [data-free-text="${name}"]`);
        return found ? found.textContent : "";
    }

    // The buttons stay in the tab's order while one works: a disabled button would lose the focus.
    async function post(name, body) {
        const answer = place();
        if (!answer || working) return null;
        working = true;
        answer.setAttribute("aria-busy", "true");
        answer.textContent = name === "free" ? text("waiting") : "";
        try {
            const response = await guard.server.post(name, {...body, page: true}, FREE_WAIT_MS);
            if (response.body.html) answer.innerHTML = response.body.html;
            else answer.textContent = response.body.error || guard.texts.bar_offline || "";
            return response.body;
        } catch (error) {
            answer.textContent = guard.texts.bar_offline || ""; // the server is away
            return null;
        } finally {
            working = false;
            answer.removeAttribute("aria-busy");
        }
    }

    function free(level) {
        return post("free", {level: level});
    }

    // Says first what will be lost; only "Restart now" does it.
    function askRestart(how) {
        const asked = gradioApp().querySelectorAll("#vram_guard_tab [data-restart-ask]");
        for (const panel of asked) {
            panel.hidden = panel.dataset.restartAsk !== how;
            if (!panel.hidden) panel.querySelector("[data-restart-cancel]").focus();
        }
    }

    function cancelRestart(how) {
        askRestart("");
        const button = gradioApp().querySelector(`#vram_guard_tab [data-restart="${how}"]`);
        if (button) button.focus();
    }

    async function restart(how) {
        askRestart("");
        const answer = await post("restart", {how: how});
        const shown = place();
        if (shown) shown.focus();
        if (answer && answer.started) comeBack();
    }

    async function answers() {
        try {
            return (await guard.server.get("status")).status === 200;
        } catch (error) {
            return false; // away, as a server that restarts is
        }
    }

    async function comeBack() {
        const begun = Date.now();
        let away = false;
        while (Date.now() - begun < GIVE_UP_MS) {
            await new Promise(done => setTimeout(done, POLL_MS));
            const there = await answers();
            if (there && (away || Date.now() - begun > GRACE_MS)) return location.reload();
            away = away || !there;
        }
        if (place()) place().textContent = text("gone");
    }

    function clicked(event) {
        if (!event.target.closest) return;
        const button = event.target.closest("#vram_guard_tab .vg-section button");
        if (!button) return;
        const data = button.dataset;
        if (data.free) free(data.free);
        else if (data.restart) askRestart(data.restart);
        else if (data.restartGo) restart(data.restartGo);
        else if (data.restartCancel) cancelRestart(data.restartCancel);
    }

    function show() {
        const fold = gradioApp().querySelector('#vram_guard_tab [data-section="free"]');
        if (!fold) return;
        fold.open = true;
        fold.scrollIntoView({block: "start"});
    }

    guard.free = {free, askRestart, show};
    onUiLoaded(() => gradioApp().addEventListener("click", clicked));
})();
