"""reForge's memory manager: it keeps a reserve free and moves models layer by layer.

Follows ldm_patched/modules/model_management.py, model_base.py, samplers.py and sd.py of reForge (March 2026). Like
Neo it sends away only as much of a model as it wants free, and its figure for the UNet depends on the family; unlike
Neo it never takes weights back from the model that is about to work.

``request.forge.inference_memory_bytes`` is what stays free in every phase (``minimum_inference_memory()``); below
reForge's own figure it counts as that. *Never OOM: UNet* stands for ``--always-no-vram``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lib_vram.estimate.forge import (
    MODEL_FACTOR,
    Decided,
    Loaded,
    Model,
    before_bytes,
    halved,
    least_held_bytes,
    models_of,
    parts_of,
    staying_bytes,
    there_at_first,
    vae_estimate_bytes,
)
from lib_vram.estimate.launched import AS_USUAL, Launched, launched
from lib_vram.estimate.neo import MINIMUM_BYTES, OTHER_MAKERS, WEIGHTS_RATIO, reserved_by_flag
from lib_vram.estimate.timeline import LATENT_FACTOR, dtype_bytes
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Work
from lib_vram.physics.addons import Addon
from lib_vram.physics.component import Component
from lib_vram.request import Family, Request
from lib_vram.units import MIB

LEAST_PART_BYTES = 128 * MIB
"""``max(128 MiB, …)`` in ``load_models_gpu``: so much of a model is loaded whatever is free."""
FUSED = ("sdpa", "xformers", "sage")
FUSED_UNIT = 0.01 * MIB
"""``BaseModel.memory_required`` with fused attention: this × rows × latent cells × dtype × the family's factor."""
OTHER_UNIT = 0.15 * MIB
"""The same without fused attention, where the dtype does not count."""
SPLIT_FACTOR = 1.5
"""``memory_required(…) * 1.5 < free``: else cond and uncond go one after the other."""
FACTORS: dict[Family, float] = {"sd15": 1.0, "sd21": 1.0, "sdxl_refiner": 1.0, "sdxl": 0.8}
"""``memory_usage_factor`` in ldm_patched/modules/supported_models.py."""
OTHER_FACTOR = 2.0
"""The same for a family that has none of its own (supported_models_base.py)."""


@dataclass(frozen=True)
class Rules:
    """What the flags and the card make of the manager. All sizes in bytes."""

    minimum_bytes: int
    reserved_bytes: int
    weights_ratio: float
    fully_swapped: bool
    kept: Launched = AS_USUAL


def rules_of(request: Request) -> Rules:
    """Return the rules for ``request``."""
    reserved, kept = reserved_by_flag(request), launched(request)
    off_nvidia = any(name in request.device.name.lower() + " " for name in OTHER_MAKERS)
    return Rules(
        minimum_bytes=max(MINIMUM_BYTES + reserved, request.forge.inference_memory_bytes),
        reserved_bytes=reserved,
        weights_ratio=WEIGHTS_RATIO if off_nvidia else 0.0,
        fully_swapped=request.forge.never_oom_unet or kept.swapped,
        kept=kept,
    )


class ReforgeMemory:
    """The loaded models on a card with ``empty_bytes`` for them and the activations, most recently used first."""

    def __init__(self, empty_bytes: int, rules: Rules) -> None:
        self.empty_bytes = empty_bytes
        self.rules = rules
        self.loaded: list[Loaded] = []

    def free_bytes(self, held_bytes: int = 0) -> int:
        """Return what ``get_free_memory`` says: free on the card and free in torch's cache."""
        return self.empty_bytes - held_bytes - sum(item.on_device_bytes for item in self.loaded)

    def load(self, models: tuple[Model, ...], required_bytes: float = 0) -> None:
        """Make room for ``models`` and for ``required_bytes`` beside them, then load what fits."""
        wanted = max(self.rules.minimum_bytes, required_bytes + self.rules.reserved_bytes)
        before = {item.model: item.on_device_bytes for item in self.loaded if item.model in models}
        known = {item.model for item in self.loaded if item.is_known}
        missing = sum(model.size_bytes - (before.get(model, 0) if model in known else 0) for model in models)
        self._send_away(MODEL_FACTOR * missing + wanted, models)
        for model in models:
            loaded_bytes = before.get(model, 0)
            others = [item for item in self.loaded if item.model != model]
            self.loaded = others
            waiting = sum(size for other, size in before.items() if other != model and not self._has(other))
            part = self._part_that_fits(model, loaded_bytes, self.free_bytes(waiting), wanted)
            self.loaded = [Loaded(model, part), *others]

    def make_room(self) -> None:
        """Send models away until the reserve is free (``prepare_free_memory``)."""
        self._send_away(self.rules.minimum_bytes, ())

    def _has(self, model: Model) -> bool:
        return any(item.model == model for item in self.loaded)

    def _send_away(self, wanted_bytes: float, kept: tuple[Model, ...]) -> None:
        """Take weights off the card until ``wanted_bytes`` are free: first from the model that has fewest there."""
        order = sorted(
            self.loaded, key=lambda item: (item.on_device_bytes - item.model.size_bytes, item.model.size_bytes)
        )
        for item in order:
            rules = self.rules.kept
            missing_bytes = item.on_device_bytes if rules.all_leave else wanted_bytes - self.free_bytes()
            if missing_bytes < 0:
                return
            if item.model in kept or item.model.name in rules.stays:
                continue
            place = self.loaded.index(item)
            left_bytes = item.on_device_bytes - int(missing_bytes)
            self.loaded[place : place + 1] = [Loaded(item.model, left_bytes)] if left_bytes > 0 else []

    def _part_that_fits(self, model: Model, loaded_bytes: int, free_bytes: int, wanted_bytes: float) -> int:
        """Return how much of ``model`` is on the card then; what was there stays. ``free_bytes``: without it."""
        rules = self.rules
        if rules.fully_swapped:
            return loaded_bytes
        if rules.kept.whole:
            return model.size_bytes
        guaranteed = min(free_bytes * rules.weights_ratio, free_bytes - rules.minimum_bytes)
        room_bytes = int(max(LEAST_PART_BYTES, free_bytes - wanted_bytes, guaranteed))
        return min(model.size_bytes, max(loaded_bytes, room_bytes))


def reforge_decides(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[Decided, ...]:
    """Return for each work what reForge has on the card then, for one generation on a card it finds empty."""
    memory = ReforgeMemory(empty_bytes, rules_of(request))
    memory.loaded = there_at_first(request, weights, memory.rules.kept)
    decided = []
    for work in works:
        memory.empty_bytes = empty_bytes - staying_bytes(work)
        decided.append(_decide(request, work, weights, memory))
    return tuple(decided)


def reforge_least(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[int, ...]:
    """Return for each work a lower bound of what reForge has on the card: no weights beyond the least part of one.

    A larger picture makes it keep more free and so load less: a bound with more in it would not grow with the size.
    """
    swapped = rules_of(request).fully_swapped
    least = []
    for work in works:
        first = 0 if swapped else sum(model.size_bytes for model in models_of(request, work, weights)[:1])
        least.append(least_held_bytes(work) + min(first, LEAST_PART_BYTES))
    return tuple(least)


def denoise_estimate_bytes(component: Component, rows: int) -> float:
    """Return what reForge believes the UNet needs for ``rows`` latents."""
    cells = (component.width // LATENT_FACTOR) * (component.height // LATENT_FACTOR)
    factor = FACTORS.get(component.family, OTHER_FACTOR)
    if component.attention in FUSED:
        return FUSED_UNIT * rows * cells * dtype_bytes(component) * factor
    return OTHER_UNIT * rows * cells * factor


def _decide(request: Request, work: Work, weights: ModelWeights, memory: ReforgeMemory) -> Decided:
    if isinstance(work.component, Addon):
        return _decide_addon(request, work, weights, memory)
    component = work.part
    required: float = 0
    if work.worker in ("unet", "controlnet"):
        required = denoise_estimate_bytes(component, 2 * component.batch)
    elif work.worker == "vae":
        required = vae_estimate_bytes(component)  # the whole picture, whether our tiles are on or not
    memory.load(models_of(request, work, weights), required)
    component = _as_reforge_runs_it(work, memory.free_bytes(before_bytes(work)))
    if component != work.component and work.worker in ("unet", "controlnet"):
        work = halved(work, component)
    return work, component, (*parts_of(memory.loaded), *work.held)


def _decide_addon(request: Request, work: Work, weights: ModelWeights, memory: ReforgeMemory) -> Decided:
    """An image encoder is a model like others; room is made before upscaling and restoring of faces."""
    if work.managed:
        memory.load(models_of(request, work, weights))
    elif work.phase in ("hires_upscale", "face_restore", "controlnet_preprocess"):
        memory.make_room()
    return work, work.component, (*parts_of(memory.loaded), *work.held)


def _as_reforge_runs_it(work: Work, free_bytes: int) -> Component:
    """Split cond and uncond, or a batch of pictures to decode, where reForge's own figures say so."""
    component = work.part
    if work.worker == "vae" and component.batch > 1:
        at_a_time = max(1, int(free_bytes / vae_estimate_bytes(component)))
        return replace(component, batch=min(component.batch, at_a_time))
    halves = work.worker in ("unet", "controlnet") and component.cfg
    if halves and SPLIT_FACTOR * denoise_estimate_bytes(component, 2 * component.batch) >= free_bytes:
        return replace(component, cfg=False)
    return component
