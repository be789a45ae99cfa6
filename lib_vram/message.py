"""Messages: what is said to people, as a key and its figures until the moment it is shown.

The core never builds sentences. It makes a :class:`Message`; :func:`render` looks the
sentence up in the catalogue ``lib_vram/text/<language>/<area>.json`` (``area`` is the part
of the key before the first dot) and fills the figures in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lib_vram import units

LANGUAGES = ("en", "pt", "es")
TEXT_FOLDER = Path(__file__).parent / "text"

Value = str | int | float


@dataclass(frozen=True)
class Message:
    """A sentence of the catalogue and its figures; figures named ``*_bytes`` are shown in GiB or MiB."""

    key: str
    values: tuple[tuple[str, Value], ...] = ()

    def __str__(self) -> str:
        return render(self)


def say(key: str, **values: Value) -> Message:
    """Return the message ``key`` (``"estimate.note_spill"``) with ``values`` for its placeholders."""
    return Message(key, tuple(values.items()))


@lru_cache(maxsize=64)
def area(language: str, name: str) -> Mapping[str, str]:
    """Return the sentences of one area in one language; empty when that file does not exist."""
    path = TEXT_FOLDER / language / f"{name}.json"
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8") as file:
        return json.load(file)


def language_of(code: object) -> str:
    """Return the catalogue language for a locale such as ``pt_BR`` or ``es-ES``, English for anything else."""
    short = (code if isinstance(code, str) else "").replace("_", "-").split("-")[0].lower()
    return short if short in LANGUAGES else "en"


def render(message: Message, language: str = "en") -> str:
    """Return the sentence in ``language``, in English where that language lacks it."""
    return sentence(message.key, language).format_map({name: _shown(name, value) for name, value in message.values})


def sentence(key: str, language: str = "en") -> str:
    """Return the raw sentence of ``key``; the key itself when no language has it, so that nothing is ever blank."""
    name, _, short = key.partition(".")
    return area(language, name).get(short) or area("en", name).get(short) or key


def _shown(name: str, value: Value) -> str:
    if name.endswith("_bytes"):
        return units.human(int(value))
    return str(value)
