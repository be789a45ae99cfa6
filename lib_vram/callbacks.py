"""Everything that VRAM Guard registers with a WebUI, in one place.

The host clears its callbacks on *Reload UI* and runs only ``scripts/`` again, while this package
stays imported: so nothing here runs at import, and :func:`register` may be called any number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from lib_vram.errors import HostFault
from lib_vram.guard.argument import TITLE
from lib_vram.guard.between import CHOICES
from lib_vram.guard.fail_open import fail_open
from lib_vram.guard.guard import Guard
from lib_vram.guard.undone import FILE, Undone
from lib_vram.host import detect
from lib_vram.host.rescue_keys import KEEP_LATENTS_KEY, RESCUE_KEY
from lib_vram.host.webui import FREE_BETWEEN_KEY, KEEP_KEY, MODE_KEY, MODES, REFUSE_KEY
from lib_vram.message import sentence
from lib_vram.plan.preferences import KEPT

logger = logging.getLogger("vram_guard")
SECTION = ("vram_guard", TITLE)


@lru_cache(maxsize=1)
def guard() -> Guard | None:
    """Return the guard of this process, ``None`` in a host that is not supported (said once, in one line)."""
    try:
        return Guard(detect.current(), Undone(FILE))
    except HostFault as fault:
        logger.warning("%s", fault)
        return None


def register() -> None:
    """Register with the host. Called from the bottom of the script file, again after every *Reload UI*."""
    from modules import script_callbacks

    active = guard()
    if active is None:
        return
    active.start()
    _start_rescue(active)
    with ThreadPoolExecutor(max_workers=1) as short_stack:
        short_stack.submit(_register_with, script_callbacks).result()


def _register_with(script_callbacks: Any) -> None:
    """Register everything. Called on a thread of its own, for the length of the call.

    The hosts look through the source of every frame of the stack for the file that registers, which takes 50 ms
    a call from the depth of a script file, and next to nothing from here.
    """
    script_callbacks.on_model_loaded(_on_model_loaded)
    script_callbacks.on_ui_settings(_on_ui_settings)
    script_callbacks.on_ui_tabs(_on_ui_tabs)
    script_callbacks.on_app_started(_on_app_started)
    script_callbacks.on_script_unloaded(_on_script_unloaded)


@lru_cache(maxsize=1)
def _rescuer(active: Guard) -> Any:
    """Return what rescues the runs of this host."""
    from lib_vram.guard.kept_latents import kept_latents
    from lib_vram.host.rescue import Rescuer
    from lib_vram.host.rescue_latents import Keeper

    made = Rescuer(active.host, active.session.rescued)
    made.keeper = Keeper(made, kept_latents(), lambda: getattr(active.session.before, "phase", None) == "vae_decode")
    return made


@fail_open(instead=lambda *_: None)
def _start_rescue(active: Guard) -> None:
    """Put the rescue in place, around what the guard itself has put there."""
    _rescuer(active).start()


@fail_open(instead=lambda *_: None)
def _stop_rescue(active: Guard) -> None:
    _rescuer(active).stop()


def before_process(p: Any, arguments: Sequence[Any]) -> None:
    """Pass the script's hook on to the guard."""
    active = guard()
    if active is not None:
        active.before_process(p, arguments)


def before_sampling(p: Any, latent: Any) -> None:
    """Pass the script's hook before each sampling on to the guard."""
    active = guard()
    if active is not None:
        active.before_sampling(p, latent)


def after_sampling(p: Any) -> None:
    """Pass the script's hook between sampling and decoding on to the guard."""
    active = guard()
    if active is not None:
        active.after_sampling(p)


def after_run(p: Any) -> None:
    """Pass the script's last hook on to the guard."""
    active = guard()
    if active is not None:
        active.after_run(p)


def controls(tab: str) -> list[Any]:
    """Create the accordion of ``tab`` and return its controls in the order of the script's arguments."""
    import gradio as gr

    from lib_vram.ui import accordion

    active = guard()
    language = active.host.settings().language if active else "en"
    shown = active.host.own_controls if active else frozenset()
    with gr.Accordion(label=sentence("guard.accordion", language), open=False, visible=active is not None):
        return accordion.controls(tab, language, shown)


def _on_ui_settings() -> None:
    import gradio as gr
    from modules import shared

    active = guard()
    language = active.host.settings().language if active else "en"
    choices = [(sentence(f"guard.mode_{mode}", language), mode) for mode in MODES]
    shared.opts.add_option(
        MODE_KEY,
        shared.OptionInfo(
            "ask", sentence("guard.setting_mode", language), gr.Radio, {"choices": choices}, section=SECTION
        ),
    )
    kept = [(sentence(f"plan.keep_{name}", language), name) for name in KEPT]
    shared.opts.add_option(
        KEEP_KEY,
        shared.OptionInfo(
            [], sentence("plan.setting_keep", language), gr.CheckboxGroup, {"choices": kept}, section=SECTION
        ),
    )
    shared.opts.add_option(
        REFUSE_KEY, shared.OptionInfo(False, sentence("guard.setting_refuse_api", language), section=SECTION)
    )
    between = [(sentence(f"live.between_{name}", language), name) for name in CHOICES]
    shared.opts.add_option(
        FREE_BETWEEN_KEY,
        shared.OptionInfo(
            [], sentence("live.setting_between", language), gr.CheckboxGroup, {"choices": between}, section=SECTION
        ),
    )
    for key, name in ((RESCUE_KEY, "rescue.setting"), (KEEP_LATENTS_KEY, "rescue.setting_keep")):
        shared.opts.add_option(key, shared.OptionInfo(True, sentence(name, language), section=SECTION))


def _on_ui_tabs() -> list[tuple[Any, str, str]]:
    from lib_vram.ui import tab

    return tab.on_ui_tabs()


def _on_app_started(demo: Any, app: Any) -> None:
    from lib_vram.ui import routes

    active = guard()
    if active is not None:
        active.open_journal()
        _clean_up()
        active.learned.open()
    routes.add_routes(app, active)


@fail_open(instead=lambda *_: None)
def _clean_up() -> None:
    """Delete latents on disk that are too old or too many."""
    from lib_vram.guard.kept_latents import kept_latents

    kept_latents().clean_up()


@lru_cache(maxsize=1)
def _measurer() -> Any:
    """Return what measures loaded models. It needs torch, which is there once a model is."""
    from lib_vram.estimate import estimator
    from lib_vram.host import measuring

    active = guard()
    if active is None:
        return None
    made = measuring.of_host(active.host, estimator.forget)
    active.measuring_note = made.note
    return made


@fail_open(instead=lambda *_: None)
def _on_model_loaded(sd_model: Any) -> None:
    measurer = _measurer()
    if measurer is not None:
        measurer.look()


def _on_script_unloaded() -> None:
    active = guard()
    if active is not None:
        _stop_rescue(active)
        active.stop()
        _stop_rescue(active)  # again: a change of a run that was going on may have covered it
    if _measurer.cache_info().currsize and _measurer() is not None:
        _measurer().stop()
