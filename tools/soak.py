"""Runs the Lab for a long time: mixed generations with failures, interrupts, reloads, restarts and other checkpoints.

    python tools/soak.py                      2,000 generations on a card that holds more than is computed
    python tools/soak.py --runs 200 --seed 7  another, shorter one
    python tools/soak.py --json               one JSON object on stdout
    python tools/soak.py --document           writes the figures into docs/reliability.md

Everything is drawn from the seed; the card is virtual, so no GPU is needed. Exit status 1 when something leaked, a
picture was lost, or a verdict was wrong after the first fault of its kind.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import re
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402

from lib_vram.errors import DeviceOutOfMemory  # noqa: E402
from lib_vram.estimate import estimator  # noqa: E402
from lib_vram.estimate.residency import CONTEXT_BYTES  # noqa: E402
from lib_vram.estimate.simulate import PhaseOutOfMemory, PhaseRun, error_text, simulate_steps  # noqa: E402
from lib_vram.guard.guard import Guard  # noqa: E402
from lib_vram.host.lab import CHECKPOINTS, LabHost  # noqa: E402
from lib_vram.lab import rescue, run  # noqa: E402
from lib_vram.learning.lessons import kind_in  # noqa: E402
from lib_vram.request import Request  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402

RUNS = 2000
SEED = 20260101
HELD_BYTES = 320 * MIB
"""What the virtual driver holds beyond what is computed: the machine on which every first estimate is too low."""
DECODE_SHARE = 0.15
"""Of the computed activations of the VAE decode: what its kernels take beyond them on this machine."""
NOISE = 0.004
"""Standard deviation of a phase's peak from run to run, as a share."""
WARM_SHARE = 0.25
"""Of the runs, after which the first look for leaks is taken: by then everything that is loaded once is loaded."""
DOCUMENT = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- soak: begin -->", "<!-- soak: end -->")

TRACED_SHARE, MOST_TRACED = 0.2, 100
"""The last runs, in which every block of Python's own memory is followed: that makes them several times as slow."""

LEAK_BYTES = MIB
"""Python's own memory may grow by so much over the traced runs: a lesson more, a longer list of faults."""
LEAK_RSS_BYTES = 48 * MIB
LEAK_OBJECTS = 20_000

CARDS = (8, 12)
SIZES = ((512, 512), (512, 768), (768, 768), (832, 1216), (1024, 1024), (1152, 896), (1024, 1536))
EVENTS = {"generate": 78, "error": 4, "squeeze": 5, "interrupt": 5, "reload": 3, "restart": 1, "free": 4}
"""How often, in parts. ``squeeze``: another program takes memory in mid-run. The rest is a run with its usual end."""


class Broken(RuntimeError):
    """A fault that has nothing to do with memory, as an extension's."""


@dataclass
class Tally:
    """What was seen."""

    events: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    pictures_asked: int = 0
    pictures_made: int = 0
    first_faults: int = 0
    first_unrescued: int = 0
    wrong_after_first: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    cautious: int = 0
    """Runs that were said not to fit and fitted: computed with a margin, or learned from a failure."""
    faults: set[str] = field(default_factory=set)
    known_verdicts: int = 0


@dataclass(frozen=True)
class Look:
    """What the process holds at one moment."""

    objects: int
    rss_bytes: int | None
    files: int | None
    threads: int


@dataclass(frozen=True)
class Report:
    """The figures of one soak."""

    runs: int
    seed: int
    seconds: float
    python: str
    events: dict[str, int]
    outcomes: dict[str, int]
    pictures_asked: int
    pictures_made: int
    lost: list[str]
    first_faults: int
    first_unrescued: int
    """Of these, those of which nothing came: nothing smaller was left to try."""
    wrong_after_first: list[str]
    cautious: int
    verdicts: int
    left_open: list[str]
    warm: Look
    end: Look
    traced_runs: int
    traced_bytes: int
    """By how much Python's own memory grew over the traced runs."""
    kept_runs: int
    file_bytes: int

    @property
    def troubles(self) -> list[str]:
        """Return what is not as it should be, in words."""
        found = [f"lost: {item}" for item in self.lost]
        found += [f"wrong verdict after the first fault of its kind: {item}" for item in self.wrong_after_first]
        found += [f"left open: {item}" for item in self.left_open]
        if self.traced_bytes > LEAK_BYTES:
            found.append(f"leak: Python's memory grew by {self.traced_bytes} bytes in {self.traced_runs} runs")
        limits = {"objects": LEAK_OBJECTS, "rss_bytes": LEAK_RSS_BYTES, "files": 0,
                  "threads": 0}  # fmt: skip
        for name, limit in limits.items():
            before, after = getattr(self.warm, name), getattr(self.end, name)
            if before is not None and after is not None and after - before > limit:
                found.append(f"leak: {name} grew from {before} to {after}")
        return found


class Card:
    """The virtual card of a machine that differs from what is computed, and what happens on it in mid-run."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.event = "generate"

    def steps(self, request: Request) -> Iterator[PhaseRun]:
        """Run ``request`` as :func:`simulate_steps`, on a card whose driver holds more."""
        others = request.device.used_by_others_bytes
        device = replace(request.device, used_by_others_bytes=min(request.device.total_bytes, others + HELD_BYTES))
        event, self.event = self.event, "generate"  # a second try finds the memory free again
        breaks_in = self._chance.choice(("sampling", "vae_decode"))
        for phase in self._heavier(request, device):
            if phase.name == breaks_in and event == "error":
                raise Broken("an extension's own fault")
            if phase.name == breaks_in and event == "squeeze":
                raise _squeezed(request, phase)
            yield self._measured(request, phase)

    def _measured(self, request: Request, phase: PhaseRun) -> PhaseRun:
        """Return what ``phase`` took here; it runs out where that is more than there is."""
        off = 1 + self._chance.gauss(0, NOISE)
        more = _decode_bytes(request) if phase.name == "vae_decode" else 0
        allocated, reserved = (
            int(size_bytes * off) + more for size_bytes in (phase.allocated_peak_bytes, phase.reserved_peak_bytes)
        )
        room = request.device.total_bytes - request.device.used_by_others_bytes - CONTEXT_BYTES - HELD_BYTES
        if allocated > room:
            fault = DeviceOutOfMemory(
                requested_bytes=allocated - room + MIB, limit_bytes=room, allocated_bytes=room - MIB,
                reserved_bytes=room,
            )  # fmt: skip
            raise PhaseOutOfMemory(fault, phase.name, room, error_text(request, fault))
        return replace(phase, allocated_peak_bytes=allocated, reserved_peak_bytes=min(reserved, room))

    @staticmethod
    def _heavier(request: Request, device: Any) -> Iterator[PhaseRun]:
        try:
            yield from simulate_steps(request.replace(device=device))
        except PhaseOutOfMemory as error:
            # To the process the driver's part looks like its own: torch says what is left, not who holds it.
            raise PhaseOutOfMemory(error, error.phase, error.peak_bytes, error_text(request, error)) from None


def _decode_bytes(request: Request) -> int:
    """Return what the VAE's kernels take beyond what is computed."""
    phases = estimator.estimate(request).phases
    return int(DECODE_SHARE * next((phase.floor_bytes for phase in phases if phase.name == "vae_decode"), 0))


def _squeezed(request: Request, phase: PhaseRun) -> PhaseOutOfMemory:
    """Return the failure of a phase whose memory another program has just taken."""
    fault = DeviceOutOfMemory(requested_bytes=256 * MIB, limit_bytes=0, allocated_bytes=0, reserved_bytes=0)
    held_gib = (CONTEXT_BYTES + phase.reserved_peak_bytes) / GIB / 2
    text = (
        "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of "
        f"{request.device.total_bytes / GIB:.2f} GiB of which 12.00 MiB is free. Including non-PyTorch memory, this "
        f"process has {held_gib:.2f} GiB memory in use."
    )
    return PhaseOutOfMemory(fault, phase.name, 0, text)


class Soak:
    """One soak: a Lab, its data folder, and the random choices."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self.card = Card(self._chance)
        self.tally = Tally()
        self.guard = self._started()

    def _started(self) -> Guard:
        guard = Guard(LabHost(mode="fix"))
        guard.start()
        guard.learned.open(self._folder)
        return guard

    def steps(self, count: int) -> None:
        """Do the next ``count`` things."""
        for _ in range(count):
            self.step()

    def step(self) -> None:
        """Do the next thing, whatever it is, and note what came of it."""
        event = self._chance.choices(list(EVENTS), list(EVENTS.values()))[0]
        self.tally.events[event] += 1
        if event == "reload":
            self.guard.stop()
            self.guard.start()
        elif event == "restart":
            self._restart()
        elif event == "free":
            self.guard.host.free(self._chance.choice(("cache", "models")))
        self._generate(event)

    def _restart(self) -> None:
        self.guard.stop()
        self.guard.learned.recorder.close()
        self.guard = self._started()

    def _generate(self, event: str) -> None:
        form, argument = self._form(), self._chance.choice(("", "", "run", "fix"))
        check = self.guard.check_form("txt2img", form)
        self.tally.known_verdicts += check.estimate.verdict != "unknown"
        self.card.event = event if event in ("error", "squeeze") else "generate"
        steps = run.generate(self.guard, "txt2img", form, argument, "en")
        stop_after = self._chance.randint(1, 3) if event == "interrupt" else None
        last = _last(steps, stop_after)
        if stop_after is not None:
            self.tally.outcomes["interrupted"] += 1
        else:
            self._note(event, argument, check, last)
        self.guard.learned.recorder.settle()

    def _form(self) -> dict[str, Any]:
        chance = self._chance
        width, height = chance.choice(SIZES)
        forge = chance.random() < 0.25
        form = {
            "lab_total_gib": chance.choice(CARDS), "lab_others_gib": chance.choice((0.5, 1)),
            "lab_host": "Forge" if forge else "AUTOMATIC1111", "lab_mode": chance.choice(("Fix", "Ask", "Show")),
            "lab_flags": "none" if forge or chance.random() < 0.7 else "--medvram", "lab_rescue": True,
            "checkpoint": chance.choice(CHECKPOINTS).name, "width": width, "height": height,
            "batch_size": chance.choice((1, 1, 1, 2, 4, 8)), "batch_count": chance.choice((1, 1, 2)),
            "enable_hr": chance.random() < 0.25, "hr_scale": chance.choice((1.5, 2.0)), "prompt": "a boat",
            "vae_tiled": chance.random() < 0.15, "vae_tile_size": 512,
        }  # fmt: skip
        return form

    def _note(self, event: str, argument: str, check: Any, last: Any) -> None:
        """Compare what was said with what came of it."""
        tally, said = self.tally, check.estimate.verdict
        if last is None or event == "error":
            tally.outcomes["other error"] += 1
            return
        asked = check.request.images
        if last.images:
            tally.outcomes["rescued" if "rescued in" in last.infotext_html else "done"] += 1
            tally.pictures_asked += asked
            tally.pictures_made += len(last.images)
            if len(last.images) != asked:
                tally.lost.append(f"{len(last.images)} of {asked} pictures: {_about(check.request)}")
            tally.cautious += said == "wont_fit" and argument == "run" and "rescued in" not in last.infotext_html
        else:
            tally.outcomes["out of memory"] += 1
        ran_out = not last.images or "rescued in" in last.infotext_html
        is_first = ran_out and said in ("fits", "tight") and event != "squeeze" and self._is_first(check, last)
        tally.first_unrescued += is_first and not last.images
        if not last.images and said in ("fits", "tight") and not is_first:
            tally.lost.append(f"nothing of {asked} pictures ({event}): {_about(check.request)}")

    def _is_first(self, check: Any, last: Any) -> bool:
        """Note a run that ran out though it was said to fit: the first of its kind, or one too many."""
        named = re.search(r"rescued in ([a-z ]+)", last.infotext_html)
        phase = named[1].strip().replace(" ", "_") if named else str(check.estimate.binding_phase)
        recorder = self.guard.learned.recorder
        kind = f"{recorder._machine(check.request).key}|{kind_in(phase, check.request)}"
        if kind in self.tally.faults:
            self.tally.wrong_after_first.append(f"{phase}: {_about(check.request)}")
            return False
        self.tally.faults.add(kind)
        self.tally.first_faults += 1
        return True

    def left_open(self) -> list[str]:
        """Return what a run has left behind."""
        recorder, host, session = self.guard.learned.recorder, self.guard.host, self.guard.session
        found = {
            "a run of the session": bool(session._open), "a run of the recorder": recorder._open is not None,
            "a run of the host": bool(host._at_work), "something unwritten": bool(recorder._queue.unfinished_tasks),
        }  # fmt: skip
        return [name for name, is_open in found.items() if is_open]


def _last(steps: Iterator[Any], stop_after: int | None) -> Any:
    """Return the last state of a generation, ``None`` when it broke off or was stopped."""
    last = None
    try:
        for count, state in enumerate(steps, start=1):
            last = state
            if count == stop_after:
                steps.close()
                return None
    except Broken:
        return None
    return last


def _about(request: Request) -> str:
    hires = f" hires {request.hires.scale:g}" if request.hires else ""
    return (
        f"{request.host} {request.model.family} {request.model.weights_dtype} {request.width}x{request.height}"
        f" batch {request.batch_size}x{request.batch_count}{hires}{' tiled' if request.vae.tiled else ''}"
        f" on {request.device.total_bytes // GIB} GiB"
    )


def _settle() -> None:
    """Empty every cache that may be emptied, and let go of what nobody holds."""
    estimator.forget()
    for _ in range(3):
        gc.collect()


def look() -> Look:
    """Return what the process holds when its caches are empty."""
    _settle()
    files = Path("/proc/self/fd")
    return Look(
        objects=len(gc.get_objects()),
        rss_bytes=_rss(),
        files=len(list(files.iterdir())) if files.is_dir() else None,
        threads=threading.active_count(),
    )


def _rss() -> int | None:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else None


@contextmanager
def _on(card: Card) -> Iterator[None]:
    """Let the Lab run on ``card``, without waiting between phases and with the smallest of pictures."""
    with (
        mock.patch.object(run, "SECONDS_A_PHASE", 0),
        mock.patch.object(run, "CONTEXT_BYTES", CONTEXT_BYTES + HELD_BYTES),
        mock.patch.object(run, "draw", lambda width, height, seed: Image.new("RGB", (8, 8))),
        mock.patch.object(rescue, "simulate_steps", card.steps),
    ):
        yield


def soak(runs: int = RUNS, seed: int = SEED, folder: Path | None = None) -> Report:
    """Return the figures of ``runs`` generations; ``folder`` is where runs are kept, by default a new one."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as made:
        at_work = Soak(folder or Path(made), seed)
        with _on(at_work.card):
            traced = min(MOST_TRACED, int(runs * TRACED_SHARE))
            warm_at = max(1, int((runs - traced) * WARM_SHARE))
            at_work.steps(warm_at)
            warm = look()
            at_work.steps(runs - traced - warm_at)
            end = look()
            grown_bytes = _traced(at_work, traced)
        report = _report(at_work, runs, seed, time.perf_counter() - begun, warm, end, (traced, grown_bytes))
        at_work.guard.stop()
        at_work.guard.learned.recorder.close()
    return report


def _traced(at_work: Soak, runs: int) -> int:
    """Return by how much Python's own memory grows over ``runs`` runs, after a third of them as a start."""
    tracemalloc.start()
    try:
        at_work.steps(runs // 3)
        _settle()
        before = tracemalloc.get_traced_memory()[0]
        at_work.steps(runs - runs // 3)
        _settle()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def _report(done: Soak, runs: int, seed: int, seconds: float, warm: Look, end: Look, traced: tuple[int, int]) -> Report:
    tally, store = done.tally, done.guard.learned.store
    return Report(
        runs=runs, seed=seed, seconds=round(seconds, 1),
        python=f"Python {platform.python_version()} on {platform.system()}",
        events=dict(sorted(tally.events.items())), outcomes=dict(sorted(tally.outcomes.items())),
        pictures_asked=tally.pictures_asked, pictures_made=tally.pictures_made, lost=tally.lost,
        first_faults=tally.first_faults, first_unrescued=tally.first_unrescued,
        wrong_after_first=tally.wrong_after_first, cautious=tally.cautious,
        verdicts=tally.known_verdicts, left_open=done.left_open(), warm=warm, end=end,
        traced_runs=traced[0], traced_bytes=traced[1],
        kept_runs=len(store.runs(most=10**6)), file_bytes=os.path.getsize(store.path),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--document", action="store_true", help="write the figures into docs/reliability.md")
    chosen = parser.parse_args(argv)
    report = soak(chosen.runs, chosen.seed)
    print(json.dumps(asdict(report)) if chosen.json else "\n".join(lines(report)))
    if chosen.document:
        write_into(DOCUMENT, report)
    return 1 if report.troubles else 0


def lines(report: Report) -> list[str]:
    """Return the report as text."""
    return [*_table(report), "", *(report.troubles or ["Nothing leaked, nothing was lost."])]


def _table(report: Report) -> list[str]:
    """Return the figures as rows of a table in Markdown."""
    warm, end = report.warm, report.end
    last = report.runs - report.traced_runs
    at = max(1, int(last * WARM_SHARE))
    rows = [
        ("Generations", f"{report.runs}, seed {report.seed}, {report.seconds:.0f} s, {report.python}"),
        ("What happened", _counted(report.events)),
        ("How they ended", _counted(report.outcomes)),
        ("Pictures of the runs that ended well", f"{report.pictures_made} of {report.pictures_asked}"),
        ("Other runs said to fit of which nothing came", str(len(report.lost))),
        ("First faults: said to fit, ran out", f"{report.first_faults} kinds, {report.first_unrescued} not rescued"),
        ("Said to fit and ran out after the first of the kind", str(len(report.wrong_after_first))),
        ("Said not to fit, run all the same, and fitted", str(report.cautious)),
        (f"Python's own memory over the last {report.traced_runs}", f"{report.traced_bytes / 1024:+.0f} KiB"),
        (f"Objects after {at} and {last}", f"{warm.objects} and {end.objects}"),
        (f"RSS after {at} and {last}", _two(warm.rss_bytes, end.rss_bytes, MIB, "MiB")),
        ("Open files", f"{warm.files} and {end.files}"), ("Threads", f"{warm.threads} and {end.threads}"),
        ("Kept in the history's file", f"{report.kept_runs} runs, {report.file_bytes / MIB:.1f} MiB"),
    ]  # fmt: skip
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _two(first: int | None, second: int | None, unit: int, name: str) -> str:
    if first is None or second is None:
        return "not known"
    return f"{first / unit:.1f} and {second / unit:.1f} {name}"


def write_into(path: Path, report: Report) -> None:
    """Put the table between the marks of the document."""
    text = path.read_text(encoding="utf-8")
    before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
    path.write_text("\n".join((before + MARKS[0], *_table(report), MARKS[1] + after)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
