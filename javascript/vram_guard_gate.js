// The gate before Generate: a person's press on something that will not fit asks, or fixes, first.
// It fails open: without a fresh answer in time the press goes through.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const FRESH_WAIT_MS = 400;
    const KEY_TO_CLICK_MS = 100; // the host's Ctrl+Enter handler clicks the button at once
    const SETTLE_MS = 60; // gradio passes a written field on to its state within a few frames
    const RUN_RESET_MS = 1000; // by then gradio has read the fields of the run

    let lastShortcut = -Infinity;
    let passing = false;

    function sleep(ms) {
        return new Promise(done => setTimeout(done, ms));
    }

    function button(tab) {
        return guard.fields.find(tab + "_generate");
    }

    function pass(tab) {
        const generate = button(tab);
        if (!generate) return;
        passing = true;
        try {
            generate.click();
        } finally {
            passing = false;
        }
    }

    function pressedTab(event) {
        for (const tab of guard.tabs.keys()) {
            const generate = button(tab);
            if (generate && event.composedPath().includes(generate)) return tab;
        }
        return null;
    }

    // "Generate forever" and other scripts click without a person; those are left to the server's hook.
    function byPerson(event) {
        return event.isTrusted || performance.now() - lastShortcut < KEY_TO_CLICK_MS;
    }

    function clicked(event) {
        if (passing || !byPerson(event)) return;
        const tab = pressedTab(event);
        if (tab) gate(guard.tabs.get(tab), event);
    }

    function keyed(event) {
        if (!event.isTrusted) return;
        if (event.key === "Escape") return escaped(event);
        if (event.key !== "Enter") return;
        if (event.ctrlKey || event.metaKey || event.altKey) lastShortcut = performance.now();
        else if (event.shiftKey) submitted(event);
    }

    // Shift+Enter in the prompt submits it without the button.
    function submitted(event) {
        for (const [tab, state] of guard.tabs) {
            const prompt = guard.fields.find(tab + "_prompt");
            if (prompt && event.composedPath().includes(prompt)) gate(state, event);
        }
    }

    function escaped(event) {
        for (const state of guard.tabs.values()) {
            if (state.bar.isAsking()) cancel(state);
            else if (!state.bar.phases.hidden) state.bar.close();
            else continue;
            event.preventDefault();
            event.stopImmediatePropagation();
            return;
        }
    }

    function stop(event) {
        event.preventDefault();
        event.stopImmediatePropagation();
    }

    function gate(state, event) {
        state.look();
        if (state.isFresh()) {
            if (!needsHand(state)) return leave(state);
            stop(event);
            return decide(state);
        }
        if (!state.canAnswer()) return;
        stop(event);
        state.fresh(FRESH_WAIT_MS).then(() => decide(state));
    }

    function leave(state) {
        state.bar.closeAsk();
        if (!state.undo) state.bar.forgetChanged();
    }

    function needsHand(state) {
        const answer = state.answer;
        return answer.verdict === "wont_fit" && (answer.mode === "ask" || answer.mode === "fix");
    }

    // Whatever is wrong with us, a press that was stopped is not lost.
    function decide(state) {
        try {
            decideNow(state);
        } catch (error) {
            console.warn("VRAM Guard could not ask", error);
            state.bar.closeAsk();
            pass(state.tab);
        }
    }

    function decideNow(state) {
        if (!state.isFresh() || !needsHand(state)) return pass(state.tab);
        if (state.bar.isAsking()) return runAnyway(state);
        if (state.answer.mode === "fix" && state.answer.writes.length) return fixAndRun(state);
        state.ask();
    }

    async function runAnyway(state) {
        state.bar.closeAsk();
        guard.fields.writeRun(state.tab, "run");
        await sleep(SETTLE_MS);
        pass(state.tab);
        setTimeout(() => guard.fields.writeRun(state.tab, state.runText()), RUN_RESET_MS);
    }

    // Where the page does not take the fix, the press goes on in Fix mode (the server's hook fixes it) and stops otherwise.
    async function fixAndRun(state) {
        const automatic = !state.bar.isAsking();
        state.bar.closeAsk();
        let fixed = false;
        try {
            fixed = await fix(state);
        } catch (error) {
            console.warn("VRAM Guard could not write the fix", error);
        }
        if (fixed || automatic) pass(state.tab);
        else focusGenerate(state);
    }

    async function fix(state) {
        const writes = state.answer.writes;
        const text = state.answer.changed_text;
        const record = state.answer.record;
        const steps = state.answer.plan.steps.map(step => step.id);
        const before = writes.map(write => ({field: write.field, value: guard.fields.value(state.tab, write.field)}));
        await writeAll(state.tab, writes);
        const refused = writes.find(write => !guard.fields.holds(state.tab, write.field, write.value));
        if (refused) {
            await writeAll(state.tab, before.filter(write => write.value !== undefined).reverse());
            const name = guard.texts["field_" + refused.field.split(":")[0]] || refused.field;
            state.said((guard.texts.not_written || "{field}").replace("{field}", name), null);
            return false;
        }
        state.keepRecord(record, writes);
        state.fixedBy = steps;
        await sleep(SETTLE_MS);
        state.said(text, before);
        return true;
    }

    async function writeAll(tab, writes) {
        for (const write of writes) guard.fields.write(tab, write.field, write.value);
        await sleep(SETTLE_MS);
    }

    async function undo(state) {
        const before = state.undo;
        if (!before) return;
        guard.undone.note(state.fixedBy);
        await writeAll(state.tab, before.slice().reverse());
        state.endOfRecord();
        state.said(guard.texts.undone, null);
        state.bar.focus();
    }

    function cancel(state) {
        state.bar.closeAsk();
        focusGenerate(state);
    }

    function focusGenerate(state) {
        const generate = button(state.tab);
        if (generate) generate.focus();
    }

    function act(state, name) {
        if (name === "fix") fix(state);
        else if (name === "fix-run") fixAndRun(state);
        else if (name === "run") runAnyway(state);
        else if (name === "cancel") cancel(state);
        else if (name === "undo") undo(state);
        else if (name === "free") guard.live.freeFor(state);
    }

    guard.gate = {
        act,
        listen() {
            document.addEventListener("click", clicked, true);
            document.addEventListener("keydown", keyed, true);
        },
    };
})();
