"""Recover: latents of runs that were cut off, to be decoded now; the frame stays, the list changes."""

from __future__ import annotations

import time

from lib_vram.guard.kept_latents import Kept, kept_latents
from lib_vram.host.rescue_latents import Recovered
from lib_vram.message import render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag

NAME = "recover"
LIST = "recover_list"
PROMPT_LIMIT = 60


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame: what it is for, the list's place and the answer's."""
    intro = tag("p", sentence("rescue.recover_intro", language), class_="vg-soft")
    if guard.host.is_open_to_others():
        return join(intro, tag("p", sentence("free.off_open", language), class_="vg-soft"))
    answer = tag("p", data_recover_answer=True, role="status", aria_live="polite", tabindex="-1")
    working = tag("span", sentence("rescue.recover_working", language), data_recover_working=True, hidden=True)
    return join(intro, tag("div", data_inside=LIST), answer, working)


def parts(guard: GuardLike, language: str) -> dict[str, str]:
    """Return the list of what is waiting, by the name of its place; prompts are no business of other machines."""
    if guard.host.is_open_to_others():
        return {}
    return {LIST: list_html(kept_latents().left(), language)}


def list_html(left: list[Kept], language: str) -> Html:
    """Return what is waiting, newest first, each with its two buttons."""
    if not left:
        return tag("p", sentence("rescue.recover_none", language), class_="vg-soft")
    return tag("ul", *(_item(kept, language) for kept in left), class_="vg-list")


def _item(kept: Kept, language: str) -> Html:
    said = f"vram_guard_recover_{kept.id}"
    prompt = kept.prompt if len(kept.prompt) <= PROMPT_LIMIT else kept.prompt[: PROMPT_LIMIT - 1] + "…"
    text = say(
        "rescue.recover_item", when=time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.at)), count=kept.count,
        width=kept.width, height=kept.height, model=kept.model, prompt=prompt,
    )  # fmt: skip
    buttons = (
        tag(
            "button",
            sentence(f"rescue.recover_{name}", language),
            type="button",
            class_="vg-button",
            aria_describedby=said,
            data_recover=action,
            data_recover_id=kept.id,
        )
        for name, action in (("button", "recover"), ("delete", "recover-delete"))
    )
    return tag("li", tag("span", render(text, language), id=said), " ", *buttons)


def done_text(recovered: Recovered, language: str) -> str:
    """Return what came of recovering."""
    text = say("rescue.recover_done", count=len(recovered.files), files=", ".join(recovered.files))
    return render(text, language)
