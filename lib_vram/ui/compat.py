"""The one place where gradio 3.41 and 4.40 differ for us."""

from __future__ import annotations

import gradio as gr

IS_GRADIO_3 = gr.__version__.startswith("3.")


def queue(blocks: gr.Blocks) -> None:
    """Let handlers report while they run: gradio 3 asks for the queue, gradio 4 has it."""
    if IS_GRADIO_3:
        blocks.queue(concurrency_count=2, api_open=False)
    else:
        blocks.queue(default_concurrency_limit=2, api_open=False)
