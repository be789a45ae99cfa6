"""Forge Neo's memory manager: it keeps a reserve free and moves parts of models to have it.

Follows backend/memory_management.py, backend/modules/k_model.py, backend/sampling/sampling_function.py and
backend/patcher/{base,unet,vae}.py of Neo 2.26 (August 2026). Unlike Forge it sends away only as much of a model as it
wants free, takes weights back from a model that is already there, and its figure for the UNet depends on the family.

``request.forge.inference_memory_bytes`` is what stays free in every phase: Neo's own ``minimum_inference_memory()``,
or more where one run asks for more (see :mod:`lib_vram.host.neo`). *Never OOM: UNet* stands for ``--novram``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lib_vram.estimate.forge import (
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
from lib_vram.estimate.named import upscaler_tile
from lib_vram.estimate.timeline import LATENT_FACTOR, dtype_bytes
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Work
from lib_vram.physics.addons import Addon, addon_weights_bytes
from lib_vram.physics.component import Component
from lib_vram.request import Family, Request
from lib_vram.units import GIB, MIB

MINIMUM_BYTES = int(0.8 * GIB)
"""``minimum_inference_memory``, before what is reserved for others."""
RESERVED_BYTES = 400 * MIB
"""``EXTRA_RESERVED_VRAM`` on Linux; on Windows 600 MiB, 700 on cards above 15 GiB. ``--reserve-vram`` replaces it."""
MODEL_FACTOR = 1.1
"""``free_memory(1.1 × model + …)`` in ``load_models_gpu``."""
DENOISE_UNIT = 0.01 * MIB
"""``KModel.memory_required`` with flash-like attention: this × rows × latent cells × dtype × the family's factor."""
WEIGHTS_RATIO = 0.4
"""``MIN_WEIGHT_MEMORY_RATIO`` outside NVIDIA: so much of what is free goes to weights, whatever the reserve."""
OTHER_MAKERS = ("amd", "radeon", "intel", "arc ", "apple")
"""Parts of the names of cards that are not NVIDIA's."""

FACTORS: dict[Family, float] = {
    "sd15": 1.0, "sdxl": 0.8, "sdxl_refiner": 1.0, "flux1": 3.1, "chroma": 3.2, "flux2_klein_4b": 14.6,
    "flux2_klein_9b": 19.5, "qwen_image": 1.8, "zimage": 2.8, "lumina2": 1.4, "wan21_1b": 1536 / 2000,
    "wan21_14b": 5120 / 2000,
}  # fmt: skip
"""``memory_usage_factor`` of Neo's model list; Wan's is its width over 2000."""
OTHER_FACTOR = 2.0
"""The same for a family that Neo's list does not name (its ``BASE``)."""
WIDE_LATENTS: dict[Family, int] = {"flux2_klein_4b": 16, "flux2_klein_9b": 16}
"""Pixels per latent row where it is not 8."""
FRAMES_PER_LATENT = 4
UPSCALER_UNIT = 3 * 4 * 4 * 1024
"""Neo's figure for an upscaler, per pixel of its tile: 3 colours, fp32, 4 times as large (modules/esrgan_model.py)."""
UPSCALER_RATIO = {"dat": 0.25}
OTHER_UPSCALER_RATIO = 0.05
"""``MEM_RATIO`` there, by architecture."""


def _offloaded_first(item: Loaded) -> tuple[int, int]:
    return item.on_device_bytes - item.model.size_bytes, item.model.size_bytes


@dataclass(frozen=True)
class Rules:
    """What the flags, the card and the run make of the manager. All sizes in bytes."""

    minimum_bytes: int
    reserved_bytes: int
    weights_ratio: float = 0.0
    fully_swapped: bool = False
    kept: Launched = AS_USUAL


def rules_of(request: Request) -> Rules:
    """Return the rules for ``request``."""
    reserved_bytes = max(reserved_by_flag(request), request.forge.inference_memory_bytes - MINIMUM_BYTES)
    kept = launched(request)
    off_nvidia = any(name in request.device.name.lower() + " " for name in OTHER_MAKERS)
    return Rules(
        minimum_bytes=MINIMUM_BYTES + reserved_bytes,
        reserved_bytes=reserved_bytes,
        weights_ratio=WEIGHTS_RATIO if off_nvidia else 0.0,
        fully_swapped=request.forge.never_oom_unet or kept.swapped,
        kept=kept,
    )


def reserved_by_flag(request: Request) -> int:
    """Return what ``--reserve-vram`` asks for in GiB, else Neo's own figure."""
    arguments = request.host_args
    for place, argument in enumerate(arguments):
        name, _, value = argument.replace("=", " ").partition(" ")
        if name == "--reserve-vram":
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            return _gib(value.strip() or following)
    return RESERVED_BYTES


def _gib(text: str) -> int:
    try:
        return max(0, int(float(text) * GIB))
    except (ValueError, OverflowError):
        return RESERVED_BYTES


class NeoMemory:
    """The loaded models on a card with ``empty_bytes`` for them and the activations, most recently used first."""

    def __init__(self, empty_bytes: int, rules: Rules) -> None:
        self.empty_bytes = empty_bytes
        self.rules = rules
        self.loaded: list[Loaded] = []

    def free_bytes(self, held_bytes: int = 0) -> int:
        """Return what ``get_free_memory`` says: free on the card and free in torch's cache."""
        return self.empty_bytes - held_bytes - sum(item.on_device_bytes for item in self.loaded)

    def load(self, models: tuple[Model, ...], required_bytes: float = 0, least_bytes: float | None = None) -> None:
        """Make room for ``models`` and for ``required_bytes`` beside them; ``least_bytes`` stay free in any case."""
        rules = self.rules
        wanted = max(rules.minimum_bytes, required_bytes + rules.reserved_bytes)
        least = wanted if least_bytes is None else max(rules.minimum_bytes, least_bytes + rules.reserved_bytes)
        names = {model.name for model in models}
        before = {item.model.name: item.on_device_bytes for item in self.loaded if item.model.name in names}
        known = {item.model.name for item in self.loaded if item.is_known}
        missing = sum(model.size_bytes - (before.get(model.name, 0) if model.name in known else 0) for model in models)
        self._send_away(MODEL_FACTOR * missing + wanted, names)
        self._send_away(least, names)
        for model in models:
            self.loaded = [item for item in self.loaded if item.model.name != model.name]
            taken = sum(size for name, size in before.items() if name != model.name and not self._has(name))
            self.loaded.insert(0, Loaded(model, self._part_that_fits(model, self.free_bytes(taken), least)))

    def make_room(self, wanted_bytes: float | None = None) -> None:
        """Take weights off the card until ``wanted_bytes``, or the reserve, are free."""
        self._send_away(self.rules.minimum_bytes if wanted_bytes is None else wanted_bytes, set())

    def _has(self, name: str) -> bool:
        return any(item.model.name == name for item in self.loaded)

    def _send_away(self, wanted_bytes: float, kept: set[str]) -> None:
        """Take weights off the card until ``wanted_bytes`` are free: first from the model that has fewest there."""
        rules = self.rules.kept
        for item in sorted(self.loaded, key=_offloaded_first):
            missing_bytes = item.on_device_bytes if rules.all_leave else wanted_bytes - self.free_bytes()
            if missing_bytes < 0:
                return
            if item.model.name in kept or item.model.name in rules.stays:
                continue
            place = self.loaded.index(item)
            left_bytes = item.on_device_bytes - int(missing_bytes)
            self.loaded[place : place + 1] = [Loaded(item.model, left_bytes)] if left_bytes > 0 else []

    def _part_that_fits(self, model: Model, free_bytes: int, least_bytes: float) -> int:
        """Return how much of ``model`` comes on the card; in part, room is kept for the layer that is swapped in."""
        rules = self.rules
        if rules.fully_swapped:
            return 0
        if rules.kept.whole:
            return model.size_bytes
        guaranteed = min(free_bytes * rules.weights_ratio, free_bytes - rules.minimum_bytes)
        room_bytes = int(max(0, free_bytes - least_bytes, guaranteed))
        if room_bytes >= model.size_bytes:
            return model.size_bytes
        return max(0, room_bytes - model.layer_bytes)


def neo_decides(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[Decided, ...]:
    """Return for each work what Neo has on the card then, for one generation on a card it finds empty."""
    memory = NeoMemory(empty_bytes, rules_of(request))
    memory.loaded = there_at_first(request, weights, memory.rules.kept)
    decided = []
    for work in works:
        memory.empty_bytes = empty_bytes - staying_bytes(work)
        decided.append(_decide(request, work, weights, memory))
    return tuple(decided)


def neo_least(request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int) -> tuple[int, ...]:
    """Return for each work a lower bound of what Neo has on the card: no weights at all, they can all be swapped.

    A larger picture makes Neo keep more free and so load less: no bound with weights in it would grow with the size.
    """
    return tuple(least_held_bytes(work) for work in works)


def denoise_estimate_bytes(component: Component, rows: int) -> float:
    """Return what Neo believes the UNet needs for ``rows`` latents."""
    pixels = WIDE_LATENTS.get(component.family, LATENT_FACTOR)
    frames = (component.frames - 1) // FRAMES_PER_LATENT + 1
    cells = frames * (component.width // pixels) * (component.height // pixels)
    factor = FACTORS.get(component.family, OTHER_FACTOR)
    return DENOISE_UNIT * rows * cells * dtype_bytes(component) * factor


def _decide(request: Request, work: Work, weights: ModelWeights, memory: NeoMemory) -> Decided:
    if isinstance(work.component, Addon):
        return _decide_addon(request, work, weights, memory)
    component = work.part
    if work.worker in ("unet", "controlnet"):
        need_bytes = denoise_estimate_bytes(component, 2 * component.batch)
        memory.load(models_of(request, work, weights), need_bytes, need_bytes // 2)
    elif work.worker == "vae":
        memory.load(models_of(request, work, weights), vae_estimate_bytes(component))  # the whole picture, tiled or not
    else:
        memory.load(models_of(request, work, weights))
    component = _as_neo_runs_it(work, memory.free_bytes(before_bytes(work)))
    if component != work.component and work.worker in ("unet", "controlnet"):
        work = halved(work, component)
    return work, component, (*parts_of(memory.loaded), *work.held)


def _decide_addon(request: Request, work: Work, weights: ModelWeights, memory: NeoMemory) -> Decided:
    """An image encoder is a model like others; before an upscaler Neo frees what it believes that one needs."""
    addon = work.component
    if work.managed:
        memory.load(models_of(request, work, weights))
    elif work.phase == "hires_upscale" and isinstance(addon, Addon):
        cells = upscaler_tile(request) ** 2
        ratio = UPSCALER_RATIO.get(addon.kind, OTHER_UPSCALER_RATIO)
        memory.make_room(UPSCALER_UNIT * cells * ratio + addon_weights_bytes(addon))
    elif work.phase in ("face_restore", "controlnet_preprocess"):
        memory.make_room()
    return work, addon, (*parts_of(memory.loaded), *work.held)


def _as_neo_runs_it(work: Work, free_bytes: int) -> Component:
    """Split cond and uncond, or a batch of pictures to decode, where Neo's own figures say so."""
    component = work.part
    if work.worker == "vae" and component.batch > 1:
        at_a_time = max(1, int(free_bytes / vae_estimate_bytes(component)))
        return replace(component, batch=min(component.batch, at_a_time))
    halves = work.worker in ("unet", "controlnet") and component.cfg
    if halves and denoise_estimate_bytes(component, 2 * component.batch) >= free_bytes:
        return replace(component, cfg=False)
    return component
