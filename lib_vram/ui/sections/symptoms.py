"""The symptom table: every row with its cause and cures; rows that match the last failure or this machine light up."""

from __future__ import annotations

from lib_vram import units
from lib_vram.diagnosis.diagnosis import diagnose
from lib_vram.diagnosis.symptoms import SYMPTOMS, Symptom
from lib_vram.errors import NotReady
from lib_vram.estimate.training import training_memory, video_memory
from lib_vram.message import Message, render, say, sentence
from lib_vram.ui.answers import GuardLike
from lib_vram.ui.html import Html, join, tag
from lib_vram.ui.sections import diagnosis, session

NAME = "symptoms"
LOW_RAM_BYTES = 2 * units.GIB
LOW_DISK_BYTES = 5 * units.GIB
"""Below these, loading a model or writing its pictures is likely to fail."""
HELD_SHARE = 0.25
"""Of the card: held by other programs, it is worth saying."""
TRAINED = (("sd15", "SD 1.5", 512), ("sd21", "SD 2.1", 768))
CLIPS = (("wan21_1b", "Wan 2.1 1.3B", 17), ("wan21_1b", "Wan 2.1 1.3B", 81), ("wan21_14b", "Wan 2.1 14B", 81))
CLIP_SIZE = (832, 480)
"""What the rows of training and of video are estimated for, each at the size that it was made for."""


def html(guard: GuardLike, language: str) -> Html:
    """Return the filter and the table; which rows are lit comes with :func:`parts`."""
    label = sentence("symptoms.filter", language)
    box = tag("input", type="search", id="vram_guard_filter", class_="vg-filter", autocomplete="off")
    return join(
        tag("p", tag("label", label, for_="vram_guard_filter", class_="vg-label"), box),
        tag("p", sentence("symptoms.filter_none", language), class_="vg-soft", hidden=True, data_filter_none=True),
        _group("memory", [item for item in SYMPTOMS if item.is_memory], guard.host.name, language),
        _group("not_memory", [item for item in SYMPTOMS if not item.is_memory], guard.host.name, language),
        tag("div", data_inside="lit", hidden=True),
    )


def parts(guard: GuardLike, language: str) -> dict[str, Html]:
    """Return the rows that are lit now, each with its evidence, for the page's script to show."""
    rows = [tag("li", render(why, language), data_lit=name) for name, why in lit(guard)]
    return {"lit": tag("ul", *rows)}


def lit(guard: GuardLike) -> list[tuple[str, Message]]:
    """Return the rows that match the last failure or the state of the machine, each with what shows it."""
    found: list[tuple[str, Message]] = []
    failure = session.last_failure(guard)
    if failure is not None:
        result = diagnose(failure.text, session.context(guard))
        if result.symptom is not None:
            found.append((result.symptom, say("symptoms.lit_failure")))
        if failure.request is not None and failure.request.batch_size > 1 and result.kind == "gpu_memory":
            found.append(("batch", say("symptoms.lit_batch", count=failure.request.batch_size)))
    return found + _by_machine(guard)


def _by_machine(guard: GuardLike) -> list[tuple[str, Message]]:
    found = []
    state = session.context(guard)
    card = state.card
    if card is not None and (card.used_by_others_bytes or 0) > HELD_SHARE * card.total_bytes:
        found.append(("others-compete", say("symptoms.lit_others", held_bytes=card.used_by_others_bytes or 0)))
    if state.ram_free_bytes is not None and state.ram_free_bytes < LOW_RAM_BYTES:
        found.append(("host-memory", say("symptoms.lit_ram", free_bytes=state.ram_free_bytes)))
    if state.disk_free_bytes is not None and state.disk_free_bytes < LOW_DISK_BYTES:
        found.append(("disk-full", say("symptoms.lit_disk", free_bytes=state.disk_free_bytes)))
    return found


def estimates(row: str) -> tuple[Message, ...]:
    """Return what training and video need, for the rows about them; nothing for other rows."""
    try:
        return _training() if row == "training" else _video() if row == "video" else ()
    except NotReady:  # a profile less is no reason to show no table
        return ()


def _training() -> tuple[Message, ...]:
    said, more_bytes = [], 0
    for family, model, side in TRAINED:
        inversion, network = (
            training_memory(method, family, side, side) for method in ("textual_inversion", "hypernetwork")
        )
        for key, memory in (("textual_inversion", inversion), ("hypernetwork", network)):
            said.append(
                say(
                    f"symptoms.estimate_{key}", model=model, size=f"{side}×{side}", low_bytes=memory.low_bytes,
                    high_bytes=memory.high_bytes,
                )
            )  # fmt: skip
        two = training_memory("textual_inversion", family, side, side, 2)
        more_bytes = max(more_bytes, two.high_bytes - inversion.high_bytes)
    return (*said, say("symptoms.estimate_training_batch", more_bytes=more_bytes))


def _video() -> tuple[Message, ...]:
    width, height = CLIP_SIZE
    clips = ((model, frames, video_memory(family, width, height, frames)) for family, model, frames in CLIPS)
    return tuple(
        say(
            "symptoms.estimate_video", model=model, size=f"{width}×{height}", frames=frames,
            step_bytes=memory.step_high_bytes, decode_bytes=memory.decode_high_bytes,
        )
        for model, frames, memory in clips
    )  # fmt: skip


def _group(name: str, items: list[Symptom], host: str, language: str) -> Html:
    heads = (
        tag("th", sentence(f"symptoms.head_{part}", language), scope="col") for part in ("symptom", "cause", "cures")
    )
    caption = tag("caption", sentence(f"symptoms.group_{name}", language))
    body = tag("tbody", *(_row(item, host, language) for item in items))
    return tag("table", caption, tag("thead", tag("tr", *heads)), body, class_="vg-table vg-symptoms")


def _row(item: Symptom, host: str, language: str) -> Html:
    title = join(
        tag("span", "●", class_="vg-lamp", hidden=True, aria_hidden="true"),
        tag("span", render(item.title, language)),
        tag("p", class_="vg-why", hidden=True),
    )
    first, *more = (diagnosis.cure(step, host, language) for step in item.cures)
    cures = tag("ul", first, class_="vg-cures vg-first")
    if more:
        label = render(say("symptoms.more_cures", count=len(more)), language)
        cures = join(
            cures, tag("details", tag("summary", label), tag("ul", *more, class_="vg-cures"), class_="vg-more")
        )
    figures = (tag("p", render(said, language), class_="vg-soft") for said in estimates(item.name))
    return tag(
        "tr", tag("th", title, scope="row"), tag("td", render(item.cause, language), *figures), tag("td", cures),
        data_symptom=item.name,
    )  # fmt: skip
