"""``devices``: the GPUs here, their memory and who holds it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lib_vram import units
from lib_vram.commands.reply import Reply
from lib_vram.commands.table import one_line, table
from lib_vram.message import render, say, sentence

if TYPE_CHECKING:
    from lib_vram.machine.card import Card

NAME = "devices"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: this command takes no arguments of its own."""


def run(arguments: argparse.Namespace) -> Reply:
    """Read the machine's cards.

    Raises:
        BadInput: ``VRAM_GUARD_DEVICE`` is set and describes no card.
    """
    from lib_vram.machine.cards import cards

    found = cards()
    return Reply({"devices": [_data(card) for card in found]}, text_of(found, arguments.language))


def _data(card: Card) -> dict[str, Any]:
    return {**dataclasses.asdict(card), "holders": [dataclasses.asdict(holder) for holder in card.holders]}


def text_of(cards: Sequence[Card], language: str = "en") -> str:
    """Return each card with its figures, and the programs on it, the largest first."""
    if not cards:
        return sentence("cli.devices_none", language)
    return "\n\n".join(_card(card, language) for card in cards)


def _card(card: Card, language: str) -> str:
    unknown = sentence("cli.not_known", language)
    message = say(
        "cli.device",
        name=one_line(card.name),
        source=card.source,
        total=units.human(card.total_bytes),
        free=unknown if card.free_bytes is None else units.human(card.free_bytes),
        others=unknown if card.used_by_others_bytes is None else units.human(card.used_by_others_bytes),
    )
    lines = [render(message, language)]
    if card.spills:
        lines.append(sentence("cli.device_spills", language))
    if card.holders:
        heads = [sentence(f"cli.{name}", language) for name in ("program", "pid", "size")]
        rows = [
            [
                one_line(item.name) or unknown,
                str(item.pid),
                unknown if item.used_bytes is None else units.human(item.used_bytes),
            ]
            for item in card.holders
        ]
        lines.append(table(heads, rows))
    return "\n".join(lines)
