"""AMD cards on Linux, from the amdgpu driver's files: ``/sys/class/drm/card*/device/mem_info_vram_*``.

Source of the files' meaning: the Linux kernel's documentation of amdgpu, "GPU Memory Usage Information".
"""

from __future__ import annotations

import re
from pathlib import Path

from lib_vram.machine.card import Card

FOLDER = Path("/sys/class/drm")


def cards(folder: Path = FOLDER) -> tuple[Card, ...]:
    """Return the AMD cards, the largest first; none on other systems.

    All that is in use counts as others': a process that computes on such a card is told by torch instead.
    """
    found = [_card(path / "device") for path in sorted(folder.glob("card*")) if re.fullmatch(r"card\d+", path.name)]
    return tuple(sorted((card for card in found if card), key=lambda card: -card.total_bytes))


def _card(device: Path) -> Card | None:
    total_bytes, used_bytes = _number(device / "mem_info_vram_total"), _number(device / "mem_info_vram_used")
    if not total_bytes:
        return None
    return Card(
        name=_text(device / "product_name") or "AMD GPU",
        total_bytes=total_bytes,
        free_bytes=None if used_bytes is None else max(0, total_bytes - used_bytes),
        used_by_others_bytes=used_bytes,
        source="amdgpu",
        uuid=_text(device / "unique_id"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path) or ""
    return int(text) if text.isascii() and text.isdigit() else None
