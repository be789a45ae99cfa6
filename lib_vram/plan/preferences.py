"""What a person never wants a plan to touch, and what they have taken back too often for it to be offered again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lib_vram.errors import BadInput
from lib_vram.plan.levers import LEVERS, LeverName

Kept = Literal["size", "batch", "hires", "controlnet", "precision"]
KEPT: tuple[Kept, ...] = get_args(Kept)
"""What can be kept as it is, in the order in which people are asked."""

KEEPS: Mapping[Kept, frozenset[LeverName]] = {
    "size": frozenset(("smaller_size",)),
    "batch": frozenset(("batch_to_count",)),
    "hires": frozenset(("hires_scale", "upscaler_tile")),
    "controlnet": frozenset(("controlnet_low_vram",)),
    "precision": frozenset(("fp8_storage",)),
}
"""The rungs that each of them rules out."""


@dataclass(frozen=True)
class Preferences:
    """``keep`` is never touched; ``undone`` are the rungs that are no longer offered because they were taken back."""

    keep: frozenset[Kept] = frozenset()
    undone: frozenset[LeverName] = frozenset()

    @classmethod
    def of(cls, keep: object = (), undone: Iterable[str] = ()) -> Preferences:
        """Return the preferences that a settings page or a body holds; what it does not know is left out.

        ``keep`` is a list of names of :data:`KEPT`, anything else counts as none.
        """
        names = keep if isinstance(keep, (list, tuple, set, frozenset)) else ()
        return cls(
            frozenset(name for name in KEPT if name in names),
            frozenset(name for name in LEVERS if name in frozenset(undone)),
        )

    @property
    def left_out(self) -> frozenset[LeverName]:
        """All rungs that a plan must do without."""
        return self.undone.union(*(KEEPS[name] for name in self.keep))

    def why(self, lever: LeverName) -> Kept | Literal["undone"]:
        """Return what rules out ``lever``, which is left out: the first thing that is kept, else that it was undone."""
        return next((name for name in KEPT if name in self.keep and lever in KEEPS[name]), "undone")


ANYTHING = Preferences()
"""A plan may touch everything."""


def keep_of(value: Any, field: str = "keep") -> Preferences:
    """Return the preferences that a program gives in ``field``: a list of names of :data:`KEPT`.

    Raises:
        BadInput: it is something else.
    """
    if not isinstance(value, (list, tuple)) or any(name not in KEPT for name in value):
        raise BadInput(field, got=value, takes=f"a list of {', '.join(KEPT)}")
    return Preferences.of(value)
