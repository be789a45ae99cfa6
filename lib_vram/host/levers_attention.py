"""Another attention for one run on A1111, which can change it while it runs (``sd_hijack.apply_optimizations``).

The option goes along with it: a checkpoint that is loaded in the middle of the run takes its attention from there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lib_vram.host.webui import WebUI

OPTION = "cross_attention_optimization"
BEFORE = "attention before the run"
"""Among what the host remembers of the settings: the attention that computes when no run has another."""
NAMES = {
    "xformers": ("xformers",), "sdpa": ("sdp", "sdp-no-mem"), "sub_quad": ("sub-quadratic",),
    "split": ("Doggettx", "InvokeAI", "V1"),
}  # fmt: skip
"""The host's names for a request's attention, the preferred one first."""

logger = logging.getLogger("vram_guard")


def more_than_pytorchs() -> list[str]:
    """Return which of the request's attentions the host can change to beside those of PyTorch.

    It lists what works here: xFormers where ``--xformers`` has loaded it and the card is one that it is built for.
    """
    from modules import sd_hijack

    listed = {item.name for item in getattr(sd_hijack, "optimizers", ())}
    return [kind for kind in ("xformers",) if listed.intersection(NAMES[kind])]


def compute_with(host: WebUI, p: Any, wanted: str, now: str) -> None:
    """Let the run of ``p`` compute with the attention ``wanted`` in place of ``now``, if this machine has it."""
    from modules import sd_hijack

    names = NAMES.get(wanted, ())
    found = [item for name in names for item in sd_hijack.optimizers if item.name == name]
    if not found:
        logger.info("VRAM Guard: there is no attention %s here", wanted)
        return
    changes = host.runs.of(p).of_run
    changes.call_when_undone(_as_in_the_settings)
    changes.set_item(host.meanwhile, BEFORE, now)
    host.hold_option(p, OPTION, found[0].title())
    _as_in_the_settings()


def _as_in_the_settings() -> None:
    """Apply what the option says now; without a model that is done when one is loaded."""
    from modules import sd_hijack, sd_models

    if sd_models.model_data.sd_model is not None:
        sd_hijack.model_hijack.apply_optimizations()
