"""Free memory and restart: two buttons to free, two to restart, and what came of it in words."""

from __future__ import annotations

from lib_vram import units
from lib_vram.host.freeing import Freed, Memory, Restarting
from lib_vram.message import Message, render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag

NAME = "free"
LOSSES = {"reload": ("queue", "fields"), "restart": ("queue", "fields", "models")}
_OWNERS = {
    "tensors": "allocated_bytes", "cache": "cache_bytes", "others": "others_bytes", "free": "free_bytes",
    "ram": "ram_bytes",
}  # fmt: skip


def html(guard: GuardLike, language: str) -> Html:
    """Return the buttons; it is the same whatever happens, so an answer that stands in it is left alone."""
    if guard.host.is_open_to_others():
        return tag("p", sentence("free.off_open", language), class_="vg-soft")
    answer = tag("div", data_free_answer=True, aria_live="polite", role="status", tabindex="-1")
    texts = (tag("span", sentence(f"free.{name}", language), data_free_text=name) for name in ("waiting", "gone"))
    return join(
        *(_choice("free", level, language) for level in ("cache", "models")),
        *(_choice("restart", how, language) for how in LOSSES),
        *(_losses(how, language) for how in LOSSES),
        answer,
        tag("div", *texts, hidden=True),
    )


def _choice(kind: str, name: str, language: str) -> Html:
    """Return one button with the sentence that says what it does."""
    said = f"vram_guard_{kind}_{name}_said"
    data = {f"data_{kind}": name}
    button = tag(
        "button", sentence(f"free.button_{name}", language), type="button", class_="vg-button",
        aria_describedby=said, **data,
    )  # fmt: skip
    explained = tag("span", sentence(f"free.{name}_explained", language), id=said, class_="vg-soft")
    return tag("p", button, " ", explained, class_="vg-choice")


def _losses(how: str, language: str) -> Html:
    """Return what is said before a restart, with the button that really does it."""
    title = tag("p", sentence("free.loss_title", language), class_="vg-label")
    items = (tag("li", sentence(f"free.loss_{name}", language)) for name in LOSSES[how])
    go = tag("button", sentence("free.button_go", language), type="button", class_="vg-button", data_restart_go=how)
    cancel = tag("button", sentence("free.button_cancel", language), type="button", class_="vg-button",
                 data_restart_cancel=how)  # fmt: skip
    return tag(
        "div", title, tag("ul", *items), tag("div", go, cancel, class_="vg-buttons"), hidden=True, role="group",
        aria_label=sentence(f"free.button_{how}", language), data_restart_ask=how,
    )  # fmt: skip


def summary(freed: Freed) -> Message:
    """Return in one sentence what freeing came to."""
    if freed.freed_bytes is None:
        return say("free.answer_cpu")
    if freed.freed_bytes == 0:
        return say("free.answer_nothing")
    return say(f"free.answer_{freed.level}", freed_bytes=freed.freed_bytes)


def freed_html(freed: Freed, language: str) -> Html:
    """Return the sentence, before and after by owner, and what stays."""
    heads = (tag("th", sentence(f"free.head_{name}", language), scope="col") for name in ("owner", "before", "after"))
    rows = [_row(owner, name, freed, language) for owner, name in _OWNERS.items() if _known(freed, name)]
    parts = [
        tag("p", render(summary(freed), language), class_="vg-summary"),
        tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="vg-table"),
    ]
    if freed.kept:
        items = (tag("li", render(item, language)) for item in freed.kept)
        parts += [tag("h4", sentence("free.kept_title", language)), tag("ul", *items)]
    return join(*parts)


def _known(freed: Freed, name: str) -> bool:
    return getattr(freed.before, name) is not None and getattr(freed.after, name) is not None


def _row(owner: str, name: str, freed: Freed, language: str) -> Html:
    cells = (tag("td", _shown(memory, name)) for memory in (freed.before, freed.after))
    return tag("tr", tag("th", sentence(f"free.owner_{owner}", language), scope="row"), *cells)


def _shown(memory: Memory, name: str) -> str:
    return units.human(int(getattr(memory, name)))


def restarting_html(result: Restarting, language: str) -> Html:
    """Return that it is under way, or the steps to do it by hand."""
    if result.steps is None:
        return tag("p", sentence("free.restarting", language), class_="vg-summary")
    title = tag("p", sentence("free.steps_title", language), class_="vg-label")
    return join(title, tag("p", render(result.steps, language)))
