"""Lets the page see what a generation raised, on hosts that drop it.

reForge and Forge Classic run the page's generations on their main thread. Its loop prints what one raises and goes
on; the page's side gets ``None`` instead of a result and shows ``TypeError: 'NoneType' object is not iterable``.
Here the exception is handed over: it is raised again where the result was waited for, as if nothing had been between.

Beside that every generation that fails for want of memory, over the API too, gets one sentence on where and at which
size it did. Its frames are cleared before it travels on: they keep the tensors of the failed step alive.
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any, get_args

from lib_vram.estimate.result import PhaseName, phase_name
from lib_vram.guard.fail_open import fail_open
from lib_vram.host.patches import Patches
from lib_vram.message import render, say

logger = logging.getLogger("vram_guard")

Language = Callable[[], str]
Told = Callable[[str, Any], object]
"""Takes the text of a failure, traceback included, and the processing object whose run it ended."""
SHOWN_BY = ("modules.txt2img", "modules.img2img")
"""Modules whose functions' results the page shows; what others drop stays as the host has it."""
MEMORY_KINDS = ("gpu_memory", "host_memory")
_MARK = "vram_guard_told"
_KEPT = "vram_guard_kept"


def tell_the_cause(patches: Patches, language: Language, told: Told) -> None:
    """Wrap, through ``patches``, where the host drops an exception and where a generation is computed."""
    from modules_forge import main_thread

    patches.set_attribute(main_thread, "run_and_wait_result", _handing_over(main_thread.run_and_wait_result))
    explain_failures(patches, language, told)


def explain_failures(patches: Patches, language: Language, told: Told) -> None:
    """Wrap, through ``patches``, where a generation is computed.

    ``told`` hears of every failure, since these hosts keep none; failures about memory say where they came.
    """
    from modules import processing

    patches.set_attribute(
        processing, "process_images_inner", _explaining(processing.process_images_inner, language, told)
    )


def _handing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the host's function that waits for a result on the main thread, with what the work raised."""

    @functools.wraps(original)
    def run_and_wait_result(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if getattr(function, "__module__", "") not in SHOWN_BY:
            return original(function, *arguments, **named)
        raised: list[Exception] = []

        @functools.wraps(function)
        def remembering(*inner: Any, **inner_named: Any) -> Any:
            try:
                return function(*inner, **inner_named)
            except Exception as fault:
                raised.append(fault)
                raise

        result = original(remembering, *arguments, **named)
        if not raised:
            return result
        fault = raised.pop()
        traceback.clear_frames(fault.__traceback__)
        raise fault

    return run_and_wait_result


def _explaining(original: Callable[..., Any], language: Language, told: Told) -> Callable[..., Any]:
    @functools.wraps(original)
    def process_images_inner(p: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(p, *arguments, **named)
        except Exception as fault:
            _pass_on(fault, p, told)
            _explain(fault, p, language)
            raise

    return process_images_inner


@fail_open(instead=lambda *_: None)
def _pass_on(fault: Exception, p: Any, told: Told) -> None:
    """Tell of ``fault`` once, however many runs inside each other it ends."""
    if not getattr(fault, _KEPT, False):
        setattr(fault, _KEPT, True)
        told("".join(traceback.format_exception(type(fault), fault, fault.__traceback__)), p)


@fail_open(instead=lambda *_: None)
def _explain(fault: Exception, p: Any, language: Language) -> None:
    """Add to the text of ``fault``, when it is about memory, where and at which size it came; log that as well."""
    if getattr(fault, _MARK, False):
        return
    from lib_vram.diagnosis.diagnosis import diagnose
    from lib_vram.diagnosis.phase import phase_of

    if diagnose(f"{type(fault).__name__}: {fault}").kind not in MEMORY_KINDS:
        return
    setattr(fault, _MARK, True)
    spoken = language()
    phase = phase_of("".join(traceback.format_exception(type(fault), fault, fault.__traceback__)), "")
    size = {"width": int(p.width), "height": int(p.height), "batch_size": int(p.batch_size)}
    named = next((name for name in get_args(PhaseName) if name == phase), None)
    where = phase_name(named, spoken) if named else ""
    key = "guard.failed_in" if where else "guard.failed_at"
    line = render(say(key, phase=where, **size), spoken)
    logger.error("%s %s: %s", line, type(fault).__name__, str(fault))  # a text: a log that keeps records pins no frames
    if fault.args and isinstance(fault.args[0], str):
        fault.args = (f"{fault.args[0]}\n{line}", *fault.args[1:])
