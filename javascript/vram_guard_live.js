// The tab's sections "Now" and "Programs on the card": asks once a second while one of them is looked at, and draws.
(function() {
    "use strict";
    const guard = window.vramGuard = window.vramGuard || {};
    const EVERY_MS = 1000;
    const AWAY_MS = 5000; // how long a server that did not answer is left alone
    const FREE_WAIT_MS = 120000; // moving many GiB to a slow computer's RAM
    const KEPT_SECONDS = 620; // a little more than the longest window
    const GAP_SECONDS = 5; // nobody looked for so long: the curve does not pretend to know
    const GIB = 1024 ** 3;
    const HEIGHT = 180;
    const LAST_RUN = 0; // in place of seconds: the latest generation
    const LABEL_ROOM = 70; // pixels that the name of a phase takes
    const SVG = "http://www.w3.org/2000/svg";
    const [USED, RESERVED, ALLOCATED, OTHERS] = [1, 2, 3, 4]; // places in a sample; 0 is the time

    let samples = [];
    let latest = null;
    let asking = null; // the request under way
    let notBefore = 0;
    let wanted = null; // the process that the open question is about
    let chosenWindow = null; // seconds, once a person has chosen

    function root(name) {
        return gradioApp().querySelector(`#vram_guard_tab [data-${name}-root]`);
    }

    function part(name, section) {
        const found = root(section || "live");
        return found ? found.querySelector(`[data-${section || "live"}="${name}"]`) : null;
    }

    // What a folded section holds keeps its boxes in today's browsers, so the fold itself is asked.
    function isSeen(element) {
        return element !== null && element.getClientRects().length > 0 && !element.closest("details:not([open])");
    }

    function svg(name, attributes, text) {
        const made = document.createElementNS(SVG, name);
        for (const key in attributes) made.setAttribute(key, attributes[key]);
        if (text !== undefined) made.textContent = text;
        return made;
    }

    function setText(element, text) {
        if (element && element.textContent !== text) element.textContent = text;
    }

    // asking

    async function look() {
        if (document.hidden || asking || Date.now() < notBefore) return;
        if (!isSeen(root("live")) && !isSeen(root("processes"))) return;
        asking = request();
        await asking;
        asking = null;
    }

    async function request() {
        try {
            const since = samples.length ? samples[samples.length - 1][0] : 0;
            const response = await guard.server.get("live", {since: since});
            if (response.status !== 200) throw new Error(response.body.error);
            accept(response.body);
        } catch (error) {
            notBefore = Date.now() + AWAY_MS; // the server is away or refuses: said in the section
            const paused = part("paused");
            if (paused) setText(part("summary"), paused.textContent);
        }
    }

    function accept(answer) {
        latest = answer;
        const now = answer.curve.now;
        samples = samples.concat(answer.curve.samples).filter(sample => sample[0] > now - KEPT_SECONDS);
        draw();
    }

    function draw() {
        if (!latest) return;
        if (isSeen(root("live"))) drawLive();
        if (isSeen(root("processes"))) drawProcesses();
    }

    // now

    function drawLive() {
        setText(part("summary"), latest.summary);
        setLines(part("warnings"), latest.warnings, "p");
        setLines(part("notes"), latest.notes, "li");
        setText(part("pieces"), latest.pieces);
        part("pieces").hidden = !latest.pieces;
        drawBar(part("bar"));
        setRows(part("owners"), latest.owners, ownerRow);
        part("owners").closest("table").hidden = !latest.owners.length;
        drawCurve(part("curve"));
        drawSystem(part("system"));
        setRows(part("phases"), latest.phases, phaseRow);
        part("phases").closest("table").hidden = !latest.phases.length;
        part("phases-none").hidden = latest.phases.length > 0;
    }

    function changed(element, data) {
        const print = JSON.stringify(data);
        if (element.dataset.print === print) return false;
        element.dataset.print = print;
        return true;
    }

    function setLines(element, lines, name) {
        if (!changed(element, lines)) return;
        element.replaceChildren(...lines.map(line => {
            const made = document.createElement(name);
            made.textContent = line;
            return made;
        }));
    }

    function setRows(body, rows, make) {
        if (changed(body, rows)) body.replaceChildren(...rows.map(make));
    }

    function cell(name, text) {
        const made = document.createElement(name);
        if (name === "th") made.scope = "row";
        made.textContent = text;
        return made;
    }

    function row(heading, texts) {
        const made = document.createElement("tr");
        made.append(cell("th", heading), ...texts.map(text => cell("td", text)));
        return made;
    }

    function ownerRow(owner, place) {
        const made = row(owner.label, [owner.shown, owner.share]);
        const swatch = document.createElement("i");
        swatch.className = `vg-swatch vg-live-${owner.kind}`;
        swatch.style.opacity = strength(owner, place);
        made.firstChild.prepend(swatch);
        return made;
    }

    // Several owners of one kind, such as the models, are told apart by their strength.
    function strength(owner, place) {
        const before = latest.owners.slice(0, place).filter(other => other.kind === owner.kind).length;
        return String([1, 0.75, 0.55, 0.4][Math.min(before, 3)]);
    }

    function phaseRow(phase) {
        return row(phase.label, [phase.at, phase.highest, phase.predicted]);
    }

    function drawSystem(list) {
        const rows = latest.card.concat(latest.system);
        if (!changed(list, rows)) return;
        list.replaceChildren(...rows.flatMap(item => [cell("dt", item.label), cell("dd", item.shown)]));
    }

    function drawBar(place) {
        const total = latest.total_bytes;
        place.hidden = !total || !latest.owners.length;
        if (place.hidden || !changed(place, latest.owners)) return;
        const drawing = svg("svg", {viewBox: "0 0 1000 28", preserveAspectRatio: "none", focusable: "false"});
        let left = 0;
        latest.owners.forEach((owner, index) => {
            const width = 1000 * owner.bytes / total;
            const box = svg("rect", {x: left, y: 2, width: width, height: 24, class: `vg-fill vg-live-${owner.kind}`});
            box.style.opacity = strength(owner, index);
            box.append(svg("title", {}, `${owner.label}: ${owner.shown}`));
            drawing.append(box);
            left += width;
            drawing.append(svg("line", {x1: left, x2: left, y1: 2, y2: 26, class: "vg-live-between"}));
        });
        place.replaceChildren(drawing);
    }

    // the curve: steps, because a reading says nothing about the time before it

    function drawCurve(place) {
        const width = Math.floor(place.clientWidth);
        const curve = latest.curve;
        place.hidden = samples.every(sample => sample[USED] === null && sample[RESERVED] === null);
        if (place.hidden || width < 50) return;
        const chooser = part("window");
        if (chooser && chosenWindow === null) chooser.value = String(curve.seconds);
        const [seconds, until] = span(curve);
        const shown = samples.filter(sample => sample[0] >= until - seconds - GAP_SECONDS && sample[0] <= until);
        const levels = Object.values(curve.predicted);
        const top = Math.max(latest.total_bytes || 0, ...shown.map(sample => sample[USED] || sample[RESERVED] || 0), ...levels) * 1.06 || 1;
        const scale = {
            x: at => width * (1 - (until - at) / seconds),
            y: bytes => HEIGHT - HEIGHT * bytes / top,
        };
        const drawing = svg("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, width: width, height: HEIGHT, focusable: "false"});
        for (const [name, value] of Object.entries(BANDS)) {
            drawing.append(svg("path", {d: area(shown, value, scale, until), class: `vg-fill vg-live-${name}`}));
        }
        drawEdge(drawing, scale, width);
        drawMarks(drawing, scale, width, curve);
        drawPredicted(drawing, scale, width, curve);
        place.replaceChildren(drawing);
    }

    // Returns the seconds that are shown and the moment at the right edge: of the latest generation, or up to now.
    function span(curve) {
        if (chosenWindow !== LAST_RUN || !curve.run) return [chosenWindow || curve.seconds, curve.now];
        const end = curve.run[1] || curve.now;
        const margin = Math.max(0.2, (end - curve.run[0]) * 0.04);
        return [end - curve.run[0] + 2 * margin, end + margin];
    }

    // What lies under each line, drawn from the highest to the lowest; null where it is not known.
    const BANDS = {
        reserved: sample => sample[USED] === null ? sample[RESERVED] : sample[USED],
        allocated: sample => {
            if (sample[ALLOCATED] === null) return null;
            const cache = sample[RESERVED] - sample[ALLOCATED];
            return sample[USED] === null ? sample[ALLOCATED] : sample[USED] - cache;
        },
        others: sample => sample[USED] === null ? null : sample[OTHERS],
    };

    function area(shown, value, scale, now) {
        const pieces = [];
        let steps = [];
        const close = until => {
            if (steps.length) {
                pieces.push(`M${steps[0][0].toFixed(1)},${HEIGHT}` + steps.map(
                    ([x, y]) => `V${y.toFixed(1)}H${x.toFixed(1)}V${y.toFixed(1)}`).join("") + `H${until.toFixed(1)}V${HEIGHT}Z`);
            }
            steps = [];
        };
        let last = 0;
        for (const sample of shown) {
            const bytes = value(sample);
            if (bytes === null || (steps.length && sample[0] - last > GAP_SECONDS)) close(scale.x(last));
            if (bytes === null) continue;
            const x = Math.max(0, scale.x(sample[0]));
            if (steps.length) steps.push([x, steps[steps.length - 1][1]]);
            steps.push([x, scale.y(bytes)]);
            last = sample[0];
        }
        close(now - last > GAP_SECONDS ? scale.x(last) : scale.x(now));
        return pieces.join("");
    }

    function drawEdge(drawing, scale, width) {
        if (!latest.total_bytes) return;
        const y = scale.y(latest.total_bytes);
        drawing.append(svg("line", {x1: 0, x2: width, y1: y, y2: y, class: "vg-live-edge-line"}));
        drawing.append(svg("text", {x: 4, y: y + 13, class: "vg-live-word"}, gib(latest.total_bytes)));
    }

    function gib(bytes) {
        return `${(bytes / GIB).toFixed(1)} GiB`;
    }

    function drawMarks(drawing, scale, width, curve) {
        let free = -LABEL_ROOM;
        for (const mark of curve.marks) {
            const x = scale.x(mark.at);
            if (x < 0 || x > width) continue;
            drawing.append(svg("line", {x1: x, x2: x, y1: 0, y2: HEIGHT, class: `vg-live-mark vg-live-mark-${mark.name}`}));
            if (!mark.label || x - free < LABEL_ROOM) continue;
            free = x;
            const late = x > width - LABEL_ROOM;
            const word = {x: late ? x - 3 : x + 3, y: HEIGHT - 6, class: "vg-live-word"};
            drawing.append(svg("text", late ? {...word, "text-anchor": "end"} : word, mark.label));
        }
    }

    function drawPredicted(drawing, scale, width, curve) {
        if (!curve.run) return;
        const [begin, end] = curve.run;
        const phases = curve.marks.filter(mark => mark.at >= begin && mark.name in curve.predicted);
        let highest = null;
        phases.forEach((mark, place) => {
            const next = phases[place + 1];
            const until = next ? next.at : end || curve.now;
            const [left, right] = [scale.x(mark.at), scale.x(until)];
            if (right < 0) return;
            const level = curve.predicted[mark.name];
            const y = scale.y(level);
            drawing.append(svg("line", {x1: Math.max(0, left), x2: Math.max(left + 4, right), y1: y, y2: y, class: "vg-live-predicted-line"}));
            if (highest === null || level > highest.level) highest = {level: level, x: left, y: y};
        });
        if (highest === null) return;
        const late = highest.x > width - 2 * LABEL_ROOM;
        const word = {x: Math.max(2, highest.x) + (late ? -4 : 4), y: Math.max(11, highest.y - 4), class: "vg-live-word"};
        drawing.append(svg("text", late ? {...word, "text-anchor": "end"} : word, gib(highest.level)));
    }

    // programs

    function drawProcesses() {
        const {rows, note, has_shared: hasShared} = latest.processes;
        setText(part("note", "processes"), note);
        part("note", "processes").hidden = !note;
        part("table", "processes").hidden = !rows.length;
        hideColumn("shared", !hasShared);
        hideColumn("action", rows.every(item => !item.end));
        const body = part("rows", "processes");
        if (!changed(body, rows)) return;
        const focused = body.contains(document.activeElement) ? document.activeElement.dataset.end : null;
        body.replaceChildren(...rows.map(item => processRow(item, hasShared, rows.some(other => other.end))));
        const again = focused && body.querySelector(`button[data-end="${CSS.escape(focused)}"]`);
        if (again) again.focus({preventScroll: true});
    }

    function hideColumn(name, hidden) {
        const head = root("processes").querySelector(`[data-processes-head="${name}"]`);
        if (head) head.hidden = hidden;
    }

    function processRow(item, hasShared, hasAction) {
        const made = row(item.name, [item.what, String(item.pid), item.shown]);
        made.dataset.kind = item.kind;
        if (hasShared) made.append(cell("td", item.shared));
        if (!hasAction) return made;
        const last = cell("td", "");
        if (item.end) {
            const button = document.createElement("button");
            button.type = "button";
            button.className = "vg-button";
            button.dataset.end = item.key;
            button.textContent = item.end;
            button.setAttribute("aria-label", item.question);
            last.append(button);
        }
        made.append(last);
        return made;
    }

    function ask(key) {
        wanted = latest.processes.rows.find(item => item.key === key) || null;
        const question = part("question", "processes");
        question.hidden = wanted === null;
        if (wanted === null) return;
        setText(part("question-title", "processes"), wanted.question);
        setText(part("answer", "processes"), "");
        question.querySelector("[data-end-cancel]").focus();
    }

    function cancel() {
        const key = wanted ? wanted.key : "";
        wanted = null;
        part("question", "processes").hidden = true;
        const button = root("processes").querySelector(`button[data-end="${CSS.escape(key)}"]`);
        if (button) button.focus();
    }

    async function end() {
        if (!wanted) return;
        const {pid, started} = wanted;
        wanted = null;
        part("question", "processes").hidden = true;
        const answer = part("answer", "processes");
        answer.focus();
        try {
            const response = await guard.server.post("end-process", {pid: pid, started: started});
            setText(answer, response.body.text || response.body.error || "");
        } catch (error) {
            setText(answer, guard.texts.bar_offline || ""); // the server is away
        }
        notBefore = 0;
        look();
    }

    function clicked(event) {
        const button = event.target.closest && event.target.closest("#vram_guard_tab [data-processes-root] button");
        if (!button) return;
        if (button.dataset.end) ask(button.dataset.end);
        else if ("endGo" in button.dataset) end();
        else if ("endCancel" in button.dataset) cancel();
    }

    function pressed(event) {
        if (event.key === "Escape" && wanted && root("processes").contains(event.target)) cancel();
    }

    // The bar's own button, where memory in pieces is all that stands in the way; what came of it is said under the bar.
    async function freeFor(state) {
        try {
            const response = await guard.server.post("free", {level: "models"}, FREE_WAIT_MS);
            state.said(response.body.summary || response.body.error || "", null);
        } catch (error) {
            state.said(guard.texts.bar_offline || "", null);
        }
        state.askedAt = 0;
        state.look();
    }

    function chose(event) {
        if (!event.target.matches || !event.target.matches('[data-live="window"]')) return;
        chosenWindow = Number(event.target.value);
        draw();
    }

    // Resolves once no request is under way.
    async function idle() {
        await asking;
    }

    guard.live = {look, draw, idle, freeFor};
    onUiLoaded(() => {
        const page = gradioApp();
        page.addEventListener("click", clicked);
        page.addEventListener("keydown", pressed);
        page.addEventListener("change", chose);
        window.addEventListener("resize", draw);
        setInterval(look, EVERY_MS);
    });
})();
