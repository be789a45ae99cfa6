"""Which cards CUDA lets this process see, as ``CUDA_VISIBLE_DEVICES`` says.

Source: the CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lib_vram.machine.nvml import Gpu


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the cards in CUDA's own order, as far as it can be told without asking CUDA.

    Entries are numbers in CUDA's order, the starts of GPU UUIDs, or MIG UUIDs; the first that names
    no card hides itself and all after it. An empty value hides every card.
    """
    ordered = tuple(gpus) if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else _fastest_first(gpus)
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return ordered
    chosen: list[Gpu] = []
    for entry in value.split(","):
        found = _named(ordered, entry.strip())
        if found is None:
            break
        chosen.append(found)
    return tuple(chosen)


def _fastest_first(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the order that CUDA takes by default, guessed from the generation and the size; NVML's is by place."""
    return tuple(sorted(gpus, key=lambda gpu: (gpu.capability, gpu.card.total_bytes), reverse=True))


def _named(ordered: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isascii() and entry.isdigit():
        return ordered[int(entry)] if len(entry) < 6 and int(entry) < len(ordered) else None
    if not entry.upper().startswith(("GPU-", "MIG-")):
        return None
    matches = [gpu for gpu in ordered if (gpu.card.uuid or "").lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None
