"""What the guard answers about the fields of a page."""

from __future__ import annotations

from dataclasses import dataclass

from lib_vram.estimate.result import Estimate
from lib_vram.message import Message
from lib_vram.plan.result import Plan
from lib_vram.request import Request


@dataclass(frozen=True)
class Check:
    """``request`` is ``None`` when the fields do not make one; the estimate's note then says why."""

    estimate: Estimate
    request: Request | None = None
    plan: Plan | None = None
    """What would make it fit; only when it will not."""

    @classmethod
    def unknown(cls, reason: Message) -> Check:
        """Return the check of something that nothing can be said about."""
        return cls(Estimate("unknown", 0, notes=(reason,)))
