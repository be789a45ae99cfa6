"""What the session before this one was doing when it ended, from its journal, however that was cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lib_vram import units
from lib_vram.journal.journal import PATTERN

Cause = Literal["ram", "card", "computer", "unknown"]

LOW_RAM_BYTES = units.GIB
LOW_RAM_SHARE = 0.04
"""Of all RAM: below either, systems begin to kill."""
LOW_CARD_BYTES = 300 * units.MIB
"""Less than a driver needs to start one more kernel."""
READ_BYTES = 512 * 1024
"""More than a session's file can have."""


@dataclass(frozen=True)
class LastSession:
    """A session that ended in mid-generation. ``None`` where its journal does not say. Sizes in bytes."""

    phase: str | None
    settings: Mapping[str, Any]
    ended_at: float
    cause: Cause
    ram_free_bytes: int | None = None
    card_free_bytes: int | None = None


def last_session(
    folder: Path, host: str, own: Path, is_running: Callable[[int], bool], booted_at: float | None = None
) -> LastSession | None:
    """Return how the newest session of ``host`` before ``own`` ended, ``None`` when it ended in order or idle.

    ``booted_at`` is when this computer started, in seconds since the epoch.
    """
    paths = sorted((path for path in folder.glob(PATTERN) if path != own and ".old." not in path.name), reverse=True)
    for path in paths:
        events = list(read_events(path))
        header = next((item for item in events if item.get("e") == "session"), None)
        if header is None or header.get("host") != host:
            continue
        pid = header.get("pid")
        if isinstance(pid, int) and pid != os.getpid() and is_running(pid) and not _ended(events):
            continue
        return None if _ended(events) else _of_events(events, header, booted_at)
    return None


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal; lines that were cut off or never reached the disk are passed over."""
    try:
        with path.open("rb") as file:
            content = file.read(READ_BYTES)
    except OSError:
        return
    for line in content.replace(b"\0", b"").splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _ended(events: list[dict[str, Any]]) -> bool:
    return bool(events) and events[-1].get("e") == "end"


def _of_events(events: list[dict[str, Any]], header: Mapping[str, Any], booted_at: float | None) -> LastSession | None:
    begin = max((place for place, item in enumerate(events) if item.get("e") == "run"), default=-1)
    rest = events[begin:] if begin >= 0 else []
    if not rest or any(item.get("e") in ("done", "failed") for item in rest):
        return None
    phases = [item.get("name") for item in rest if item.get("e") == "phase"]
    ram, card = _last(rest, "ram_free"), _last(rest, "card_free")
    ended_at = rest[-1].get("t")
    ended = float(ended_at) if isinstance(ended_at, (int, float)) else 0.0
    settings = rest[0].get("settings")
    return LastSession(
        phase=str(phases[-1]) if phases else None,
        settings=settings if isinstance(settings, dict) else {},
        ended_at=ended,
        cause=_cause(ram, _number(header.get("ram_total")), card, booted_at is not None and booted_at > ended),
        ram_free_bytes=ram,
        card_free_bytes=card,
    )


def _last(events: list[dict[str, Any]], name: str) -> int | None:
    return next((value for item in reversed(events) if (value := _number(item.get(name))) is not None), None)


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _cause(ram: int | None, ram_total: int | None, card: int | None, rebooted: bool) -> Cause:
    if ram is not None and ram < max(LOW_RAM_BYTES, LOW_RAM_SHARE * (ram_total or 0)):
        return "ram"
    if rebooted:
        return "computer"
    if card is not None and card < LOW_CARD_BYTES:
        return "card"
    return "unknown"
