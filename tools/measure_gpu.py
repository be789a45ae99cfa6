"""Measures one model part on this machine's GPU, and prints rows in the shape of tests/accuracy/data/measured.jsonl.

    python tools/measure_gpu.py --family sdxl --part vae_decode --width 1024 --height 1024
    python tools/measure_gpu.py --family flux1 --part denoise --width 1024 --height 1024 --dtype bf16 --no-minimum

Every figure comes from a process of its own. The part is diffusers' code in the published size with weights of
zero, so nothing is downloaded. Three rows come out: ``floor`` (max_memory_allocated), ``comfortable``
(max_memory_reserved) and ``minimum``, the smallest memory limit at which it still runs, found by bisection with
``torch.cuda.set_per_process_memory_fraction``. Needs a CUDA build of torch, and requirements-trace.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from lib_vram.errors import BadInput  # noqa: E402
from lib_vram.physics.alloc_conf import AllocatorConf  # noqa: E402
from lib_vram.physics.component import Component  # noqa: E402
from lib_vram.units import MIB  # noqa: E402

NO_CUDA = (
    "no CUDA device: this tool measures on an NVIDIA GPU with a CUDA build of torch "
    "(https://pytorch.org/get-started). Nothing was measured."
)
RESOLUTION_BYTES = 16 * MIB
"""How closely the minimum is found."""
POINT_TIMEOUT_S = 900
PARTS = ("text_encode", "denoise", "vae_decode", "vae_encode", "controlnet")


class CannotMeasure(Exception):
    """There is nothing to measure with, or a point failed for another reason than memory; the message says which."""


@dataclass(frozen=True)
class Question:
    """What is run. Sizes in pixels; ``alloc_conf`` as in PYTORCH_CUDA_ALLOC_CONF."""

    family: str
    part: str
    width: int
    height: int
    batch: int = 1
    dtype: str = "fp16"
    cfg: bool = False
    alloc_conf: str = ""


@dataclass(frozen=True)
class Reading:
    """What one process read. Bytes, weights included; ``weights_reserved`` is what weights alone reserve."""

    allocated: int
    reserved: int
    weights: int
    weights_reserved: int
    total: int
    gpu: str
    torch: str


Runner = Callable[[Question, "int | None"], "Reading | None"]
"""Runs a point under a limit in bytes, ``None`` for no limit; returns ``None`` when it ran out of memory."""


def measure(question: Question, run: Runner, *, minimum: bool = True) -> list[dict[str, Any]]:
    """Return the rows of one point.

    Raises:
        CannotMeasure: it does not even run without a limit.
    """
    free = run(question, None)
    if free is None:
        raise CannotMeasure(f"{question.family} {question.part} does not fit on this GPU at all")
    figures = {"floor": free.allocated, "comfortable": free.reserved}
    if minimum:
        figures["minimum"] = smallest_limit(question, run, free)
    return [_row(question, free, metric, size) for metric, size in figures.items()]


def smallest_limit(question: Question, run: Runner, free: Reading) -> int:
    """Return the smallest limit found at which ``question`` runs, in bytes."""
    low, high = free.allocated, free.reserved
    while high - low > RESOLUTION_BYTES:
        middle = (low + high) // 2
        if run(question, middle) is None:
            low = middle
        else:
            high = middle
    return high


def _row(question: Question, reading: Reading, metric: str, size_bytes: int) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(question).items() if key != "cfg"}
    return {
        **facts, "code": "diffusers", "cfg": "on" if question.cfg else "off", "attention": "sdpa", "metric": metric,
        "measured_bytes": size_bytes, "includes_weights": True, "weights_bytes": reading.weights,
        "weights_reserved_bytes": reading.weights_reserved, "gpu": reading.gpu, "torch": reading.torch,
        "source": "tools/measure_gpu.py",
    }  # fmt: skip


def in_process(question: Question, limit_bytes: int | None) -> Reading | None:
    """Run one point in a process of its own: the :data:`Runner` for real GPUs.

    Raises:
        CannotMeasure: it failed for another reason than memory; the message is its last line.
    """
    point = json.dumps({**asdict(question), "limit_bytes": limit_bytes})
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": question.alloc_conf}
    done = subprocess.run(
        [sys.executable, __file__, "--point", point],
        env=environment, capture_output=True, text=True, timeout=POINT_TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CannotMeasure((done.stderr.strip() or "the process ended without a word").splitlines()[-1])
    said = json.loads(done.stdout.splitlines()[-1])
    return None if said.get("out_of_memory") else Reading(**said)


def run_point(point: dict[str, Any]) -> dict[str, Any]:
    """Run one point in this process and return what was read."""
    import torch

    limit = point.pop("limit_bytes")
    question = Question(**point)
    total = torch.cuda.get_device_properties(0).total_memory
    if limit is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    try:
        module, run = _on_gpu(question)
        weights, weights_reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        with torch.no_grad():
            run()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return {"out_of_memory": True}
    del module
    reading = Reading(
        torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), weights, weights_reserved,
        total, torch.cuda.get_device_name(0), torch.__version__,
    )  # fmt: skip
    return asdict(reading)


def _on_gpu(question: Question) -> tuple[Any, Callable[[], object]]:
    """Return the part's module with weights of zero on the GPU, and how to run it."""
    import diffusers_parts
    import torch

    from lib_vram.physics.families import SHAPES
    from lib_vram.physics.memory import setting_of

    component = Component(
        question.family, question.part, question.width, question.height, question.batch,  # type: ignore[arg-type]
        dtype=question.dtype, code="diffusers", cfg=question.cfg,  # type: ignore[arg-type]
    )  # fmt: skip
    family = SHAPES[component.family].vae if question.part.startswith("vae") else question.family
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[question.dtype]
    part = next((item for item in diffusers_parts.parts() if (item.family, item.part) == (family, question.part)), None)
    if part is None:
        raise CannotMeasure(f"diffusers has no {question.part} of {question.family}")
    with torch.device("meta"):
        module = part.make().to(dtype).eval()
    module = module.to_empty(device="cuda")
    for item in (*module.parameters(), *module.buffers()):
        item.detach().zero_()
    diffusers_parts.empty = lambda *shape, dtype: torch.zeros(*shape, dtype=dtype, device="cuda")
    return module, lambda: part.run(module, dtype, setting_of(component))


def has_cuda() -> bool:
    """Return whether this Python's torch sees a CUDA device."""
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def question_of(arguments: argparse.Namespace) -> Question:
    """Return the question that the command line asks.

    Raises:
        BadInput: PyTorch would refuse ``--alloc-conf``, or a size cannot be.
    """
    AllocatorConf.parse(arguments.alloc_conf)
    for name in ("width", "height", "batch"):
        if getattr(arguments, name) < 1:
            raise BadInput(name, got=getattr(arguments, name), takes="a whole number above 0")
    return Question(
        arguments.family, arguments.part, arguments.width, arguments.height, arguments.batch, arguments.dtype,
        arguments.cfg == "on", arguments.alloc_conf,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="sdxl")
    parser.add_argument("--part", choices=PARTS, default="vae_decode")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--height", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="fp16")
    parser.add_argument("--cfg", choices=("on", "off"), default="off")
    parser.add_argument("--alloc-conf", default="")
    parser.add_argument("--no-minimum", action="store_true", help="leave out the bisection")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str], run: Runner = in_process, cuda: Callable[[], bool] = has_cuda) -> int:
    """Measure one point and print its rows. Exit 2: nothing to measure with, or a question that cannot be."""
    asked = _parser().parse_args(arguments)
    if asked.point:
        print(json.dumps(run_point(json.loads(asked.point))))
        return 0
    try:
        question = question_of(asked)
        if not cuda():
            raise CannotMeasure(NO_CUDA)
        for row in measure(question, run, minimum=not asked.no_minimum):
            print(json.dumps(row))
    except (BadInput, CannotMeasure) as fault:
        print(fault, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
