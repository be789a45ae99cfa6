"""Writes which tensors each model part is loaded as, and how large: lib_vram/physics/loaded_weights.json.

    python tools/loaded_weights.py            writes the table
    python tools/loaded_weights.py --check    writes nothing; exit 1 when the table would change

Needs torch, diffusers and transformers in the releases of ``requirements-trace.txt``; no weights, no GPU. VAEs have a
table of their own (``tools/trace_profiles.py --vae-parameters``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lib_vram.physics.loading import LOADED_WEIGHTS
from tools.diffusers_parts import ENCODERS, UNUSED_WEIGHTS, parts
from tools.trace_profiles import on_meta

LONGEST_PATTERN = 70
"""Tensors in the longest block that repeats: a double block of a transformer."""
PARTS = ("denoise", "controlnet")


def in_order(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of ``module`` by name, in the order in which ``module.to("cuda")`` moves them."""
    for name, child in module.named_children():
        yield from in_order(child, f"{prefix}{name}.")
    for name, weight in module.named_parameters(recurse=False):
        yield prefix + name, weight
    for name, table in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set and table.is_floating_point():
            yield prefix + name, table


def counts(module: torch.nn.Module) -> list[int]:
    """Return how many numbers each weight has, once for weights that are shared; below 0 for vectors."""
    klein = type(module).__name__ == "Flux2Transformer2DModel"
    named = {id(weight): (name, weight) for name, weight in reversed(list(in_order(module)))}
    return [
        weight.numel() if weight.dim() > 1 else -weight.numel()
        for name, weight in reversed(named.values())
        if not (klein and name.startswith(UNUSED_WEIGHTS))
    ]


def folded(numbers: Sequence[int]) -> list[Any]:
    """Return ``numbers`` with what repeats written once: ``[times, numbers]``."""
    result: list[Any] = []
    place = 0
    while place < len(numbers):
        length, times = max(
            ((length, _repeats(numbers, place, length)) for length in range(1, LONGEST_PATTERN + 1)),
            key=lambda found: (found[0] * (found[1] - 1), -found[0]),
        )
        pattern = numbers[place : place + length]
        if times > 1:
            result.append([times, list(pattern) if length == 1 else folded(pattern)])
        else:
            length = 1
            result.append(numbers[place])
        place += length * times
    return result


def _repeats(numbers: Sequence[int], place: int, length: int) -> int:
    pattern, times = numbers[place : place + length], 1
    while len(pattern) == length and numbers[place + times * length : place + (times + 1) * length] == pattern:
        times += 1
    return times


def table() -> str:
    """Return the table's text: one line a part."""
    found = {name: folded(counts(on_meta(make, torch.float16))) for name, make in ENCODERS.items()}
    for item in parts():
        if item.part in PARTS and not hasattr(module := on_meta(item.make, torch.float16), "other_parameters"):
            found[item.name] = folded(counts(module))
    lines = (f"{json.dumps(name)}:{json.dumps(found[name], separators=(',', ':'))}" for name in sorted(found))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: list[str]) -> int:
    """Write the table, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the table would change")
    check, text = parser.parse_args(arguments).check, table()
    changed = not LOADED_WEIGHTS.is_file() or LOADED_WEIGHTS.read_text(encoding="utf-8") != text
    if changed and not check:
        LOADED_WEIGHTS.write_text(text, encoding="utf-8", newline="\n")
    print(f"{LOADED_WEIGHTS.name} {'is as it was' if not changed else 'would change' if check else 'was written'}")
    return 1 if changed and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
