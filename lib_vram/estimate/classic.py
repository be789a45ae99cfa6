"""Forge Classic's memory manager: Forge's of early 2024, with a fixed reserve of 1 GiB.

Follows ldm_patched/modules/model_management.py, samplers.py and sd.py of Forge Classic (branch "classic", February
2025). What it believes the UNet and the VAE need, and which models it sends away for that, is as in later Forges;
but a need larger than the reserve only sends other models away. How much of a model is loaded goes by the reserve
alone (``minimum_inference_memory``, here ``request.forge.inference_memory_bytes``).
"""

from __future__ import annotations

from lib_vram.estimate.forge import (
    MODEL_FACTOR,
    Decided,
    ForgeMemory,
    Model,
    decide_all,
    least_held_bytes,
    models_of,
    staying_bytes,
    there_at_first,
)
from lib_vram.estimate.launched import launched
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Work
from lib_vram.request import Request


class ClassicMemory(ForgeMemory):
    """The loaded models: of one that does not fit whole, a smaller part is loaded than in later Forges."""

    there_factor = 0.0

    def part_above_reserve(self, model: Model) -> int:
        """Return how much of ``model`` is loaded above the reserve."""
        return part_that_fits(model.size_bytes, self.free_bytes(), self.inference_bytes)


def part_that_fits(size_bytes: int, free_bytes: int, inference_bytes: int) -> int:
    """Return how much of a model Classic puts on the card: all of it when the reserve stays free, else a part."""
    if free_bytes - inference_bytes >= size_bytes:
        return size_bytes
    return _least_part(size_bytes, free_bytes, inference_bytes)


def classic_decides(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[Decided, ...]:
    """Return for each work what Classic has on the card then, for one generation on a card it finds empty."""
    kept = launched(request)
    memory = ClassicMemory(
        empty_bytes, request.forge.inference_memory_bytes, fully_swapped=request.forge.never_oom_unet, kept=kept
    )
    memory.loaded = there_at_first(request, weights, kept)
    return decide_all(request, works, weights, memory)


def classic_least(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[int, ...]:
    """Return for each work a lower bound of what Classic has on the card: the work's first model on an empty card.

    It does not depend on the size of the picture, because the part that is loaded does not.
    """
    least = []
    for work in works:
        first = models_of(request, work, weights)[:1]
        free_bytes = empty_bytes - staying_bytes(work)
        part_bytes = sum(
            _least_part(model.size_bytes, free_bytes, request.forge.inference_memory_bytes) for model in first
        )
        swapped = request.forge.never_oom_unet or launched(request).swapped
        least.append(least_held_bytes(work) + (0 if swapped else part_bytes))
    return tuple(least)


def _least_part(size_bytes: int, free_bytes: int, inference_bytes: int) -> int:
    return min(size_bytes, int(max(0, (free_bytes - inference_bytes) / MODEL_FACTOR)))
