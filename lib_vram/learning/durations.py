"""How long generations took on this machine, by their settings: the only source of what is said about time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from lib_vram.learning.record import Run

NEWEST = 20
"""Runs of the same settings whose median is taken."""
LEAST_RUNS = 2
"""On each side of a comparison: the first run of a checkpoint loads it too."""

_ABOUT_TIME = (
    "mode", "width", "height", "hires", "batch_size", "cfg_scale", "frames", "attention", "batch_cond_uncond",
    "live_preview", "vae", "controlnets", "refiner", "detailer", "forge", "upscaler_tile", "hires_model",
    "tiled_diffusion", "hr_fix", "guidance", "reference_images", "start_picture",
)  # fmt: skip
"""Fields of a request on which its time hangs; with the model, the steps and how many LoRAs there are."""

LEVERS: Mapping[str, tuple[str, ...]] = {
    "vae_tiled": ("vae", "tiled"),
    "cond_uncond_apart": ("batch_cond_uncond",),
    "batch_to_count": ("batch_size",),
    "attention": ("attention",),
    "fp8_storage": ("model", "storage_dtype"),
    "live_preview": ("live_preview",),
    "never_oom_vae": ("forge", "never_oom_vae"),
    "never_oom_unet": ("forge", "never_oom_unet"),
    "reserve": ("forge", "inference_memory_bytes"),
    "hires_scale": ("hires", "scale"),
    "upscaler_tile": ("upscaler_tile",),
}
"""What a fix changes, by the plan's names, and where it stands in a request."""
_TURNED = frozenset(("cond_uncond_apart", "reserve"))
"""Those whose fix switches off, or goes up."""


@dataclass(frozen=True)
class Known:
    """How long it took: the median of ``runs`` runs."""

    seconds: float
    runs: int


@dataclass(frozen=True)
class Cost:
    """What one change did to the time of one picture; all else was the same."""

    lever: str
    before: Any
    after: Any
    before_known: Known
    after_known: Known
    run: Run
    """One of those with the change, for what it was about."""

    @property
    def share(self) -> float:
        """How much longer it took, as a share of the time before; below 0 when it took less."""
        return self.after_known.seconds / self.before_known.seconds - 1


class Durations:
    """The times of whole runs that ended well, of one machine, oldest first."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._batches: dict[str, list[tuple[int | None, float]]] = {}
        for run in _whole(runs):
            seconds = run.seconds / int(run.request.get("batch_count") or 1)
            self._batches.setdefault(_setting(run.request), []).append((run.steps, seconds))

    def of(self, request: Mapping[str, Any], steps: int | None) -> Known | None:
        """Return how long all of ``request`` (JSON form) takes, from runs that differ in their batch count at most.

        Without ``steps``, from the runs with whatever steps. ``None`` where there is none.
        """
        count = int(request.get("batch_count") or 1)
        known = self._batches.get(_setting(request), ())
        seconds = [batch for made_with, batch in known if steps is None or made_with == steps][-NEWEST:]
        return Known(median(seconds) * count, len(seconds)) if seconds else None


def costs(runs: Iterable[Run]) -> tuple[Cost, ...]:
    """Return what each change of :data:`LEVERS` cost in time, where it was run with and without it."""
    whole = _whole(runs)
    found = []
    for lever, path in LEVERS.items():
        groups: dict[str, dict[str, list[Run]]] = {}
        for run in whole:
            rest, value = _without(run.request, path)
            key = _key(rest, run, with_batch=lever != "batch_to_count")
            groups.setdefault(key, {}).setdefault(json.dumps(value), []).append(run)
        pairs = [_cost(lever, sides) for sides in groups.values()]
        best = max((pair for pair in pairs if pair), key=lambda pair: pair.run.at, default=None)
        if best is not None:
            found.append(best)
    return tuple(found)


def _whole(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.outcome == "done" and not run.is_rescued and run.seconds > 0]


def _setting(request: Mapping[str, Any]) -> str:
    model = request.get("model") or {}
    about = {name: request.get(name) or None for name in _ABOUT_TIME}  # older runs have not all of them
    about["model"] = [model.get(name) for name in ("family", "weights_dtype", "storage_dtype")]
    about["loras"] = len(request.get("loras") or ())
    return json.dumps(about, sort_keys=True)


def _key(request: Mapping[str, Any], run: Run, *, with_batch: bool) -> str:
    return "|".join(
        (_setting(request), str(run.steps), str(run.machine.key), str(run.images if not with_batch else ""))
    )


def _without(request: Mapping[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], Any]:
    """Return ``request`` without the field at ``path``, and the field."""
    name, *more = path
    rest = dict(request)
    value = rest.pop(name, None)
    if more and isinstance(value, Mapping):
        inner, value = _without(value, tuple(more))
        if name == "vae":
            inner.pop("tile_size", None)
        rest[name] = inner
    elif more:
        return dict(request), None
    return rest, value


def _cost(lever: str, sides: Mapping[str, list[Run]]) -> Cost | None:
    """Return the change between the two values with the most runs, from the usual one to what the fix makes of it."""
    enough = sorted((item for item in sides.items() if len(item[1]) >= LEAST_RUNS), key=lambda item: -len(item[1]))[:2]
    if len(enough) < 2:
        return None
    before, after = sorted(enough, key=lambda item: _rank(lever, json.loads(item[0])))
    return Cost(lever, json.loads(before[0]), json.loads(after[0]), _known(before[1]), _known(after[1]), after[1][-1])


def _rank(lever: str, value: Any) -> tuple[int, float, str]:
    """Return where ``value`` stands on the way that a fix goes: off to on, large to small, no choice to a choice."""
    if isinstance(value, (int, float)):
        number = float(value) if isinstance(value, bool) else -float(value)
        return 1, -number if lever in _TURNED else number, ""
    return 0 if value is None else 1, 0.0, str(value)


def _known(runs: list[Run]) -> Known:
    newest = runs[-NEWEST:]
    return Known(median(run.seconds / run.images for run in newest), len(newest))
