"""The virtual card: any name and size, so that the product can be tried and tested without a GPU."""

from __future__ import annotations

from lib_vram import units
from lib_vram.errors import BadInput
from lib_vram.machine.card import Card
from lib_vram.request import BYTES_LIMITS

VARIABLE = "VRAM_GUARD_DEVICE"
"""The environment variable that puts a virtual card under the real host."""
_TAKES = 'a card such as "NVIDIA GeForce RTX 3060:12GiB:free=11GiB"'


def parse_virtual(text: str, *, field: str = VARIABLE) -> Card:
    """Return the card that ``text`` describes: ``name:total``, then any of ``free=``, ``used=`` and ``spills``.

    ``free`` and ``used`` say the same from two sides: what other programs leave or hold. Without
    them the card is empty. ``spills`` makes it a Windows card, whose driver moves memory to RAM.

    Raises:
        BadInput: ``text`` is no such description, or its sizes contradict each other; names ``field``.
    """
    parts = [part.strip() for part in text.split(":")]
    options = []
    while len(parts) > 1 and ("=" in parts[-1] or parts[-1].lower() == "spills"):
        options.append(parts.pop())
    if len(parts) < 2 or not parts[0]:
        raise BadInput(field, got=text, takes=_TAKES)
    total_bytes = units.parse_size(parts[-1], field=f"{field} (total)")
    if not 0 < total_bytes <= BYTES_LIMITS[1]:
        raise BadInput(f"{field} (total)", got=parts[-1], takes="more than 0 bytes and at most 1048576GiB")
    used_bytes = _used_bytes([item for item in options if "=" in item], total_bytes, field)
    return Card(
        name=":".join(parts[:-1]),
        total_bytes=total_bytes,
        free_bytes=total_bytes - used_bytes,
        used_by_others_bytes=used_bytes,
        source="virtual",
        spills=len([item for item in options if "=" not in item]) > 0,
    )


def _used_bytes(options: list[str], total_bytes: int, field: str) -> int:
    if not options:
        return 0
    name, _, value = options[0].partition("=")
    name = name.strip().lower()
    if len(options) > 1 or name not in ("free", "used"):
        raise BadInput(field, got=":".join(reversed(options)), takes="one of free=SIZE and used=SIZE")
    size_bytes = units.parse_size(value, field=f"{field} ({name})")
    if size_bytes > total_bytes:
        raise BadInput(f"{field} ({name})", got=value.strip(), takes=f"at most the total, {units.human(total_bytes)}")
    return size_bytes if name == "used" else total_bytes - size_bytes
