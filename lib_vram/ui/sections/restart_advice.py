"""Restart advice: the flags that would help this request, what each would change, and the lines to copy.

The frame is the same whatever happens; the page's script asks for the inside with the fields as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from lib_vram.message import render, say, sentence
from lib_vram.plan.advice import Advice, needs_bytes
from lib_vram.plan.launch_lines import Lines
from lib_vram.request import Request
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.view import SIGNS
from lib_vram.ui.words import Words, figure

NAME = "restart_advice"
FILES = {"bat": "webui-user.bat", "sh": "webui-user.sh"}


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame with what stands in it until the page has asked."""
    waiting = tag("p", sentence("advice.waiting", language), class_="vg-soft")
    return tag("div", waiting, data_advice=True)


def advice_html(
    request: Request, advice: Sequence[Advice], verdict: str, language: str, *, windows: bool, only_memory: bool = False
) -> Html:
    """Return the inside: one block for each advice, the most useful first; or that none is needed or none helps.

    ``only_memory`` says that the lines hold no other flags, because strangers may see this page.
    """
    if not advice:
        return tag("p", sentence(f"advice.none_{_none(verdict)}", language), class_="vg-soft")
    blocks = (_block(item, place, language, windows=windows) for place, item in enumerate(advice))
    parts = [
        tag("p", sentence("advice.intro_quicker" if verdict == "fits" else "advice.intro", language)),
        tag("ol", *blocks, class_="vg-advice"),
        tag("p", render(say("advice.where", host=_folder(request)), language), class_="vg-soft"),
    ]
    if only_memory:
        parts.insert(1, tag("p", sentence("advice.only_memory", language), class_="vg-ram"))
    return join(*parts)


def _none(verdict: str) -> str:
    return "needed" if verdict == "fits" else "helps"


def _folder(request: Request) -> str:
    return {"a1111": "stable-diffusion-webui", "forge": "stable-diffusion-webui-forge"}.get(request.host, "WebUI")


def _block(item: Advice, place: int, language: str, *, windows: bool) -> Html:
    title_id = f"vram_guard_advice_{place}"
    parts = [
        tag("h3", item.name, id=title_id, class_="vg-advice-name"),
        tag("p", *_effect(item, language), class_="vg-effect"),
        *(tag("p", render(text, language)) for text in item.texts),
    ]
    if item.ram is not None:
        parts.append(tag("p", "⚠ ", render(item.ram, language), class_="vg-ram"))
    here, elsewhere = ("bat", "sh") if windows else ("sh", "bat")
    parts.append(_lines(here, item.lines, language))
    if getattr(item.lines, elsewhere):
        parts.append(tag("details", tag("summary", FILES[elsewhere]), _lines(elsewhere, item.lines, language)))
    if item.lines.hides:
        parts.append(tag("p", render(say("advice.hidden", flags=", ".join(item.lines.hides)), language)))
    return tag("li", *parts, aria_labelledby=title_id)


def _effect(item: Advice, language: str) -> list[Html]:
    """Return ``✕ won't fit 9.4 → ✓ fits 5.6 GiB`` with what it costs."""
    words = Words(language)
    parts = [_verdict(item.before.verdict, needs_bytes(item.before), words), tag("span", "→", class_="vg-soft")]
    parts.append(_verdict(item.after.verdict, needs_bytes(item.after), words))
    parts.append(tag("span", words(f"cost_{item.costs}"), class_=f"vg-cost vg-cost-{item.costs}"))
    return parts


def _verdict(verdict: str, size_bytes: int, words: Words) -> Html:
    children = [
        tag("span", SIGNS[verdict], class_="vg-sign", aria_hidden="true"),  # type: ignore[index]
        tag("span", words(f"verdict_{verdict}"), class_="vg-word"),
        tag("span", f" {figure(size_bytes)} GiB", class_="vg-figure"),
    ]
    return tag("span", *children, data_verdict=verdict)


def _lines(name: str, lines: Lines, language: str) -> Html:
    """Return the lines for one file with a button that copies them."""
    text = "\n".join(getattr(lines, name))
    button = tag(
        "button", sentence("advice.copy", language), type="button", class_="vg-button", data_copy_lines=True,
        data_copied=sentence("advice.copied", language),
        aria_label=render(say("advice.copy_for", file=FILES[name]), language),
    )  # fmt: skip
    label = tag("span", FILES[name], class_="vg-file")
    code = tag("pre", tag("code", text), class_="vg-lines", tabindex="0", aria_label=FILES[name], role="group")
    return tag("div", tag("div", label, button, class_="vg-lines-head"), code, class_="vg-lines-block")
