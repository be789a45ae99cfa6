"""Pieces of work: what a timeline is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lib_vram.estimate.result import PhaseName
from lib_vram.physics.addons import Addon
from lib_vram.physics.component import Component

Worker = Literal["text_encoders", "unet", "controlnet", "vae", "addon"]
"""Whose weights a piece of work needs. An add-on's own are among what is held."""
WORKERS: tuple[Worker, ...] = ("text_encoders", "unet", "controlnet", "vae", "addon")
Sizes = tuple[tuple[str, int], ...]
"""Named sizes in bytes: ``(("latents", 1048576), …)``."""
Working = Component | Addon
"""What works: a part of the model, or something beside it."""


@dataclass(frozen=True)
class Work:
    """One part at work once. ``held`` stays on the device beside its weights while it runs.

    ``beside`` is a part that another thread may run at the same moment: the full live preview's decode.
    """

    phase: PhaseName
    worker: Worker
    component: Working
    held: Sizes = ()
    beside: Component | None = None
    unit: int = 0
    """Which of the request's ControlNets works, for ``worker == "controlnet"``."""
    managed: bool = False
    """Whether Forge and its relatives load an add-on as one of their models, and keep it while there is room."""

    @property
    def part(self) -> Component:
        """The part of the model that works; only for a worker that is one."""
        if isinstance(self.component, Addon):
            raise TypeError(f"{self.component.kind} is no part of the model")
        return self.component
