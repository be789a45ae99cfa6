"""Compares what the tracer makes of a host's loaded model with the shipped profiles, inside the host.

Put this file into the ``scripts`` folder of an extension of its own, beside VRAM Guard; after a model
is loaded, its lines are in the host's log. For people who have a host; the tests do not run it.
"""

# ruff: noqa: T201
from __future__ import annotations

import threading
import time
from typing import Any

SIZES = ((2, 64, 64), (2, 128, 128), (4, 96, 64), (1, 64, 96))


def compare(sd_model: Any) -> None:
    """Print one line for each part of the loaded model: equal or the figures of both, and the seconds it took."""
    from lib_vram import callbacks
    from lib_vram.host import measuring, tracing
    from lib_vram.physics.profile import load

    guard = callbacks.guard()
    patience = tracing.Patience(measuring.is_generating, lambda: False)
    patience.wait_until_idle()
    model = measuring.loaded_of(guard.host)
    for name, part, dtype in model.wanted():
        started, computed = time.monotonic(), time.thread_time()
        try:
            made = tracing.trace_part(name, part, dtype, patience)[0]
        except tracing.GivenUp as fault:
            print(f"[traced] {name}: given up: {fault}", flush=True)
            continue
        took = f"{time.thread_time() - computed:.1f} s of computing in {time.monotonic() - started:.1f} s"
        shipped = load(name)
        differ = [] if shipped is None else list(differences(made, shipped, model.style))
        print(f"[traced] {name}: {'not shipped' if shipped is None else differ or 'equal'}, {took}", flush=True)


def differences(made: Any, shipped: Any, style: str) -> Any:
    """Yield the sizes and ways of attention at which the two profiles need different memory, with their figures."""
    from lib_vram.physics.allocator import AllocatorConf
    from lib_vram.physics.minimum import minimum_and_comfortable
    from lib_vram.physics.program import Setting, expand

    host = style if style == "a1111" else "forge"
    for size in SIZES:
        for way in ("sdpa", "xformers", "math", "split", "sub_quad"):
            figures = []
            for profile in (made, shipped):
                trace = expand(profile, Setting(*size), way, host)
                floor = trace.floor_bytes
                figures.append((floor, trace.bare_floor_bytes, *minimum_and_comfortable(trace, AllocatorConf(), floor)))
            if figures[0] != figures[1] or made.parameters != shipped.parameters:
                yield size, way, *figures


def on_model_loaded(sd_model: Any) -> None:
    """Compare in the background."""
    threading.Thread(target=compare, args=(sd_model,), daemon=True).start()


if "script_callbacks" not in globals():
    try:
        from modules import script_callbacks
    except ImportError:
        script_callbacks = None
    if script_callbacks is not None:
        script_callbacks.on_model_loaded(on_model_loaded)
