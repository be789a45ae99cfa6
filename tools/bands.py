"""Tries the correction by simulation: does the next run lie in the band, whatever this machine's runs are like?

    python tools/bands.py               the table
    python tools/bands.py --document    writes it into docs/reliability.md

Each machine has a deviation of its own and runs that scatter around it; the band after a few runs is what
``lib_vram.learning`` shows. Everything is drawn from one seed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lib_vram.estimate.result import Estimate, PhaseEstimate  # noqa: E402
from lib_vram.learning.correct import apply  # noqa: E402
from lib_vram.learning.lessons import Lessons, Observation, kind_in  # noqa: E402
from lib_vram.request import DeviceSpec, ModelSpec, Request  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402

SEED = 20260101
COUNTS = (2, 3, 4, 6, 10, 20, 40)
TRIES = 2000
DOCUMENT = ROOT / "docs" / "reliability.md"
MARKS = ("<!-- bands: begin -->", "<!-- bands: end -->")

REQUEST = Request(DeviceSpec(24 * GIB, "NVIDIA GeForce RTX 3090"), ModelSpec("sdxl"), 1024, 1024)
KIND = kind_in("vae_decode", REQUEST)
ACTIVATIONS_BYTES = 2000 * MIB
SCATTER = 0.015
"""Of the activations: the standard deviation of the runs, or what stands for one."""
OUTLIER_BYTES, OUTLIER_SHARE = 1500 * MIB, 0.05
"""What another program's work beside a run may look like in a reading, and how often."""
SECOND_MODE = 0.12
"""Of the activations: how far apart two ways of a library lie between which it chooses (cuDNN's algorithms)."""

Draw = Callable[[random.Random], float]
"""One run's deviation from this machine's own, in units of :data:`SCATTER`."""


def _heavy(chance: random.Random) -> float:
    """Student's t with three degrees of freedom: one in a hundred lies six deviations out."""
    squares = sum(chance.gauss(0, 1) ** 2 for _ in range(3))
    return chance.gauss(0, 1) / (squares / 3) ** 0.5


def _two_ways(share: float) -> Draw:
    def draw(chance: random.Random) -> float:
        return chance.gauss(0, 0.1) + (SECOND_MODE / SCATTER if chance.random() < share else 0.0)

    return draw


KINDS: dict[str, Draw] = {
    "normal": lambda chance: chance.gauss(0, 1),
    "uniform": lambda chance: chance.uniform(-1.7, 1.7),
    "Laplace": lambda chance: chance.choice((-1, 1)) * chance.expovariate(2**0.5),
    "exponential": lambda chance: chance.expovariate(1),
    "log-normal": lambda chance: chance.lognormvariate(0, 1),
    "heavy tails (t, 3 degrees)": _heavy,
    "always the same": lambda chance: 0.0,
    "two ways, one in two": _two_ways(0.5),
    "two ways, one in ten": _two_ways(0.1),
}
OUTLIERS = "normal, 5 % outliers (the others counted)"
SIZES_BYTES = "normal, other sizes, same bytes off"
SIZES_SHARE = "normal, other sizes, same share off"
NAMES = (*KINDS, OUTLIERS, SIZES_BYTES, SIZES_SHARE)


@dataclass(frozen=True)
class Tried:
    """How often the next run lay inside, and how wide the band was, as a share of the computed interval."""

    inside: float
    width: float


def computed() -> PhaseEstimate:
    """Return the phase whose runs are tried, with the interval that estimates give it."""
    floor = ACTIVATIONS_BYTES
    parts = (("unet", 5000 * MIB), ("context", 460 * MIB))
    return PhaseEstimate(
        "vae_decode", 5460 * MIB, floor, floor + 100 * MIB, floor + 900 * MIB, floor * 7 // 10, floor * 102 // 100,
        "profile", parts,
    )  # fmt: skip


def tried(name: str, count: int, tries: int = TRIES, seed: int = SEED) -> Tried:
    """Return what became of ``tries`` machines of which ``count`` runs were known."""
    chance = random.Random(f"{seed} {name} {count}")
    phase = computed()
    estimate = Estimate(
        "fits", 24 * GIB, "vae_decode", phase.peak_bytes, phase.resident_bytes + phase.low_bytes,
        phase.resident_bytes + phase.high_bytes, (phase,),
    )  # fmt: skip
    inside, width = 0, 0
    for _ in range(tries):
        own = chance.uniform(-0.05, 0.3)
        seen = tuple(_observed(name, own, chance, is_next=False) for _ in range(count))
        following = _observed(name, own, chance, is_next=True)
        shown = apply(estimate, REQUEST, Lessons({KIND: seen}, runs=count)).phases[0]
        inside += shown.low_bytes <= ACTIVATIONS_BYTES + following.off_bytes <= shown.high_bytes
        width += shown.high_bytes - shown.low_bytes
    return Tried(inside / tries, width / tries / (phase.high_bytes - phase.low_bytes))


def _observed(name: str, own: float, chance: random.Random, *, is_next: bool) -> Observation:
    """Return one run of a machine that is off by ``own``; the one that is asked about is at the phase's own size."""
    size = 1.0 if is_next or name not in (SIZES_BYTES, SIZES_SHARE) else chance.uniform(0.75, 1.35)
    scatter = KINDS.get(name, KINDS["normal"])(chance) * SCATTER
    off_bytes = int((own + scatter) * ACTIVATIONS_BYTES * (size if name == SIZES_SHARE else 1.0))
    if name == OUTLIERS and not is_next and chance.random() < OUTLIER_SHARE:
        off_bytes += OUTLIER_BYTES
    return Observation(int(ACTIVATIONS_BYTES * size), off_bytes, off_bytes)


def table(tries: int = TRIES) -> list[str]:
    """Return the table in Markdown: inside, and the width."""
    lines = ["| runs of this machine | " + " | ".join(f"after {count}" for count in COUNTS) + " |"]
    lines.append("|---|" + "---|" * len(COUNTS))
    for name in NAMES:
        cells = [tried(name, count, tries) for count in COUNTS]
        lines.append(f"| {name} | " + " | ".join(f"{100 * it.inside:.1f} % ({it.width:.2f})" for it in cells) + " |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or write it into the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--document", action="store_true", help="write the table into docs/reliability.md")
    chosen = parser.parse_args(argv)
    lines = table(chosen.tries)
    print("\n".join(lines))
    if chosen.document:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
        DOCUMENT.write_text("\n".join((before + MARKS[0], *lines, MARKS[1] + after)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
