// Changes that a person takes back: the server counts them, and the tab's section can have them offered again.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};

    function place() {
        return gradioApp().querySelector('#vram_guard_tab [data-inside="left_alone"]');
    }

    async function post(body) {
        try {
            const response = await guard.server.post("undone", body);
            return response.status === 200 ? response.body : null;
        } catch (error) {
            return null; // the server is away: the change is taken back all the same
        }
    }

    function note(steps) {
        return steps.length ? post({steps: steps}) : null;
    }

    async function offerAgain() {
        const answer = await post({offer_again: true});
        const found = place();
        if (!answer || !found) return;
        found.dataset.html = answer.html;
        found.innerHTML = answer.html;
        found.tabIndex = -1;
        found.focus();
    }

    function clicked(event) {
        if (event.target.closest && event.target.closest("#vram_guard_tab [data-offer-again]")) offerAgain();
    }

    guard.undone = {note};
    onUiLoaded(() => gradioApp().addEventListener("click", clicked));
})();
