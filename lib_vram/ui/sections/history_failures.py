"""Failures and what rescued them: a table, the newest first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lib_vram.learning.record import Rescue, Run
from lib_vram.message import sentence
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections.history_words import Words, asked_for, figures, heading, moment, outcome_of

MOST = 20
"""Events in the table; the files of *Export* have all."""
SOON_SECONDS = 5.0
"""A rescue is told once it has helped; a run's clock may end a moment before."""

_WAYS: tuple[tuple[str, str], ...] = (
    (r"batch (?P<before>\d+x\d+) -> (?P<after>\d+x\d+)", "way_batch"),
    (r"VAE tiled (?P<after>\d+)", "way_tiles"),
    (r"VAE tiled", "cost_vae_tiled"),
    (r"cond and uncond apart", "cost_cond_uncond_apart"),
    (r"kept free (?P<before>\d+) -> (?P<after>\d+ MiB)", "way_reserve"),
    (r"weights stored in \w+", "cost_fp8_storage"),
    (r"UNet always offloaded", "cost_never_oom_unet"),
    (r"hires (?P<before>\S+) -> (?P<after>\S+)", "way_hires"),
)
"""What the infotext says was changed, and the sentence for it."""


def rescues(runs: Sequence[Run], found: Sequence[Rescue], words: Words) -> Html:
    """Return every failure of ``runs`` and every rescue in ``found``."""
    events = [(run.at, asked_for(run.request), outcome_of(run, words)) for run in runs if run.outcome == "failed"]
    events += [(item.at, _about(item, runs), _said(item, words)) for item in found]
    title = words("rescues_title")
    if not events:
        return join(heading(title), tag("p", words("rescues_none"), class_="vg-soft"))
    newest = sorted(events, key=lambda item: item[0], reverse=True)[:MOST]
    rows = [
        tag("tr", tag("th", moment(at), scope="row"), tag("td", what), tag("td", about)) for at, about, what in newest
    ]
    heads = [words(name) for name in ("head_when", "head_what", "head_model")]
    return join(heading(title), figures(title, "", heads, rows))


def _about(item: Rescue, runs: Sequence[Run]) -> str:
    """Return what the run that was rescued was to make; its model alone where that run is not known."""
    held = (run for run in reversed(runs) if run.at <= item.at <= run.at + run.seconds + SOON_SECONDS)
    run = next((run for run in held if run.is_rescued), None)
    return asked_for(run.request) if run is not None else item.family


def _said(item: Rescue, words: Words) -> str:
    action = words("rescue_again") if item.action == "again" else _named(item.action, words)
    failed = words("failed_simple", phase=words.phase(item.phase))
    parts = [failed, words("rescue_done" if item.is_rescued else "rescue_failed", action=action)]
    if item.images:
        parts.append(words("images_one") if item.images == 1 else words("images_many", images=item.images))
    if item.seconds is not None:
        parts.append(words("seconds", seconds=f"{item.seconds:.1f}"))
    return "; ".join(parts)


def _named(action: str, words: Words) -> str:
    """Return the words for what was changed; a part that has none says itself."""
    key = f"learning.cost_{action}"
    text = sentence(key, words.language)
    if text != key:
        return text.partition(" {")[0]
    return ", ".join(_way(part, words) for part in action.split("; "))


def _way(part: str, words: Words) -> str:
    for pattern, name in _WAYS:
        found = re.fullmatch(pattern, part)
        if found is not None:
            return words(name, **{key: value.replace("x", "×") for key, value in found.groupdict().items()})
    return part
