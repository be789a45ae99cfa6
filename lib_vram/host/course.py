"""What a run's own object and the host's state say about how it goes: its steps, and whether a person stopped it."""

from __future__ import annotations

import sys
from typing import Any

MOST_STEPS = 10000


def steps_of(p: Any) -> int | None:
    """Return how often the model samples for one picture of ``p``, its second pass among it; ``None`` when not said.

    From a picture, and in the second pass, the hosts compute the share of the steps that the denoising strength says.
    """
    steps = _whole(getattr(p, "steps", None))
    if steps is None:
        return None
    strength = getattr(p, "denoising_strength", None)
    share = min(1.0, max(0.0, strength)) if isinstance(strength, (int, float)) else 1.0
    if getattr(p, "init_images", None):
        return max(1, int(steps * share))
    if getattr(p, "enable_hr", False):
        return steps + max(1, int((_whole(getattr(p, "hr_second_pass_steps", None)) or steps) * share))
    return steps


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_STEPS else None


def was_stopped() -> bool:
    """Whether a person interrupted or skipped what the host has just computed."""
    state = getattr(sys.modules.get("modules.shared"), "state", None)
    return any(getattr(state, name, False) is True for name in ("interrupted", "skipped", "stopping_generation"))
