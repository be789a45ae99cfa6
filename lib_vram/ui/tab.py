"""The tab *VRAM Guard*: a frame that the page's script fills with the sections."""

from __future__ import annotations

import gradio as gr

from lib_vram.ui.html import tag

TITLE = "VRAM Guard"
ELEM_ID = "vram_guard"


def on_ui_tabs() -> list[tuple[gr.HTML, str, str]]:
    """Return the tab as the host's callback of the same name wants it.

    A component by itself: the host renders it as it does a whole ``gr.Blocks``, for which gradio 4 makes
    an application of its own first.
    """
    return [(build(render=False), TITLE, ELEM_ID)]


def build(*, render: bool = True) -> gr.HTML:
    """Create the tab's component, in the current gradio context if ``render``.

    The frame is empty: the sections come with the first look at the tab, in the page's language, so that the
    start of the WebUI waits for none of what they need.
    """
    return gr.HTML(tag("div", class_="vg vg-tab"), elem_id="vram_guard_tab", render=render)
