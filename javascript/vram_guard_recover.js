// The tab's section "Recover": decodes or deletes the latents of a run that was cut off, and shows what came of it.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const WAIT_MS = 600000; // loading a checkpoint and decoding several pictures in tiles
    let working = false;

    function place(name) {
        return gradioApp().querySelector(`#vram_guard_tab [data-${name}]`);
    }

    async function ask(action, id) {
        const answer = place("recover-answer");
        const list = place('inside="recover_list"');
        if (!answer || working) return;
        working = true;
        answer.setAttribute("aria-busy", "true");
        answer.textContent = place("recover-working").textContent;
        try {
            const response = await guard.server.post(action, {id: id}, WAIT_MS);
            answer.textContent = response.body.said || response.body.error || guard.texts.bar_offline || "";
            if (list && response.body.html !== undefined) list.innerHTML = list.dataset.html = response.body.html;
        } catch (error) {
            answer.textContent = guard.texts.bar_offline || ""; // the server is away
        } finally {
            working = false;
            answer.removeAttribute("aria-busy");
            answer.focus();
        }
    }

    function clicked(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-recover]");
        if (button) ask(button.dataset.recover, button.dataset.recoverId);
    }

    onUiLoaded(() => gradioApp().addEventListener("click", clicked));
})();
