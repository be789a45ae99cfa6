// Talking to the server, in the language that the page is shown in.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const TIMEOUT_MS = 10000;

    function language() {
        const chosen = typeof opts === "undefined" ? null : opts.localization;
        return chosen && chosen !== "None" ? chosen : navigator.language || "en";
    }

    async function ask(name, options, waitMs) {
        const address = new URL("vram-guard/v1/" + name, document.baseURI).href;
        const stop = new AbortController();
        const timer = setTimeout(() => stop.abort(), waitMs || TIMEOUT_MS);
        try {
            const response = await fetch(address, {...options, signal: stop.signal, credentials: "same-origin"});
            return {status: response.status, body: await response.json()};
        } finally {
            clearTimeout(timer);
        }
    }

    // Both answer {status, body}; both raise when the server is away or answers no JSON.
    guard.server = {
        get: (name, query) => ask(`${name}?${new URLSearchParams({...query, language: language()})}`),
        post: (name, body, waitMs) => ask(name, {
            method: "POST",
            headers: {"Content-Type": "application/json"},
            body: JSON.stringify({...body, language: language()}),
        }, waitMs),
    };
})();
