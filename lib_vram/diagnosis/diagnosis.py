"""A diagnosis: what kind of failure a text shows, why, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lib_vram.diagnosis import memory_log
from lib_vram.diagnosis.attention_size import attention_evidence
from lib_vram.diagnosis.cause import Cause, Found, cause_of
from lib_vram.diagnosis.context import Context, context_evidence, symptom_by_context
from lib_vram.diagnosis.figures import read_figures, read_processes
from lib_vram.diagnosis.fragments import WENT_ON, Fragment, Kind
from lib_vram.diagnosis.numbers import Numbers, numbers_of
from lib_vram.diagnosis.phase import phase_of
from lib_vram.diagnosis.scan import Hit, Log, find_hits, read_log
from lib_vram.diagnosis.slow import slow_steps
from lib_vram.diagnosis.symptoms import cures
from lib_vram.message import Message, render, say

_BY_CAUSE: dict[str, str] = {
    "fragmentation": "worked-then-failed",
    "other_processes": "others-compete",
    "size_cliff": "large-sizes",
    "allocation_cap": "one-block",
    "driver_report": "driver-refused",
}
_BY_PHASE: dict[str | None, str] = {
    "load": "load-fails",
    "text_encode": "load-fails",
    "vae_decode": "fails-at-end",
    "vae_encode": "fails-at-end",
    "controlnet_preprocess": "extras",
    "detailer": "extras",
    "face_restore": "extras",
    "hires_upscale": "upscaling",
    "hires_sampling": "upscaling",
    "training": "training",
}


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a failure. ``cause`` is ``None`` where the text does not decide it."""

    kind: Kind
    cause: Cause | None
    recovered: bool
    symptom: str | None
    summary: Message
    numbers: Numbers
    contradictory: bool
    evidence: tuple[Message, ...]
    fixes: tuple[Message, ...]
    phase: str | None = None
    line: str = ""
    """The line that decided, in small letters; ``""`` when none did."""
    place: int = 0
    """Where that line begins in the text that was read, in bytes."""

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's form, with its sentences in ``language``."""
        return {
            "kind": self.kind,
            "cause": self.cause,
            "recovered": self.recovered,
            "symptom": self.symptom,
            "summary": render(self.summary, language),
            "numbers": self.numbers.to_dict(),
            "contradictory": self.contradictory,
            "evidence": [render(item, language) for item in self.evidence],
            "fixes": [render(item, language) for item in self.fixes],
        }


def diagnose(text: str | bytes, context: Context | None = None) -> Diagnosis:
    """Return what ``text`` (an error or a console log of any length, any bytes) shows. Never raises for any text.

    ``context`` is what the session knows beside it: what ran last, what had worked, and the state of the machine.
    """
    context = context or Context()
    log = read_log(text)
    hits = find_hits(log)
    first = _first(log, hits) or slow_steps(log)
    if first is None:
        return _unknown(log, context)
    return _diagnosis(log, first, hits, context)


def _first(log: Log, hits: list[Hit]) -> Hit | None:
    """Return the first real cause: by tier and then by place, unless the very next lines say that the run went on."""
    ranked = sorted(hits, key=lambda hit: (hit.fragment.tier, hit.order))
    for hit in ranked[:8]:
        if hit.fragment.recovered or not _went_on(log, hit, hits):
            return _after_the_start(log, hit, ranked)
    return ranked[0] if ranked else None


def _after_the_start(log: Log, first: Hit, ranked: list[Hit]) -> Hit:
    """Return ``first``, or what failed once the program ran when ``first`` is an extension that could not be loaded."""
    if first.fragment.kind != "wrong_build" or (started := log.started_at()) < log.place_of(first):
        return first
    others = (
        hit for hit in ranked[:20] if hit.fragment.tier == first.fragment.tier and hit.fragment.kind != "wrong_build"
    )
    return next((hit for hit in others if log.place_of(hit) > started), first)


def _went_on(log: Log, hit: Hit, hits: list[Hit]) -> bool:
    """Whether the lines after the failure ``hit`` say that it was tried otherwise, and that did not fail too."""
    alike = [item for item in hits if item.fragment.kind == hit.fragment.kind]
    retries = [item for item in alike if item.fragment.tier == WENT_ON][:8]
    said = [item.line.decode("utf-8", "replace").strip() for item in retries]
    lines = log.window(log.place_of(hit))[1].lower().splitlines()[1:4] if said else []
    if not any(words in line for words in said for line in lines):
        return False
    rest = log.after_the_last([item.line for item in retries])
    return not any(item.line in rest for item in alike[:50] if not item.fragment.recovered)


def _diagnosis(log: Log, first: Hit, hits: list[Hit], context: Context) -> Diagnosis:
    fragment = first.fragment
    place = log.place_of(first)
    before, after = log.window(place)
    line = after.partition("\n")[0]  # Forge's own log may stand on the failure's line
    figures = read_figures(after) if fragment.kind in ("gpu_memory", "host_memory") else {}
    numbers, contradictory = numbers_of(figures)
    phase = phase_of(before, after) if fragment.kind in ("gpu_memory", "precision") else None
    found = Found(None, ())
    if fragment.kind == "gpu_memory":
        found = cause_of(numbers, figures.get("allowed"), fragment.cause or _said_next(first, hits))
        if found.cause is None:
            found = memory_log.cause_of(before + line) or Found(None, ())
    symptom = _symptom(fragment, found.cause, phase, context)
    evidence = (
        *_quoted(after),
        *_noted(fragment),
        *found.evidence,
        *_said_by_figures(numbers, contradictory, after),
        *attention_evidence(numbers.requested_bytes if fragment.kind == "gpu_memory" else None, context.failed),
        *((say(f"diagnosis.phase_{phase}"),) if phase else ()),
        *memory_log.evidence(before + line if fragment.kind in ("gpu_memory", "slow_spill", "host_memory") else ""),
        *_others_in_log(first, hits),
        *context_evidence(context),
    )
    return Diagnosis(
        kind=fragment.kind,
        cause=found.cause,
        recovered=fragment.recovered,
        symptom=symptom,
        summary=_summary(fragment, found.cause, phase),
        numbers=numbers,
        contradictory=contradictory,
        evidence=evidence,
        fixes=tuple(cure.message(context.host) for cure in cures(symptom)),
        phase=phase,
        line=first.line.decode("utf-8", "replace").strip()[:300],
        place=place,
    )


def _unknown(log: Log, context: Context) -> Diagnosis:
    empty = not log.content.strip()
    return Diagnosis(
        kind="unknown", cause=None, recovered=False, symptom=None,
        summary=say("diagnosis.summary_empty" if empty else "diagnosis.summary_unknown"),
        numbers=Numbers(), contradictory=False, evidence=context_evidence(context),
        fixes=() if empty else (say("diagnosis.fix_more_text"),),
    )  # fmt: skip


def _said_next(first: Hit, hits: list[Hit]) -> str | None:
    """Return the cause that the line after ``first`` names, where it speaks of the same kind of failure."""
    following = (hit for hit in hits if hit.order == first.order + 1 and hit.fragment.kind == first.fragment.kind)
    return next((hit.fragment.cause for hit in following), None)


def _symptom(fragment: Fragment, cause: Cause | None, phase: str | None, context: Context) -> str | None:
    if fragment.symptom is not None and fragment.symptom != "one-block":
        return fragment.symptom
    if phase == "training":
        return "training"
    if cause in _BY_CAUSE:
        return _BY_CAUSE[cause]
    return symptom_by_context(context) or _BY_PHASE.get(phase, "sampling-start")


def _summary(fragment: Fragment, cause: Cause | None, phase: str | None) -> Message:
    if fragment.kind == "gpu_memory" and fragment.recovered:
        return say("diagnosis.summary_went_on")
    if fragment.kind == "gpu_memory" and cause is not None:
        return say(f"diagnosis.summary_{cause}")
    if fragment.note in ("kernel_killed", "page_file", "killed", "access_violation", "read_only", "disk_reading",
                         "precisions_mixed", "nan_retried"):  # fmt: skip
        return say(f"diagnosis.summary_{fragment.note}")
    return say(f"diagnosis.summary_{fragment.kind}")


def _quoted(after: str) -> tuple[Message, ...]:
    """Quote the line that decided, as it stands in the text."""
    text = " ".join(after.partition("\n")[0][:1000].split())
    return (say("diagnosis.evidence_line", line=text if len(text) <= 160 else text[:157] + "..."),) if text else ()


def _noted(fragment: Fragment) -> tuple[Message, ...]:
    return (say("diagnosis.note_disguised"),) if fragment.note == "disguised" else ()


def _said_by_figures(numbers: Numbers, contradictory: bool, after: str) -> tuple[Message, ...]:
    said = []
    for number, held_bytes in list(read_processes(after).items())[:4]:
        own = numbers.reserved_bytes is not None and held_bytes >= numbers.reserved_bytes
        key = "diagnosis.evidence_process_own" if own else "diagnosis.evidence_process"
        said.append(say(key, number=number, held_bytes=held_bytes))
    if contradictory:
        said.append(say("diagnosis.evidence_contradictory"))
    return tuple(said)


def _others_in_log(first: Hit, hits: list[Hit]) -> tuple[Message, ...]:
    """Say what else the log holds, so that nobody takes the last line for the cause."""
    later = {hit.fragment.kind for hit in hits if hit is not first} - {first.fragment.kind}
    again = sum(hit.fragment.kind == first.fragment.kind and not hit.fragment.recovered for hit in hits)
    said = []
    if later and not first.fragment.recovered:
        said.append(say("diagnosis.evidence_later"))
    if again > 1 and not first.fragment.recovered:
        said.append(say("diagnosis.evidence_again", count=again))
    return tuple(said)
