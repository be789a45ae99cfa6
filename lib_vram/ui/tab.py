"""The tab *VRAM Guard*: a frame that the page's script fills with the sections."""

from __future__ import annotations

import gradio as gr

from lib_vram.ui.html import tag

TITLE = "VRAM Guard"
ELEM_ID = "vram_guard"


def on_ui_tabs() -> list[tuple[gr.Blocks, str, str]]:
    """Return the tab as the host's callback of the same name wants it."""
    with gr.Blocks(analytics_enabled=False) as blocks:
        build()
    return [(blocks, TITLE, ELEM_ID)]


def build() -> None:
    """Create the tab's components in the current gradio context.

    The frame is empty: the sections come with the first look at the tab, in the page's language, so that the
    start of the WebUI waits for none of what they need.
    """
    gr.HTML(tag("div", class_="vg vg-tab"), elem_id="vram_guard_tab")
