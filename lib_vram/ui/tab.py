"""The tab *VRAM Guard*: a frame whose sections are one file each."""

from __future__ import annotations

import gradio as gr

from lib_vram.ui import sections
from lib_vram.ui.answers import GuardLike

TITLE = "VRAM Guard"
ELEM_ID = "vram_guard"


def on_ui_tabs(guard: GuardLike) -> list[tuple[gr.Blocks, str, str]]:
    """Return the tab as the host's callback of the same name wants it.

    The page's script replaces the sections when the tab is looked at, in the page's language.
    """
    with gr.Blocks(analytics_enabled=False) as blocks:
        build(guard)
    return [(blocks, TITLE, ELEM_ID)]


def build(guard: GuardLike) -> None:
    """Create the tab's components in the current gradio context."""
    gr.HTML(sections.tab_html(guard, guard.host.settings().language), elem_id="vram_guard_tab")
