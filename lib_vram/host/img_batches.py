"""img2img with several pictures and a lowered batch size.

The hosts load all start pictures in ``p.init`` and expect at least as large a batch. When a fix
lowers the batch size, the pictures are still loaded together, and each batch then gets its own
share of what was made of them, so every result comes from the picture it would have come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lib_vram.host.patches import Run

PER_PICTURE = ("init_latent", "image_conditioning", "overlay_images", "color_corrections")
"""Attributes of ``p`` that hold one entry for each start picture after ``p.init``."""


def share_out(p: Any, run: Run) -> None:
    """Make ``p``, whose batch size is now below the number of its start pictures, run in shares."""
    count, size = len(p.init_images), p.batch_size
    whole: dict[str, Any] = {}
    run.wrap(p, "init", _loading_all(p, p.init, count, size, whole))
    run.wrap(p, "sample", _sampling_share(p, p.sample, count, size, whole))


def _loading_all(p: Any, init: Callable[..., Any], count: int, size: int, whole: dict[str, Any]) -> Callable[..., Any]:
    def init_all(*arguments: Any, **named: Any) -> Any:
        p.batch_size = count
        try:
            return init(*arguments, **named)
        finally:
            p.batch_size = size
            whole.update({name: getattr(p, name, None) for name in PER_PICTURE})

    return init_all


def _sampling_share(
    p: Any, sample: Callable[..., Any], count: int, size: int, whole: dict[str, Any]
) -> Callable[..., Any]:
    def sample_share(*arguments: Any, **named: Any) -> Any:
        chosen = [(p.iteration * size + index) % count for index in range(size)]
        for name, value in whole.items():
            if value is not None and len(value) == count:
                setattr(p, name, [value[index] for index in chosen] if isinstance(value, list) else value[chosen])
        return sample(*arguments, **named)

    return sample_share
