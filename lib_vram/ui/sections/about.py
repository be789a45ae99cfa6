"""The version, and the host that was found."""

from __future__ import annotations

import lib_vram
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.card import facts
from lib_vram.ui.html import Html
from lib_vram.ui.words import Words

NAME = "about"


def html(guard: GuardLike, language: str) -> Html:
    """Return the version, the host with its version, and what the settings say."""
    words = Words(language)
    host = guard.host
    return facts(
        [
            (words("about_version"), lib_vram.__version__),
            (words("about_host"), f"{host.title} {host.version()}".strip()),
            (words("about_mode"), words(f"mode_{host.settings().mode}")),
            (words("about_address"), "/vram-guard/v1/"),
        ]
    )
