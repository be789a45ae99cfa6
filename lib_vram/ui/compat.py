"""The one place where gradio 3.41 and 4.40 differ for us."""

from __future__ import annotations

from typing import Any

import gradio as gr

IS_GRADIO_3 = gr.__version__.startswith("3.")


def script(code: str) -> dict[str, str]:
    """Return the keyword that runs ``code`` in the page on an event: ``_js`` in gradio 3, ``js`` in gradio 4."""
    return {"_js": code} if IS_GRADIO_3 else {"js": code}


def gallery(**options: Any) -> gr.Gallery:
    """Return a gallery that keeps the pictures as they are, without a download of ours in between."""
    return gr.Gallery(**options)


def queue(blocks: gr.Blocks) -> None:
    """Let handlers report while they run: gradio 3 asks for the queue, gradio 4 has it."""
    if IS_GRADIO_3:
        blocks.queue(concurrency_count=2, api_open=False)
    else:
        blocks.queue(default_concurrency_limit=2, api_open=False)
