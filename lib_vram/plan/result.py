"""The result of planning: plain, frozen nouns with their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lib_vram.estimate.result import Estimate
from lib_vram.message import Message, render
from lib_vram.request import Request

Cost = Literal["nothing", "time", "detail", "picture"]
COSTS: tuple[Cost, ...] = ("nothing", "time", "detail", "picture")
"""From harmless to harmful."""


@dataclass(frozen=True)
class Step:
    """One change: ``field`` of the request from ``before`` to ``after``. ``saves_bytes`` off the binding need."""

    id: str
    field: str
    before: Any
    after: Any
    saves_bytes: int
    costs: Cost
    text: Message

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "id": self.id,
            "field": self.field,
            "from": self.before,
            "to": self.after,
            "saves_bytes": self.saves_bytes,
            "costs": self.costs,
            "text": render(self.text, language),
        }


@dataclass(frozen=True)
class Plan:
    """What to change, in order, and what comes of it. No steps when the request fits as it is."""

    fits: bool
    steps: tuple[Step, ...]
    request: Request
    estimate: Estimate
    when_not: Message | None = None
    recipe: Message | None = None
    """How to come by the asked size in several runs, where the plan gives it up or there is none."""
    takes: Message | None = None
    """How long it takes on this machine, where that is known from earlier runs."""

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's JSON form; ``recipe`` and ``takes`` are in it where they are known."""
        data = {
            "fits": self.fits,
            "steps": [step.to_dict(language) for step in self.steps],
            "request": self.request.to_dict(),
            "estimate": self.estimate.to_dict(language),
            "when_not": render(self.when_not, language) if self.when_not else "",
        }
        more = {"recipe": self.recipe, "takes": self.takes}
        return data | {name: render(said, language) for name, said in more.items() if said}
