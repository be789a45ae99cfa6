"""One batch of a run, computed in shares, so that the host's own loop goes on as if nothing had been.

A share is what the host would compute with a smaller batch size: the same pictures with the same seeds. Everything on
the processing object that holds one entry a picture is cut to the share, and so are the step's arguments; batch size
and iteration are those of the smaller batch, so that scripts and samplers that look at them find the right seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lib_vram.host import units

PER_PICTURE = (
    "prompts", "negative_prompts", "seeds", "subseeds", "hr_prompts", "hr_negative_prompts",
    "init_latent", "image_conditioning", "c", "uc", "hr_c", "hr_uc",
)  # fmt: skip
"""Attributes of a processing object that hold one entry for each picture of the batch at work."""
ANIMATEDIFF = "animatediff"


@dataclass(frozen=True)
class Share:
    """``size`` pictures of a batch of ``count``, from ``start`` on; ``start`` is a multiple of ``size``."""

    start: int
    size: int
    count: int

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole batch."""
        return self.size == self.count


def pictures_of(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Return how many pictures a step computes, by the seeds that it gets by name or third; 0 when that is unclear."""
    seeds = named.get("seeds", arguments[2] if len(arguments) > 2 else None)
    return len(seeds) if isinstance(seeds, (list, tuple)) else 0


def may_split(p: Any) -> bool:
    """Whether the pictures of a batch of ``p`` are independent of each other: not where they are a film's frames."""
    if bool(getattr(getattr(p, "sd_model", None), "is_wan", False)):
        return False
    film = units.arguments_of(p, ANIMATEDIFF)
    first = film[0] if film else None
    enabled = first.get("enable") if isinstance(first, Mapping) else getattr(first, "enable", False)
    return not enabled


def largest_part(count: int, wanted: int) -> int:
    """Return the largest size up to ``wanted`` into which a batch of ``count`` can be cut evenly; at least 1."""
    return max((size for size in range(1, max(1, min(wanted, count)) + 1) if count % size == 0), default=1)


@contextmanager
def at_work_on(p: Any, share: Share) -> Iterator[None]:
    """Within the block ``p`` is at work on ``share`` of its batch; afterwards on the whole batch again."""
    if share.is_whole:
        renew_noise(p)
        yield
        return
    names = [name for name in PER_PICTURE if hasattr(p, name)]
    whole = {name: getattr(p, name) for name in (*names, "batch_size", "iteration")}
    first = whole["iteration"] * whole["batch_size"] + share.start
    try:
        for name in names:
            setattr(p, name, part_of(whole[name], share))
        p.batch_size, p.iteration = share.size, first // share.size
        renew_noise(p)
        yield
    finally:
        for name, value in whole.items():
            setattr(p, name, value)


def renew_noise(p: Any) -> None:
    """Let ``p`` draw its noise from the beginning, for the seeds that it is at work on."""
    drawn = getattr(p, "rng", None)
    if drawn is None:
        return
    p.rng = type(drawn)(
        drawn.shape, p.seeds, subseeds=p.subseeds, subseed_strength=drawn.subseed_strength,
        seed_resize_from_h=drawn.seed_resize_from_h, seed_resize_from_w=drawn.seed_resize_from_w,
    )  # fmt: skip


def part_of(value: Any, share: Share) -> Any:
    """Return the entries of ``share``; what does not hold one entry for each picture of the batch stays as it is."""
    if share.is_whole or _entries(value) != share.count:
        return value
    cut = slice(share.start, share.start + share.size)
    if not hasattr(value, "batch"):
        return value[cut]
    part = copy.copy(value)
    part.batch, part.shape = value.batch[cut], (share.size,)
    return part


def _entries(value: Any) -> int | None:
    """Return how many entries ``value`` has: of a tensor its first dimension, of the hosts' prompts their batch."""
    if hasattr(value, "batch"):
        return len(value.batch)
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) > 0 else None


def joined(parts: list[Any]) -> Any:
    """Return the results of all shares as one: lists (decoded pictures keep their class) or tensors.

    A second pass that is interrupted gives its latents back as they are; beside decoded pictures they are left out.
    """
    first = parts[0]
    parts = [part for part in parts if isinstance(part, list) == isinstance(first, list)]
    if len(parts) == 1:
        return first
    if isinstance(first, list):
        whole = type(first)()
        for part in parts:
            whole.extend(part)
        return whole
    import torch

    return torch.cat(parts)
