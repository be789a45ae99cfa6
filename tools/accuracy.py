"""Compares every published measurement with what is computed, and writes docs/accuracy.md and its picture.

    python tools/accuracy.py            writes the page, the picture and the recorded errors
    python tools/accuracy.py --check    writes nothing; exit 1 when one of them would change

The peers' formulas are in tools/peers.py. Needs neither a GPU nor torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from accuracy_picture import picture  # noqa: E402
from peers import PEERS  # noqa: E402

from lib_vram.estimate.estimator import estimate  # noqa: E402
from lib_vram.estimate.residency import CONTEXT_BYTES  # noqa: E402
from lib_vram.physics.allocator import CachingAllocator  # noqa: E402
from lib_vram.physics.component import Component, ComponentMemory  # noqa: E402
from lib_vram.physics.kernels import cublas_workspace_bytes  # noqa: E402
from lib_vram.physics.memory import component_memory, component_trace  # noqa: E402
from lib_vram.request import Request  # noqa: E402
from lib_vram.units import GIB, MIB  # noqa: E402

DATA = ROOT / "tests" / "accuracy" / "data"
TEMPLATE = ROOT / "tools" / "accuracy_template.md"
PAGE = ROOT / "docs" / "accuracy.md"
PICTURE = ROOT / "docs" / "images" / "accuracy.svg"
RECORDED = DATA / "recorded.json"
FILES = ("measured.jsonl", "published.jsonl")
OURS = "VRAM Guard"
EVERYTHING_BYTES = 1024 * GIB
"""A card that is never full."""
METRICS = {"floor": "allocated", "comfortable": "reserved"}


@dataclass(frozen=True)
class Row:
    """One published measurement and the answers to it, in bytes; ``None`` where somebody has no formula for it.

    ``beside_bytes`` is what the figure holds besides the part at work: weights, and what was there before.
    """

    facts: dict[str, Any]
    beside_bytes: int
    low_bytes: int
    high_bytes: int
    answers: dict[str, int | None]

    @property
    def measured_bytes(self) -> int:
        """What was published."""
        return int(self.facts["measured_bytes"])

    @property
    def metric(self) -> str:
        """``allocated`` or ``reserved``."""
        return METRICS[self.facts["metric"]]

    def error(self, name: str) -> float | None:
        """Return by how many percent the answer of ``name`` is above the measurement."""
        answer = self.answers[name]
        return None if answer is None else 100 * (answer / self.measured_bytes - 1)

    @property
    def own_error(self) -> float | None:
        """By how many percent we are off when all that lay there before is left out of both, where anything did."""
        if not self.beside_bytes:
            return None
        answer = self.answers[OURS] or 0
        return 100 * ((answer - self.beside_bytes) / (self.measured_bytes - self.beside_bytes) - 1)

    @property
    def inside(self) -> bool:
        """Whether the measured peak of allocated lies in our interval."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


def component_of(facts: dict[str, Any], part: str | None = None) -> Component:
    """Return the question that a row of the data asks, for one of its parts where it is of several.

    fp32 with a half-precision middle is asked as fp32.
    """
    asked = part or facts["part"]
    dtype = facts.get("vae_dtype", facts["dtype"]) if asked.startswith("vae") else facts["dtype"]
    return Component(
        facts["family"], asked, facts["width"], facts["height"], facts["batch"],
        dtype="fp32" if dtype.startswith("fp32") else dtype,
        attention=facts["attention"], code=facts["code"], cfg=facts.get("cfg") != "off",
        alloc_conf=facts["alloc_conf"], host="a1111" if facts["code"] == "ldm" else "forge",
    )  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def answered(facts: dict[str, Any]) -> Row:
    """Return a row with everybody's answer. The peers' formulas are for one picture."""
    if "request" in facts:
        return _estimated(facts)
    components = [component_of(facts, part) for part in facts.get("parts", [facts["part"]])]
    memories = [component_memory(component) for component in components]
    weights = memories[0].weights_bytes if facts["includes_weights"] else 0
    beside, library = facts.get("beside_bytes", weights), _library_bytes(facts)
    answers: dict[str, int | None] = {OURS: beside + _ours(facts, components, memories, library)}
    for name, formula in PEERS.items():
        said = [formula(component) or 0 for component in components]
        answers[name] = max(said) + beside if any(said) and facts["batch"] == 1 else None
    low = beside + max(memory.low_bytes for memory in memories)
    high = beside + library + max(memory.high_bytes for memory in memories)
    return Row(facts, beside, low, high, answers)


def _estimated(facts: dict[str, Any]) -> Row:
    """Return a row of a pipeline that moves its components: ``estimate`` says what lies there in each phase.

    The figure holds no fixed weights that could be added to anybody's formula.
    """
    asked = {"host": "diffusers", "width": facts["width"], "height": facts["height"], **facts["request"]}
    found = estimate(Request.from_dict({"device": {"name": facts["gpu"], "total_bytes": EVERYTHING_BYTES}, **asked}))
    library = cublas_workspace_bytes(str(facts["gpu"])) - CONTEXT_BYTES
    most = {
        "floor": max(phase.resident_bytes + phase.floor_bytes for phase in found.phases),
        "comfortable": max(phase.resident_bytes + phase.comfortable_bytes for phase in found.phases),
    }
    answers: dict[str, int | None] = {OURS: most[facts["metric"]] + library, **dict.fromkeys(PEERS)}
    return Row(facts, 0, found.low_bytes - CONTEXT_BYTES, found.high_bytes - CONTEXT_BYTES, answers)


def _library_bytes(facts: dict[str, Any]) -> int:
    """Return cuBLAS's workspace, which a whole pipeline takes; a VAE alone does not, or it was there before."""
    if "beside_bytes" not in facts or facts.get("beside_has_cublas"):
        return 0
    return cublas_workspace_bytes(str(facts["gpu"]).split(",")[0])


def _ours(facts: dict[str, Any], components: list[Component], memories: list[ComponentMemory], library: int) -> int:
    """Return our answer without what lay there before; reserved of several parts is that of one allocator's life."""
    if facts["metric"] == "floor":
        return library + max(memory.floor_bytes for memory in memories)
    if len(components) == 1:
        return library + memories[0].comfortable_bytes
    allocator = CachingAllocator()
    allocator.malloc(library)
    for component in components:
        component_trace(component).replay(allocator)
    return allocator.peak_reserved_bytes


def rows() -> list[Row]:
    """Return every published measurement with everybody's answer."""
    return [answered(facts) for name in FILES for facts in read(DATA / name)]


def recorded(table: Iterable[Row]) -> str:
    """Return the file of our errors, in percent."""
    errors = {row.facts["id"]: round(row.error(OURS) or 0.0, 3) for row in table}
    return json.dumps(errors, indent=1, sort_keys=True) + "\n"


def summary(table: list[Row], metric: str) -> dict[str, tuple[int, float, float] | None]:
    """Return for everybody how many rows there is an answer to, the median and the worst error in percent."""
    result: dict[str, tuple[int, float, float] | None] = {}
    for name in (OURS, *PEERS):
        errors = [error for row in table if row.metric == metric and (error := row.error(name)) is not None]
        worst = max(errors, key=abs, default=0.0)
        result[name] = (len(errors), statistics.median(map(abs, errors)), worst) if errors else None
    return result


def page(table: list[Row]) -> str:
    """Return docs/accuracy.md."""
    peaks = [row for row in table if row.metric == "allocated"]
    inside = sum(row.inside for row in peaks)
    own = [abs(error) for row in table if (error := row.own_error) is not None]
    return TEMPLATE.read_text(encoding="utf-8").format(
        summary="\n".join(_summary_lines(table)),
        inside=inside,
        peaks=len(peaks),
        besides=len(own),
        own_median=f"{statistics.median(own):.2f}",
        own_worst=f"{max(own):.1f}",
        rows="\n".join(_row_lines(table)),
        traced="\n".join(_trace_lines()),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{0.0 if abs(value) < 0.005 else value:+.2f} %"


def _summary_lines(table: list[Row]) -> list[str]:
    lines: list[str] = []
    for metric, bound in (("allocated", "median 1 %"), ("reserved", "median 5 %")):
        lines += [f"**{metric.capitalize()}** (the bar: {bound}, worst 10 %)", "",
                  "| | rows | median error | worst |", "|---|--:|--:|--:|"]  # fmt: skip
        for name, figures in summary(table, metric).items():
            count, median, worst = figures or (0, None, None)
            shown = "-" if median is None else f"{median:.2f} %"
            lines.append(f"| {name} | {count} | {shown} | {_percent(worst)} |")
        lines.append("")
    return lines


def _row_lines(table: list[Row]) -> list[str]:
    names = (OURS, *PEERS)
    lines = [f"| measurement | source | | measured MiB | {OURS} | its own | {' | '.join(PEERS)} |",
             f"|---|---|---|--:|--:|{'--:|' * len(names)}"]  # fmt: skip
    for row in table:
        errors = " | ".join(map(_percent, (row.error(OURS), row.own_error, *map(row.error, PEERS))))
        lines.append(f"| {_title(row.facts)} | {_source(row.facts)} | {row.metric} | "
                     f"{row.measured_bytes / MIB:.1f} | {errors} |")  # fmt: skip
    return lines


def _title(facts: dict[str, Any]) -> str:
    conf = f", `{facts['alloc_conf']}`" if facts["alloc_conf"] else ""
    weights = ", with weights" if facts["includes_weights"] else ""
    stored = f", weights {facts['weights']}" if "weights" in facts else ""
    vae = f", VAE in {facts['vae_dtype']}" if "vae_dtype" in facts else ""
    size = f"{facts['width']}×{facts['height']}" + (f" ×{facts['batch']}" if facts["batch"] > 1 else "")
    offload = ", model offload" if "request" in facts else ""
    more = f"{vae}{stored}{offload}{conf}{weights}"
    return f"{facts['family']} {facts['part']} {facts['dtype']} {size}, {facts['code']}{more}"


def _source(facts: dict[str, Any]) -> str:
    name = facts["source"].split(" (")[0]
    linked = f"[{name}]({facts['url']})" if "url" in facts else name
    return ", ".join(filter(None, (linked, facts["gpu"], facts["torch"])))


def _trace_lines() -> list[str]:
    lines = ["| part | floor | minimum | reserved |", "|---|--:|--:|--:|"]
    for facts in read(DATA / "host_trace.jsonl"):
        memory = component_memory(
            Component(facts["family"], facts["part"], facts["width"], facts["height"], facts["batch"],
                      dtype=facts["dtype"], cfg=facts.get("cfg", True))
        )  # fmt: skip
        pairs = ((facts["floor_mib"], memory.floor_bytes), (facts["minimum_mib"], memory.minimum_bytes),
                 (facts["reserved_mib"], memory.comfortable_bytes))  # fmt: skip
        figures = " | ".join(f"{theirs:.1f} / {ours / MIB:.1f}" for theirs, ours in pairs)
        lines.append(f"| {facts['family']} {facts['part']} {facts['width']}×{facts['height']} | {figures} |")
    return lines


def outputs() -> dict[Path, Callable[[], str]]:
    """Return what is written, and how it is made."""
    table = rows()
    names = (OURS, *PEERS)
    points = {
        f"{name}, {metric}": [error for row in table if row.metric == metric and (error := row.error(name)) is not None]
        for metric in METRICS.values()
        for name in names
    }
    return {PAGE: lambda: page(table), PICTURE: lambda: picture(points, OURS), RECORDED: lambda: recorded(table)}


def main(arguments: list[str]) -> int:
    """Write the page, the picture and the recorded errors, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file would change")
    check = parser.parse_args(arguments).check
    changed = []
    for path, make in outputs().items():
        text = make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
    print(f"{'would change' if check else 'written'}: {', '.join(changed) or 'nothing'}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
