"""The card now, by owner, and how it got there: a frame in words, and the figures that the page draws into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from lib_vram import units
from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate, phase_name
from lib_vram.live.curve import ENDS, FIXED, START, Curve, Mark, Sample, peak_bytes
from lib_vram.live.picture import Holding, Owner, owners
from lib_vram.live.pieces import Pieces
from lib_vram.live.watch import Watch
from lib_vram.machine import system, torch_other
from lib_vram.machine.system import System
from lib_vram.message import Message, render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.words import Sentences, Words

NAME = "live"
WINDOWS = (60, 180, 600)
"""Seconds of the curve that can be shown."""
AFTER_SECONDS = 2.0
"""A generation's last reading comes within this time after its end."""
LAST_RUN = 0
"""In place of them: from the start of the latest generation to its end."""
_CURVE_LEGEND = ("others", "reserved", "allocated", "predicted", "edge")
_PHASES = frozenset(
    (
        "load", "text_encode", "controlnet_preprocess", "vae_encode", "sampling", "hires_upscale", "hires_sampling",
        "refiner_sampling", "vae_decode", "detailer", "face_restore",
    )
)  # fmt: skip


def html(guard: GuardLike, language: str) -> Html:
    """Return the frame; it is the same whatever happens, so that what the page has drawn into it stays."""
    text = _Text(language)
    return tag(
        "div",
        tag("p", text("loading"), class_="vg-summary", data_live="summary"),
        tag("div", data_live="warnings", role="status"),
        tag("div", data_live="bar", role="img", aria_label=text("bar_label"), class_="vg-live-bar"),
        _table("owners", "owners_caption", ("head_owner", "head_size", "head_share"), text),
        tag("p", data_live="pieces", class_="vg-soft", hidden=True),
        _curve(text),
        tag("h3", text("system_title"), class_="vg-live-title"),
        tag("dl", data_live="system", class_="vg-facts"),
        tag("ul", data_live="notes", class_="vg-notes"),
        tag("span", text("paused"), data_live="paused", hidden=True),
        data_live_root=True,
    )


class _Text(Sentences):
    area = "live"


def _curve(text: _Text) -> Html:
    options = [tag("option", text(f"window_{seconds}"), value=seconds) for seconds in (*WINDOWS, LAST_RUN)]
    chooser = tag("label", text("window"), " ", tag("select", *options, data_live="window"), class_="vg-live-window")
    legend = [tag("li", tag("i", class_=f"vg-swatch vg-live-{name}"), text(f"legend_{name}")) for name in _CURVE_LEGEND]
    return join(
        tag("h3", text("curve_title"), chooser, class_="vg-live-title"),
        tag("div", data_live="curve", role="img", aria_label=text("curve_label"), class_="vg-live-curve"),
        tag("ul", *legend, class_="vg-legend", aria_hidden="true"),
        tag(
            "details",
            tag("summary", text("phases_title")),
            tag("p", text("phases_none"), data_live="phases-none"),
            _table("phases", "", ("head_phase", "head_at", "head_highest", "head_predicted"), text, hidden=True),
            class_="vg-more",
        ),
    )


def _table(name: str, caption: str, heads: tuple[str, ...], text: _Text, *, hidden: bool = False) -> Html:
    head = tag("thead", tag("tr", *(tag("th", text(item), scope="col") for item in heads)))
    parts = [tag("caption", text(caption))] if caption else []
    return tag("table", *parts, head, tag("tbody", data_live=name), class_="vg-table vg-live-table", hidden=hidden)


# the figures


def answer(guard: GuardLike, watch: Watch, since: float, language: str) -> dict[str, Any]:
    """Return the card by owner, the computer, and what of the curve is newer than ``since``."""
    text, holding = _Text(language), _as_shown(guard, watch.now())
    found = system.read(guard.host.folders())
    predicted = _predicted(watch.curve)
    return {
        "running": watch.is_running,
        "summary": _summary(holding, text),
        "total_bytes": holding.card.total_bytes if holding.card else None,
        "owners": [_owner(item, holding, watch.is_running, text) for item in owners(holding)],
        "pieces": _pieces(watch, text),
        "notes": [render(note, language) for note in (*notes(holding), *_suggestions(watch))],
        "warnings": [render(item, language) for item in watch.warnings()],
        "card": _card(holding, language),
        "system": _system(found, holding, text),
        "curve": _of_curve(watch.curve, holding, since, predicted, language),
        "phases": list(_phase_rows(watch.curve, holding, predicted, text)),
    }


def _as_shown(guard: GuardLike, holding: Holding) -> Holding:
    """Return ``holding`` without the names of programs where people on other machines can read them."""
    if holding.card is None or not guard.host.is_open_to_others():
        return holding
    return dataclasses.replace(holding, card=dataclasses.replace(holding.card, holders=()))


def since_of(query: dict[str, Any]) -> float:
    """Return the moment that ``query`` names, 0 for everything.

    Raises:
        BadInput: ``since`` is no number.
    """
    value = query.get("since") or "0"
    try:
        since = float(value)
    except (TypeError, ValueError):
        since = float("nan")
    if not 0 <= since < 2**40:
        raise BadInput("since", got=value, takes="seconds since the epoch")
    return since


def _summary(holding: Holding, text: _Text) -> str:
    card, torch = holding.card, holding.torch
    if card is None:
        return text("summary_cpu") if torch is None else Words(text.language)("card_none")
    if holding.used_bytes is not None and holding.free_bytes is not None:
        total_bytes, used_bytes, free_bytes = card.total_bytes, holding.used_bytes, holding.free_bytes
        return text("summary", used_bytes=used_bytes, total_bytes=total_bytes, free_bytes=free_bytes)
    if torch is not None:
        return text("summary_own", reserved_bytes=torch.reserved_bytes, total_bytes=card.total_bytes)
    return text("summary_total", total_bytes=card.total_bytes)


def notes(holding: Holding) -> Iterator[Message]:
    """Yield what cannot be known on this device, and what stands in its place."""
    if torch_other.uses_directml():
        yield say("live.note_directml")
    elif holding.is_stand_in:
        yield say("live.note_virtual")
    elif holding.card is not None and holding.used_bytes is None:
        yield say("live.note_free")
    if holding.torch is not None and holding.driver_bytes and not holding.driver_is_measured:
        yield say("live.note_driver")
    if holding.torch is None and any(item.card_bytes for item in holding.weights):
        yield say("live.note_models")


def _suggestions(watch: Watch) -> Iterator[Message]:
    suggestion = watch.switches.suggestion()
    if suggestion is not None:
        yield suggestion


def _owner(owner: Owner, holding: Holding, running: bool, text: _Text) -> dict[str, Any]:
    share = owner.size_bytes / holding.card.total_bytes if holding.card and holding.card.total_bytes else 0.0
    return {
        "kind": owner.kind,
        "label": _owner_label(owner, holding, running, text),
        "bytes": owner.size_bytes,
        "shown": units.human(owner.size_bytes),
        "share": f"{100 * share:.0f} %",
    }


def _owner_label(owner: Owner, holding: Holding, running: bool, text: _Text) -> str:
    if owner.kind == "program":
        return owner.name
    if owner.kind == "weights":
        label = text(f"part_{owner.part}")
        return f"{label}: {owner.name}" if owner.name else label
    if owner.kind == "tensors":
        return text("owner_tensors_busy" if running else "owner_tensors_idle")
    if owner.kind == "driver" and not holding.driver_is_measured:
        return text("owner_driver_usual")
    if owner.kind == "others" and any(item.used_bytes for item in (holding.card.holders if holding.card else ())):
        return text("owner_others_rest")
    return text(f"owner_{owner.kind}")


def _pieces(watch: Watch, text: _Text) -> str:
    snapshot = watch.pieces()
    if snapshot is None:
        return ""
    found = Pieces.of(snapshot)
    if not found.matters:
        return ""
    return text("pieces", stuck_bytes=found.stuck_bytes, largest_bytes=found.largest_bytes, free_bytes=found.free_bytes)


def _card(holding: Holding, language: str) -> list[dict[str, str]]:
    """Return what the card is, where its figures come from, and what happens when it is full."""
    card, words = holding.card, Words(language)
    if card is None:
        return []
    rows = {
        "card_name": card.name,
        "card_spills": words("card_spills_yes" if card.spills else "card_spills_no"),
        "card_source": words.name_of("source", card.source),
    }
    return [{"label": words(name), "shown": shown} for name, shown in rows.items()]


def _system(found: System, holding: Holding, text: _Text) -> list[dict[str, str]]:
    rows: list[tuple[str, str]] = []
    if found.ram_total_bytes and found.ram_free_bytes is not None:
        used_bytes = found.ram_total_bytes - found.ram_free_bytes
        rows.append(("ram", text("system_of", used_bytes=used_bytes, total_bytes=found.ram_total_bytes)))
    if found.own_ram_bytes:
        rows.append(("own", units.human(found.own_ram_bytes)))
    in_ram = [item for item in holding.weights if item.ram_bytes]
    if in_ram:
        names = ", ".join(f"{text(f'part_{item.kind}')} {units.human(item.ram_bytes)}" for item in in_ram)
        rows.append(("models", names))
    if found.swap_total_bytes:
        used_bytes = found.swap_used_bytes or 0
        rows.append(("swap", text("system_of", used_bytes=used_bytes, total_bytes=found.swap_total_bytes)))
    rows += [(f"disk_{disk.name}", units.human(disk.free_bytes)) for disk in found.disks]
    return [{"label": text(f"system_{name}"), "shown": shown} for name, shown in rows]


# the curve


def _predicted(curve: Curve) -> Estimate | None:
    """Return the estimate of the latest generation, as it really ran; answered from memory after the first time."""
    from lib_vram.guard.guard import estimate

    request = next((mark.request for mark in reversed(curve.last_run()) if mark.request is not None), None)
    return estimate(request) if request is not None else None


def _of_curve(
    curve: Curve, holding: Holding, since: float, predicted: Estimate | None, language: str
) -> dict[str, Any]:
    now = curve.latest_at()
    drawn = [mark for mark in curve.marks() if mark.name != FIXED]
    run = curve.last_run()
    return {
        "samples": [_numbers(item) for item in curve.samples(since)],
        "marks": [{"at": item.at, "name": item.name, "label": _mark_label(item, language)} for item in drawn],
        "now": round(max(now, run[-1].at if run else 0.0), 2),
        "run": [run[0].at, run[-1].at if run[-1].name in ENDS else None] if run else None,
        "predicted": _levels(predicted, holding),
        "seconds": WINDOWS[0] if holding.card and holding.card.source == "virtual" else WINDOWS[1],
    }


def _numbers(sample: Sample) -> list[float | int | None]:
    return [
        round(sample.at, 2), sample.used_bytes, sample.reserved_bytes, sample.allocated_bytes, sample.others_bytes,
    ]  # fmt: skip


def _levels(predicted: Estimate | None, holding: Holding) -> dict[str, int]:
    """Return how high each phase was said to come, other programs' memory below it."""
    if predicted is None:
        return {}
    below_bytes = holding.others_bytes or 0
    return {phase.name: below_bytes + phase.peak_bytes for phase in predicted.phases}


def _mark_label(mark: Mark, language: str) -> str:
    if mark.name in ENDS:
        return sentence(f"live.mark_{mark.name}", language)
    return phase_name(mark.name, language) if mark.name in _PHASES else ""  # type: ignore[arg-type]


def _phase_rows(curve: Curve, holding: Holding, predicted: Estimate | None, text: _Text) -> Iterator[dict[str, str]]:
    """Yield the phases of the latest generation, each with the highest reading until the next."""
    run = curve.last_run()
    if not run:
        return
    begin = run[0].at
    marks = [mark for mark in run if mark.name not in (START, FIXED)]
    samples, levels = curve.samples(begin - 1), _levels(predicted, holding)
    for place, mark in enumerate(marks):
        until = marks[place + 1].at if place + 1 < len(marks) else float("inf")
        seen = mark.name not in ENDS and not holding.is_stand_in  # a stand-in card sees nothing of the run
        highest = _highest(samples, mark.at, until) if seen else None
        level = levels.get(mark.name)
        if mark.name in ENDS:
            highest = peak_bytes(item for item in samples if begin <= item.at <= mark.at + AFTER_SECONDS)
            level = max(levels.values(), default=None)
        yield {
            "label": _mark_label(mark, text.language),
            "at": text("seconds", seconds=f"{mark.at - begin:.1f}"),
            "highest": units.human(highest) if highest is not None else "",
            "predicted": units.human(level) if level is not None else "",
        }


def _highest(samples: Iterable[Sample], begin: float, until: float) -> int | None:
    """Return the most that was in use, the unused cache left out, as the prediction leaves it out."""
    seen = (item.in_use_bytes for item in samples if begin <= item.at < until)
    return max((size for size in seen if size is not None), default=None)
