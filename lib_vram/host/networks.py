"""LoRA files named in prompts and styles, as the hosts' own parser reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from lib_vram.request import Lora

KINDS = ("lora", "lyco")
MODULE = "networks"
"""The hosts' LoRA extension imports its network module by this top-level name."""


def loras(prompts: Iterable[str], styles: Iterable[str]) -> tuple[Lora, ...]:
    """Return the LoRA files that ``prompts`` with ``styles`` will load, each once; unknown names are left out."""
    names: dict[str, None] = {}
    for prompt in prompts:
        text = _with_styles(prompt, list(styles))
        if "<" in text:
            names.update(dict.fromkeys(_names(text)))
    sizes = [_file_bytes(name) for name in names]
    return tuple(Lora(size) for size in sizes if size)


def _with_styles(prompt: str, styles: list[str]) -> str:
    from modules import shared

    database = getattr(shared, "prompt_styles", None)
    return database.apply_styles_to_prompt(prompt, styles) if styles and database is not None else prompt


def _names(text: str) -> list[str]:
    from modules import extra_networks

    _, found = extra_networks.parse_prompts([text])
    units = [unit for kind in KINDS for unit in (found or {}).get(kind, ())]
    return [str(unit.positional[0]) for unit in units if unit.positional]


def _file_bytes(name: str) -> int:
    module = sys.modules.get(MODULE)
    entry: Any = None
    for table in ("available_network_aliases", "available_networks"):
        entry = entry or getattr(module, table, {}).get(name)
    try:
        return os.path.getsize(entry.filename) if entry is not None else 0
    except OSError:
        return 0
