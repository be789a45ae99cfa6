"""Lets the page of Forge Neo say what ran out where: by itself it shows ``OOM`` and nothing else.

Neo keeps one text of the last failure. It is ``OOM`` for every one about memory, the page shows it, and a step behind
the page's run unloads the checkpoint when it finds that very text. Here that step is done first, by Neo's own
function, and the text is then the whole one. Where Neo has no such function its text is left alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from lib_vram.guard.fail_open import fail_open
from lib_vram.host.patches import Patches
from lib_vram.host.swallowed import SHOWN_BY, Language, Told, explain_failures

NEOS_WORD = "OOM"


def show_the_cause(patches: Patches, language: Language, told: Told) -> None:
    """Wrap, through ``patches``, where Neo computes a generation and where the page waits for it."""
    from modules_forge import main_thread

    explain_failures(patches, language, told)
    patches.set_attribute(main_thread, "run_and_wait_result", _telling(main_thread.run_and_wait_result))


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return Neo's function that waits for its main thread, with the whole text of what the work raised."""

    @functools.wraps(original)
    def run_and_wait_result(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if getattr(function, "__module__", "") not in SHOWN_BY:
            return original(function, *arguments, **named)
        texts: list[str] = []

        @functools.wraps(function)
        def remembering(*inner: Any, **inner_named: Any) -> Any:
            try:
                return function(*inner, **inner_named)
            except Exception as fault:
                texts.append(f"{type(fault).__name__}: {fault}")
                raise

        result = original(remembering, *arguments, **named)
        if texts:
            _tell(texts[-1])
        return result

    return run_and_wait_result


@fail_open(instead=lambda *_: None)
def _tell(text: str) -> None:
    """Unload as Neo would have done because of its own word, then put ``text`` in the word's place."""
    from modules_forge import main_thread

    unload = getattr(sys.modules.get("modules.ui"), "cleanup", None)
    if main_thread.last_exception == NEOS_WORD and unload is not None:
        unload()
        main_thread.last_exception = text
