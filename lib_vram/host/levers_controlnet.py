"""*Low VRAM* of ControlNet units for one run, where the extension knows it: on A1111.

The extension reads its units in ``process``, after us, and then moves its models off the card between steps.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lib_vram.host import units
from lib_vram.host.patches import Patches


def leave_between_steps(p: Any, places: Sequence[int], fields: Patches) -> None:
    """Tick *Low VRAM* of the enabled units at ``places``, on copies: the page's own units stay as they are.

    ``fields`` of the run takes it back when ``p`` runs again.
    """
    changed = {}
    for place, (position, unit) in enumerate(units.enabled_units(p)):
        if place in places and not units.is_low_vram(unit):
            changed[position] = _low_vram(unit)
    if changed:
        units.with_arguments(p, units.CONTROLNET, changed, fields)


def _low_vram(unit: Any) -> Any:
    if isinstance(unit, Mapping):
        return {name: value for name, value in unit.items() if name != "lowvram"} | {"low_vram": True}
    twin = copy.copy(unit)
    twin.low_vram = True
    return twin
