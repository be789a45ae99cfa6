// What is drawn: the bar under Generate, the opened phases, the ask panel and the line after a fix.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const GAP = 6; // pixels between the bar and what opens under it
    const HEARD_MS = 5000;
    const EDGE = 8; // pixels kept free at the window's sides

    function element(name, className, attributes) {
        const made = document.createElement(name);
        made.className = className;
        for (const key in attributes || {}) made.setAttribute(key, attributes[key]);
        return made;
    }

    class Bar {
        constructor(tab, act) {
            this.tab = tab;
            this.act = act; // act(name) is called for a pressed button: fix, fix-run, run, cancel, undo
            this.html = "";
            this.box = element("div", "vram-guard vg", {id: tab + "_vram_guard_bar", role: "group"});
            this.line = element("div", "vg-bar");
            this.status = element("div", "vg-hidden", {role: "status", "aria-live": "polite"});
            this.changed = element("div", "vg-changed", {role: "status"});
            this.changed.hidden = true;
            this.box.append(this.line, this.status, this.changed);
            this.phases = element("div", "vram-guard vg vg-pop vg-phases", {id: tab + "_vram_guard_phases", role: "region"});
            this.panel = element("div", "vram-guard vg vg-pop vg-ask", {id: tab + "_vram_guard_ask", role: "dialog"});
            this.phases.hidden = this.panel.hidden = true;
            this.buildPhases();
            this.phases.addEventListener("keydown", event => this.leaveByTab(event));
            for (const part of [this.box, this.phases, this.panel]) part.addEventListener("click", event => this.clicked(event));
        }

        buildPhases() {
            const close = element("button", "vg-close", {type: "button", "data-act": "close"});
            close.textContent = "×";
            this.closeButton = close;
            this.picture = element("div", "vg-picture");
            this.phases.append(close, this.picture);
        }

        say(texts) {
            this.box.setAttribute("aria-label", texts.bar_group);
            this.phases.setAttribute("aria-label", texts.phases_title);
            this.panel.setAttribute("aria-label", texts.ask_title);
            this.closeButton.setAttribute("aria-label", texts.button_close);
            this.texts = texts;
        }

        // Puts the bar below the generate box, wherever the host's layout has it, and nowhere twice.
        place() {
            const box = guard.fields.find(this.tab + "_generate_box");
            if (!box) return false;
            if (box.nextElementSibling !== this.box) box.insertAdjacentElement("afterend", this.box);
            const page = gradioApp().querySelector(".gradio-container") || document.body;
            for (const pop of [this.phases, this.panel]) if (pop.parentElement !== page) page.append(pop);
            return true;
        }

        isShown() {
            return this.box.isConnected && this.box.getClientRects().length > 0;
        }

        show(answer) {
            this.box.hidden = answer.mode === "off";
            if (this.box.dataset.verdict !== answer.verdict) {
                if (this.box.dataset.verdict) this.tell(answer.status_text);
                this.box.dataset.verdict = answer.verdict;
            }
            if (this.html !== answer.bar_html) this.replaceLine(answer.bar_html);
            if (this.picture.innerHTML !== answer.phases_html) this.replacePicture(answer.phases_html);
        }

        // For screen readers: heard once, then gone, so that no old figure is found later.
        tell(text) {
            this.status.textContent = text;
            clearTimeout(this.telling);
            this.telling = setTimeout(() => this.status.replaceChildren(), HEARD_MS);
        }

        replaceLine(html) {
            const focused = this.line.contains(this.active()) ? this.active().className : null;
            this.html = html;
            this.line.innerHTML = html;
            const opener = this.line.querySelector(".vg-open");
            if (opener) {
                opener.setAttribute("aria-expanded", String(!this.phases.hidden));
                opener.setAttribute("aria-controls", this.phases.id);
            }
            const again = focused && this.line.querySelector("." + focused.split(" ")[0]);
            if (focused) (again || opener || this.line).focus({preventScroll: true});
        }

        replacePicture(html) {
            const rows = Array.from(this.picture.querySelectorAll(".vg-row"));
            const at = rows.indexOf(this.active());
            this.picture.innerHTML = html;
            const row = at < 0 ? null : this.picture.querySelectorAll(".vg-row")[at];
            if (row) row.focus({preventScroll: true});
        }

        active() {
            const root = this.box.getRootNode();
            return root.activeElement || document.activeElement;
        }

        // A quiet line without a verdict: the server is away, or refuses.
        showTrouble(text) {
            const shown = `? ${text}`;
            if (this.html === shown) return;
            this.html = shown;
            this.box.dataset.verdict = "unknown";
            const sign = element("span", "vg-sign", {"aria-hidden": "true"});
            sign.textContent = "?";
            const reason = element("span", "vg-reason");
            reason.textContent = text;
            const line = element("span", "vg-open vg-trouble");
            line.append(sign, reason);
            this.line.replaceChildren(line);
        }

        toggle(open) {
            this.phases.hidden = open === undefined ? !this.phases.hidden : !open;
            const opener = this.line.querySelector("button.vg-open");
            if (opener) opener.setAttribute("aria-expanded", String(!this.phases.hidden));
            this.layOut();
        }

        ask(html) {
            this.toggle(false);
            this.panel.innerHTML = html;
            this.panel.hidden = false;
            const sentence = this.panel.querySelector(".vg-ask-sentence");
            sentence.id = this.panel.id + "_sentence";
            this.panel.setAttribute("aria-describedby", sentence.id);
            this.layOut();
            const first = this.panel.querySelector("[data-act=fix-run]") || this.panel.querySelector("[data-act=run]");
            if (first) first.focus();
        }

        isAsking() {
            return !this.panel.hidden;
        }

        closeAsk() {
            this.panel.hidden = true;
            this.panel.replaceChildren();
        }

        // The line stays as an empty one when it has nothing to say, so that no slider moves under the hand.
        showChanged(text, undo) {
            this.changed.style.minHeight = text ? "" : `${this.changed.getBoundingClientRect().height}px`;
            this.changed.hidden = !text && this.changed.hidden;
            this.changed.classList.toggle("vg-said", Boolean(text));
            const line = element("span", "vg-changed-text");
            line.textContent = line.title = text;
            this.changed.replaceChildren(line);
            if (!undo) return;
            const button = element("button", "vg-button vg-undo", {type: "button", "data-act": "undo"});
            button.textContent = this.texts.button_undo;
            this.changed.append(button);
        }

        forgetChanged() {
            this.changed.hidden = true;
        }

        layOut() {
            const bar = this.box.getBoundingClientRect();
            for (const pop of [this.phases, this.panel]) {
                if (pop.hidden || !pop.offsetParent) continue;
                const page = pop.offsetParent.getBoundingClientRect();
                const right = Math.max(bar.right, pop.offsetWidth + EDGE);
                const left = Math.max(EDGE, Math.min(right, window.innerWidth - EDGE) - pop.offsetWidth);
                pop.style.left = `${left - page.left}px`;
                pop.style.top = `${bar.bottom + GAP - page.top}px`;
            }
        }

        clicked(event) {
            const button = event.target.closest("button");
            if (!button) return;
            if (button.classList.contains("vg-open")) this.opened(event.detail === 0);
            else if (button.dataset.act === "close") this.close();
            else if (button.dataset.act) this.act(button.dataset.act);
        }

        // Opened by key, the focus goes in: what opens stands at the end of the page, many stops away.
        opened(byKey) {
            this.toggle();
            if (byKey && !this.phases.hidden) this.closeButton.focus({preventScroll: true});
        }

        // Leaving what is open by Tab, at either end, leads back to the bar.
        leaveByTab(event) {
            if (event.key !== "Tab" || this.phases.hidden) return;
            const rows = this.picture.querySelectorAll(".vg-row");
            const end = event.shiftKey ? this.closeButton : rows[rows.length - 1] || this.closeButton;
            if (this.active() !== end) return;
            event.preventDefault();
            this.focus();
        }

        close() {
            this.toggle(false);
            this.focus();
        }

        focus() {
            const opener = this.line.querySelector("button.vg-open");
            if (opener) opener.focus();
        }
    }

    guard.Bar = Bar;
})();
