"""Times what people wait for, against the targets: an estimate, a plan, the hook, the import, a fresh trace.

    python tools/bench.py             a table
    python tools/bench.py --json      one JSON object on stdout

Sizes are drawn once from a fixed seed and never asked twice, so nothing is answered from memory except where
the row says so. Needs no GPU; the fresh trace needs torch (the CPU build is enough) and is left out without it.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lib_vram.estimate.estimator import estimate  # noqa: E402
from lib_vram.plan.search import make_plan  # noqa: E402
from lib_vram.request import Request  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402

PROFILES = ROOT / "lib_vram" / "physics" / "profiles"
SEED = 20250601
IMPORT_RUNS = 7

IMPORT_CODE = """
import time
start = time.perf_counter()
import lib_vram.callbacks
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Row:
    """One thing measured. ``p50`` and ``p95`` are ``None`` with a ``reason`` where it could not be measured."""

    name: str
    unit: str
    p50: float | None
    p95: float | None
    target_p50: float | None
    target_p95: float | None = None
    runs: int = 0
    reason: str = ""


def requests(how_many: int, *, tight: bool) -> Iterator[Request]:
    """Yield requests of both hosts and families, each at a size of its own; ``tight`` ones on cards too small."""
    rng = random.Random(SEED + tight)
    seen = set()
    while len(seen) < how_many:
        size = (rng.randrange(512, 1600, 8), rng.randrange(512, 1600, 8))
        if size in seen:
            continue
        seen.add(size)
        yield Request.from_dict(
            {
                "host": rng.choice(["a1111", "forge"]),
                "model": {"family": rng.choice(["sd15", "sdxl"])},
                "device": {"total_bytes": rng.choice([6, 8] if tight else [8, 12, 24]) * GIB},
                "width": size[0],
                "height": size[1],
                "batch_size": rng.choice([1, 2, 4] if tight else [1, 1, 2]),
                "hires": rng.choice([None, {"scale": 2.0}] if tight else [None, None, {"scale": 1.5}]),
            }
        )


def row(name: str, seconds: Sequence[float], target_p50: float, target_p95: float | None = None) -> Row:
    """Return the row of ``seconds``, in milliseconds."""
    times = sorted(1000 * value for value in seconds)
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    return Row(name, "ms", round(statistics.median(times), 3), round(p95, 3), target_p50, target_p95, len(times))


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that ``call`` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def new_estimates() -> Row:
    """Estimates at sizes never asked before."""
    asked = list(requests(120, tight=False))
    for request in asked[:20]:
        estimate(request)
    return row("estimate, new size", [timed(lambda: estimate(request)) for request in asked[20:]], 5, 20)  # noqa: B023


def repeated_estimates() -> Row:
    """The same estimates once more."""
    asked = list(requests(120, tight=False))
    return row("estimate, repeated", [timed(lambda: estimate(request)) for request in asked], 1)  # noqa: B023


def plans() -> Row:
    """Plans for requests that will not fit, whose estimate is there already, as in the page."""
    wanting = [request for request in requests(160, tight=True) if estimate(request).verdict == "wont_fit"]
    return row("plan", [timed(lambda: make_plan(request)) for request in wanting], 60)  # noqa: B023


def hook() -> Row:
    """What ``before_process`` adds to a generation at a size never asked before, without the host's own adapter."""
    if find_spec("lib_vram.guard.guard") is None:
        return Row("hook", "ms", None, None, 10, reason="the guard is not there")
    from lib_vram.guard.argument import RunArgument
    from lib_vram.guard.guard import Guard
    from lib_vram.host.base import Settings

    seconds = []
    for request in requests(100, tight=False):
        new = request.replace(width=request.width + 1088, device=replace(request.device, total_bytes=80 * GIB))
        host = SimpleNamespace(
            settings=Settings,
            joins=lambda p: False,
            restore=lambda p=None: None,
            prepare_run=lambda p, request: None,
            request_from_processing=lambda p, new=new: new,
        )
        p = SimpleNamespace(extra_generation_params={}, is_api=False)
        guard = Guard(host)  # type: ignore[arg-type]
        seconds.append(timed(lambda: guard.before_process(p, RunArgument())))  # noqa: B023
    return row("hook before a generation, new size", seconds, 10)


def imported() -> Row:
    """Import of everything that the WebUI loads, in a process of its own."""
    command = [sys.executable, "-c", IMPORT_CODE]
    seconds = []
    for _ in range(IMPORT_RUNS):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            return Row("import of the extension", "ms", None, None, 150, reason=reason)
        seconds.append(float(done.stdout))
    return row("import of the extension", seconds, 150)


def profile_size() -> Row:
    """What the shipped profiles take on disk."""
    size_mib = sum(path.stat().st_size for path in PROFILES.rglob("*") if path.is_file()) / MIB
    return Row("profiles on disk", "MiB", round(size_mib, 3), round(size_mib, 3), 1, runs=1)


def fresh_trace() -> Row:
    """A trace of SDXL's UNet at 1024 × 1024, model built anew."""
    name = "fresh SDXL trace"
    if find_spec("torch") is None:
        return Row(name, "s", None, None, 3, reason="torch is not installed")
    import torch

    from lib_vram.physics.program import Setting
    from tools.meta.layers import FORGE
    from tools.trace_profiles import denoise

    seconds = [timed(lambda: denoise("sdxl", torch.float16, FORGE).at(Setting(2, 128, 128))) for _ in range(3)]
    return Row(name, "s", round(statistics.median(seconds), 3), round(max(seconds), 3), 3, runs=3)


ROWS = (new_estimates, repeated_estimates, plans, hook, imported, profile_size, fresh_trace)


def table(rows: Sequence[Row]) -> str:
    """Return ``rows`` for people."""
    lines = [f"{'':36}{'p50':>10}{'p95':>10}{'target':>14}"]
    for item in rows:
        target = f"{item.target_p50:g}" + (f" / {item.target_p95:g}" if item.target_p95 else "")
        shown = f"{item.p50:>10}{item.p95:>10}" if item.p50 is not None else f"{'not measured':>20}"
        lines.append(f"{item.name:36}{shown}{target:>14} {item.unit}" + (f"  ({item.reason})" if item.reason else ""))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args(arguments)
    rows = [measure() for measure in ROWS]
    if asked.json:
        machine: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
        print(json.dumps({**machine, "rows": [asdict(item) for item in rows]}, indent=2))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
