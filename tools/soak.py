"""Runs the Lab for a long time: mixed generations with failures, interrupts, reloads, restarts and other checkpoints.

    python tools/soak.py                      2,000 generations on a machine that takes more than is computed
    python tools/soak.py --runs 200 --seed 7  another, shorter one
    python tools/soak.py --json               one JSON object on stdout
    python tools/soak.py --document           writes the figures into docs/reliability.md

Everything is drawn from the seed; the card is virtual (``soak_card.py``), so no GPU is needed. Exit status 1 when
something leaked, a picture was lost, or a verdict was wrong after the first fault of its kind.

A *kind* is a phase with its model, types, attention and tiling on one machine (card, driver, flags, …), as lessons are
kept by. Its *first fault* is the first run that was said to run, after whatever the guard had changed, and ran out in
that phase, while no other program took memory and memory was not in pieces. A verdict is *wrong* after that when
another run is said to run and runs out in a phase of the same kind in the same way.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402

from lib_vram.estimate import estimator  # noqa: E402
from lib_vram.estimate.residency import CONTEXT_BYTES  # noqa: E402
from lib_vram.guard import learned  # noqa: E402
from lib_vram.guard.guard import Guard  # noqa: E402
from lib_vram.host.lab import CHECKPOINTS, LabHost  # noqa: E402
from lib_vram.lab import rescue, run  # noqa: E402
from lib_vram.learning.lessons import kind_of  # noqa: E402
from lib_vram.learning.record import Run  # noqa: E402
from lib_vram.request import Request  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402
from tools.soak_card import Broken, Machine  # noqa: E402

GENERATIONS = 2000
RUNS = ("fits", "tight")
SEED = 20260101
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
EDGE_SHARE = 0.5
"""Of the forms, those with the largest batch that is said to run: people use what they have."""
MOST_BATCH = 24
EVENTS = {
    "generate": 72, "error": 4, "squeeze": 4, "pieces": 3, "interrupt": 4, "skip": 3, "reload": 3, "restart": 2,
    "update": 0.5, "free": 4,
}  # fmt: skip
"""How often, in parts. ``squeeze``: another program takes memory in mid-run; ``pieces``: it lies in pieces; ``update``:
another driver, with other deviations. The rest is a run with its usual end."""


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
    kinds: set[str] = field(default_factory=set)
    """All kinds that have run."""
    faults: set[str] = field(default_factory=set)
    """Kinds that have run out though they were said to run."""
    after_first: Counter[str] = field(default_factory=Counter)
    """What was said of runs with a kind that had failed before, and what came of it."""


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
    kinds: int
    after_first: dict[str, int]
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


class Soak:
    """One soak: a Lab, its data folder, and the random choices."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self.machine = Machine(self._chance)
        self.machine.noticed = self._noticed
        self.skips = False
        self.tally = Tally()
        self._updates = 0
        self.guard = self._started()

    def _started(self) -> Guard:
        host = LabHost(mode="fix")
        driver = str(self._updates)
        vars(host)["version"] = lambda: driver  # what makes it another machine in the file of runs
        guard = Guard(host)
        guard.start()
        guard.learned.open(self._folder)
        recorder = guard.learned.recorder
        measured, tells = recorder.measured, self.machine.tells_held
        vars(recorder)["measured"] = lambda name, peak, held: measured(name, peak, held if tells else None)
        run.CONTEXT_BYTES = CONTEXT_BYTES + self.machine.held_bytes
        return guard

    def _noticed(self, others_bytes: int) -> None:
        at_work = self.guard.learned.recorder._open
        at_work.others_bytes = at_work.request.device.used_by_others_bytes + others_bytes

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
        elif event in ("restart", "update"):
            self._restart(event)
        elif event == "free":
            self.guard.host.free(self._chance.choice(("cache", "models")))
        self._generate(event)

    def _restart(self, event: str) -> None:
        self.guard.stop()
        self.guard.learned.recorder.close()
        if event == "update":
            self._updates += 1
            self.machine.renew()
        self.guard = self._started()

    def _generate(self, event: str) -> None:
        form, argument = self._form(), self._chance.choice(("", "", "run", "fix"))
        if self._chance.random() < EDGE_SHARE:
            form["batch_size"] = self._edge(form)
        request = self.guard.host.request_from_form("txt2img", form)
        self.machine.event = event if event in ("error", "squeeze", "pieces") else "generate"
        self.skips = event == "skip"
        steps = run.generate(self.guard, "txt2img", form, argument, "en")
        last = _last(steps, self._chance.randint(1, 3) if event == "interrupt" else None)
        self.guard.learned.recorder.settle()
        kept = self._kept()
        if event == "interrupt":
            self.tally.outcomes["interrupted"] += 1
        elif last is None or event == "error":
            self.tally.outcomes["other error"] += 1
        else:
            said_to_run = kept is not None and kept.verdict in RUNS
            self._note(event, request, last, is_new=self._followed(event, kept), said_to_run=said_to_run)

    def _kept(self) -> Run | None:
        """Return what was kept of the run that has just ended."""
        return next(iter(self.guard.learned.store.runs(most=1)), None)

    def _edge(self, form: dict[str, Any]) -> int:
        """Return the largest batch that is said to run, 1 where none is."""
        request = self.guard.host.request_from_form("txt2img", form)
        low, high = 1, MOST_BATCH
        while low < high:
            middle = (low + high + 1) // 2
            runs = self.guard.estimate(request.replace(batch_size=middle)).verdict in RUNS
            low, high = (middle, high) if runs else (low, middle - 1)
        return low

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

    def _note(self, event: str, request: Request, last: Any, *, is_new: bool, said_to_run: bool) -> None:
        """Count what came of a run that nobody has stopped."""
        tally, asked = self.tally, request.images
        if last.images:
            rescued = "rescued in" in last.infotext_html
            tally.outcomes["rescued" if rescued else "skipped" if event == "skip" else "done"] += 1
            tally.pictures_asked += asked
            tally.pictures_made += len(last.images)
            if len(last.images) != asked:
                tally.lost.append(f"{len(last.images)} of {asked} pictures: {_about(request)}")
            return
        tally.outcomes["out of memory"] += 1
        tally.first_unrescued += is_new
        if said_to_run and not is_new:
            tally.lost.append(f"nothing of {asked} pictures ({event}): {_about(request)}")

    def _followed(self, event: str, kept: Run | None) -> bool:
        """Compare what was said with what came of it; return whether it was the first fault of its kind."""
        if kept is None:
            return False
        tally, said_to_run = self.tally, kept.verdict in RUNS
        kinds = {f"{kept.machine.key}|{kind_of(record.name, kept.request)}" for record in kept.phases}
        tally.kinds |= kinds
        failed = f"{kept.machine.key}|{kind_of(kept.fault.phase, kept.request)}" if kept.fault else None
        if event in ("squeeze", "pieces"):
            return False
        if failed is None or not said_to_run:
            if kinds & tally.faults and kept.outcome != "stopped":
                said = "said to run" if said_to_run else "said not to fit"
                tally.after_first[f"{said}, {'ran out' if failed else 'ran'}"] += 1
            return False
        if failed in tally.faults:
            tally.wrong_after_first.append(f"{kept.fault.phase}: {kept.verdict} {kept.request}")
            return False
        tally.faults.add(failed)
        tally.first_faults += 1
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
def _on(at_work: Soak) -> Iterator[None]:
    """Let the Lab run on the soak's machine, without waiting between phases and with the smallest of pictures."""
    with (
        mock.patch.object(run, "SECONDS_A_PHASE", 0),
        mock.patch.object(run, "draw", lambda width, height, seed: Image.new("RGB", (8, 8))),
        mock.patch.object(rescue, "simulate_steps", at_work.machine.steps),
        mock.patch.object(learned, "was_stopped", lambda: at_work.skips),
    ):
        yield


def soak(runs: int = GENERATIONS, seed: int = SEED, folder: Path | None = None) -> Report:
    """Return the figures of ``runs`` generations; ``folder`` is where runs are kept, by default a new one."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as made, mock.patch.object(run, "CONTEXT_BYTES", CONTEXT_BYTES):
        at_work = Soak(folder or Path(made), seed)
        with _on(at_work):
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
        wrong_after_first=tally.wrong_after_first, kinds=len(tally.kinds),
        after_first=dict(sorted(tally.after_first.items())), left_open=done.left_open(), warm=warm, end=end,
        traced_runs=traced[0], traced_bytes=traced[1],
        kept_runs=len(store.runs(most=10**6)), file_bytes=os.path.getsize(store.path),
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=GENERATIONS)
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
        ("First faults: said to run, ran out",
         f"{report.first_faults} of {report.kinds} kinds; {report.first_unrescued} of these runs were not rescued"),
        ("Runs with such a kind after that", _counted(report.after_first)),
        ("Said to run and ran out after the first fault of the kind", str(len(report.wrong_after_first))),
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
