"""The live preview of one run: none, or one that needs no model of its own.

The hosts look at both options at every step, so an option of the run is enough. *Full* decodes with the VAE, *TAESD*
and *Approx NN* bring a small model; *Approx cheap* (*RGB* in Neo) is a product of two small matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lib_vram.host.levers import cheaper_preview

if TYPE_CHECKING:
    from lib_vram.host.webui import WebUI

SHOWN = {"Full": "full", "Approx NN": "approx", "Approx cheap": "approx", "RGB": "approx", "TAESD": "taesd"}
"""The hosts' names for the kinds of a request."""


def live_preview(host: WebUI) -> str:
    """Return the live preview that the settings ask for."""
    if not host.option("live_previews_enable", True):
        return "off"
    return SHOWN.get(host.option("show_progress_type", "Approx NN"), "approx")


def show_less(host: WebUI, p: Any, wanted: str) -> None:
    """Give the run of ``p`` the live preview ``wanted`` where that is less than the settings'."""
    now = live_preview(host)
    if cheaper_preview(wanted, now) == now:
        return
    if wanted == "off":
        host.override(p, "live_previews_enable", False)
    else:
        host.override(p, "show_progress_type", host.cheap_preview)
