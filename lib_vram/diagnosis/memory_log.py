"""What Forge, Neo and ComfyUI say about memory in their own logs, in MB that mean 2**20."""

from __future__ import annotations

import re
from collections.abc import Callable

from lib_vram.diagnosis.cause import Found
from lib_vram.diagnosis.sizes import size_bytes
from lib_vram.message import Message, say

_MB = r"(-?\d[\d.,]{0,20}(?:e[+-]?\d{1,3})?)"
_LAST = 16 * 1024
"""Characters before a failure in which its generation's lines stand."""

_FORGE = re.compile(
    rf"target: (\w{{1,40}}), free gpu: {_MB} mb, model require: {_MB} mb,"
    rf"(?: previously loaded: {_MB} mb,)? inference require: {_MB} mb, remaining: {_MB} mb"
)
_UNLOAD = re.compile(
    rf"trying to free {_MB} mb for \S{{1,20}} with \d+ models? keep loaded.{{0,40}}?current free memory is {_MB} mb"
)
_PARTLY = re.compile(rf"loaded partially:? {_MB}(?: mb loaded)?[, ]+{_MB}")
_LOW = re.compile(rf"your current gpu free memory is {_MB} mb")
_WEIGHTS = re.compile(rf"to use (\d{{1,3}})% gpu memory \({_MB} mb\) to load model weights")


def _mib(text: str) -> int | None:
    sign = -1 if text.startswith("-") else 1
    if "e" in text:
        value = float(text)
        return int(value * 1024**2) if abs(value) < 2**40 else None
    size = size_bytes(text.lstrip("-"), "mib")
    return None if size is None else sign * size


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(reversed(list(pattern.finditer(text))), None)


def _forge(match: re.Match[str]) -> Message | None:
    free, model, inference, remaining = (_mib(match[group]) for group in (2, 3, 5, 6))
    if free is None or model is None or inference is None or remaining is None:
        return None
    key = "log_forge_short" if remaining < 0 else "log_forge"
    return say(
        f"diagnosis.{key}", model_bytes=model, inference_bytes=inference, free_bytes=free, missing_bytes=abs(remaining)
    )


def _unload(match: re.Match[str]) -> Message | None:
    wanted, free = _mib(match[1]), _mib(match[2])
    return None if wanted is None or free is None else say("diagnosis.log_unload", wanted_bytes=wanted, free_bytes=free)


def _low(match: re.Match[str]) -> Message | None:
    free = _mib(match[1])
    return None if free is None else say("diagnosis.log_low", free_bytes=free)


def _weights(match: re.Match[str]) -> Message | None:
    return say("diagnosis.log_weights", percent=match[1])


_READERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Message | None]], ...] = (
    (_FORGE, _forge), (_UNLOAD, _unload), (_LOW, _low), (_WEIGHTS, _weights),
    (_PARTLY, lambda match: say("diagnosis.log_partly")),
)  # fmt: skip


def evidence(text: str) -> tuple[Message, ...]:
    """Return what the last lines of each sort in ``text`` say."""
    small = text.lower()[-_LAST:]
    matches = ((reader, _last(pattern, small)) for pattern, reader in _READERS)
    said = (reader(match) for reader, match in matches if match is not None)
    return tuple(message for message in said if message is not None)


def cause_of(text: str) -> Found | None:
    """Return the cause that the host's own log shows where the error has no figures, ``None`` when it shows none."""
    match = _last(_FORGE, text.lower()[-_LAST:])
    if match is None:
        return None
    remaining = _mib(match[6])
    return Found("capacity", ()) if remaining is not None and remaining < 0 else None
