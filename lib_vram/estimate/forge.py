"""Forge's memory manager: which models it keeps on the card at each moment, decided by what is free then.

Follows backend/memory_management.py, backend/sampling/sampling_function.py and backend/patcher/vae.py of
June 2025: ``free_memory`` sends away the least recently used models until enough is free, and a model that
does not fit above the *GPU Weights* reserve is loaded in part, its other layers swapped in one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from lib_vram.estimate.controls import WHOLE_NETS, control_bytes
from lib_vram.estimate.extras import managed_idle
from lib_vram.estimate.flags import compute_dtype
from lib_vram.estimate.launched import AS_USUAL, Launched, launched
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.timeline import LATENT_FACTOR, dtype_bytes, forge_tile
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Sizes, Work, Working
from lib_vram.physics.addons import Addon, addon_weights_bytes
from lib_vram.physics.component import Component
from lib_vram.request import Request
from lib_vram.units import GIB

Decided = tuple[Work, Working, Sizes]

MODEL_FACTOR = 1.3
"""``free_memory(1.3 × model + …)`` and ``(free − reserve) / 1.3`` in ``load_models_gpu``."""
SWAP_SLACK_BYTES = int(1.25 * GIB)
DENOISE_FACTOR = {"sdpa": 1.28, "xformers": 1.28, "sage": 1.28, "math": 1.65, "split": 1.65, "sub_quad": 1.65}
"""``KModel.memory_required``: this × rows × latent cells × dtype × 16384, whatever the model."""
DENOISE_UNIT = 16384
DECODE_UNIT = 2178 * 64
"""``VAE.memory_used_decode``, per latent cell and byte of the dtype."""
ENCODE_UNIT = 1767
"""``VAE.memory_used_encode``, per pixel and byte of the dtype."""
PREPROCESSOR_ROOM_BYTES = 3 * GIB
"""What is made free before a ControlNet preprocessor runs (``automatic_memory_management``)."""
STAYING = ("idle_models", "face_restore", "upscaler")
"""What stays on the device outside the memory manager's reach once it is there."""
OWN_NAMES: dict[PhaseName, str] = {"hires_upscale": "upscaler", "face_restore": "face_restore"}
"""What an add-on brings itself in these phases, after room was made for it."""
IDLE_LAYERS = 20
"""Into how many layers a model is cut whose layers are not known: those of most are a twentieth of it, or less."""


@dataclass(frozen=True)
class Model:
    """A model that Forge moves as a whole. ``layer_bytes`` is its largest layer: what a swapped model brings in."""

    name: str
    size_bytes: int
    layer_bytes: int


@dataclass(frozen=True)
class Loaded:
    """A model on the card, ``on_device_bytes`` of it; the rest is swapped."""

    model: Model
    on_device_bytes: int
    is_known: bool = True
    """Whether the manager has loaded it; one that was made on the card is asked for room as if it were not there."""


class ForgeMemory:
    """The loaded models, most recently used first, on a card with ``empty_bytes`` for them and the activations."""

    there_factor = 0.25
    """``inclusive_memory * 0.25``: of a model that was made on the card and is loaded for the first time."""

    def __init__(
        self, empty_bytes: int, inference_bytes: int, *, fully_swapped: bool, kept: Launched = AS_USUAL
    ) -> None:
        self.empty_bytes = empty_bytes
        self.inference_bytes = inference_bytes
        self.fully_swapped = fully_swapped or kept.swapped
        self.kept = kept
        self.loaded: list[Loaded] = []

    def free_bytes(self, held_bytes: int = 0) -> int:
        """Return what ``get_free_memory`` says: free on the card and free in torch's cache."""
        return self.empty_bytes - held_bytes - sum(item.on_device_bytes for item in self.loaded)

    def load(self, models: tuple[Model, ...], required_bytes: float = 0) -> None:
        """Make room for ``models`` and ``required_bytes`` of activations, then load them (``load_models_gpu``).

        Models are loaded before the work begins: latents and pictures are still on the CPU, or not there yet.
        """
        to_free = max(self.inference_bytes, required_bytes)
        kept = [item for model in models for item in self.loaded if item.model == model]
        missing = [model for model in models if all(item.model != model for item in kept)]
        made_there = sum(item.model.size_bytes for item in kept if not item.is_known)
        for item in kept:
            self.loaded.remove(item)
            self.loaded.insert(0, replace(item, is_known=True))
        kept = self.loaded[: len(kept)]
        to_free += MODEL_FACTOR * (sum(model.size_bytes for model in missing) + self.there_factor * made_there)
        self._send_away(to_free, kept)
        for model in missing:
            self.loaded.insert(0, Loaded(model, self._part_that_fits(model)))

    def make_room(self, wanted_bytes: float = 0) -> None:
        """Send models away until ``wanted_bytes``, or the reserve, are free (``prepare_free_memory``)."""
        self._send_away(max(self.inference_bytes, wanted_bytes), [])

    def _send_away(self, wanted_bytes: float, kept: list[Loaded]) -> None:
        everything = self.fully_swapped or self.kept.all_leave
        for item in reversed(tuple(self.loaded)):
            if not everything and self.free_bytes() > wanted_bytes:
                return
            if item not in kept and item.model.name not in self.kept.stays:
                self.loaded.remove(item)

    def _part_that_fits(self, model: Model) -> int:
        if self.fully_swapped:
            return 0
        if self.kept.whole:
            return model.size_bytes
        return self.part_above_reserve(model)

    def part_above_reserve(self, model: Model) -> int:
        """Return how much of ``model`` is loaded above the reserve."""
        return part_that_fits(model.size_bytes, self.free_bytes(), self.inference_bytes)


def part_that_fits(size_bytes: int, free_bytes: int, inference_bytes: int) -> int:
    """Return how much of a model Forge puts on the card: all of it when the reserve stays free, else a part."""
    if free_bytes - inference_bytes >= size_bytes:
        return size_bytes
    return least_part(size_bytes, free_bytes, inference_bytes)


def least_part(size_bytes: int, free_bytes: int, inference_bytes: int) -> int:
    """Return the part that Forge loads of a model that does not fit whole (``model_gpu_memory_when_using_cpu_swap``).

    Also a lower bound for one that does: it grows with the free memory, and never faster.
    """
    room_bytes = free_bytes - inference_bytes
    return min(size_bytes, int(max(0, room_bytes / MODEL_FACTOR, room_bytes - SWAP_SLACK_BYTES)))


def forge_decides(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[Decided, ...]:
    """Return for each work what Forge has on the card then, for one generation on a card it finds empty.

    A repeated generation finds the models of the last one still there: Forge sends them away before anything
    else, so they take only what its own figures leave over.
    """
    kept = launched(request)
    memory = ForgeMemory(
        empty_bytes, request.forge.inference_memory_bytes, fully_swapped=request.forge.never_oom_unet, kept=kept
    )
    memory.loaded = there_at_first(request, weights, kept)
    return decide_all(request, works, weights, memory)


def decide_all(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, memory: ForgeMemory
) -> tuple[Decided, ...]:
    """Return what ``memory`` makes of ``works``, one after the other."""
    empty_bytes = memory.empty_bytes
    decided = []
    for work in works:
        memory.empty_bytes = empty_bytes - staying_bytes(work)
        decided.append(decide(request, work, weights, memory))
    return tuple(decided)


def there_at_first(request: Request, weights: ModelWeights, kept: Launched) -> list[Loaded]:
    """Return what is on the card before the generation begins: idle models, and a denoiser that never leaves it."""
    unet = unet_of(weights)
    made_there = [Loaded(unet, unet.size_bytes, is_known=False)] if "unet" in kept.stays else []
    return [*made_there, *idle_models(request)]


def unet_of(weights: ModelWeights) -> Model:
    """Return the denoiser as the memory manager moves it."""
    return Model("unet", weights.unet_bytes, weights.unet_layer_bytes)


def idle_models(request: Request) -> list[Loaded]:
    """Return the idle models that the memory manager holds: used longer ago than whatever this generation loads."""
    models = (
        Model(f"idle {place}", size, size // IDLE_LAYERS) for place, size in enumerate(managed_idle(request)) if size
    )
    return [Loaded(model, model.size_bytes) for model in models]


def staying_bytes(work: Work) -> int:
    """Return what is on the device, outside the memory manager's reach, before ``work`` begins."""
    own = OWN_NAMES.get(work.phase) if isinstance(work.component, Addon) else None
    return sum(size for name, size in work.held if name in STAYING and name != own)


def before_bytes(work: Work) -> int:
    """Return what of ``work`` itself is on the device when it begins, beside what stays there."""
    return sum(size for name, size in work.held if name != "control_outputs" and name not in STAYING)


def forge_least(request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int) -> tuple[int, ...]:
    """Return for each work a lower bound of what Forge has on the card: its own models on an otherwise empty card.

    Other models beside them leave less room, but never less in all, because :func:`least_part` loses less than
    they take. More pixels never lower the bound, for the same reason. A ControlNet that stayed from an earlier
    pass makes the UNet's part smaller, so it counts only where both are loaded together.
    """
    reloads = any(work.phase in ("hires_upscale", "detailer") for work in works)
    least = []
    for work in works:
        models = models_of(request, work, weights)
        alone = models[:1] if reloads else models
        least.append(_least_loaded(request, alone, empty_bytes - staying_bytes(work)) + least_held_bytes(work))
    return tuple(least)


def _least_loaded(request: Request, models: tuple[Model, ...], free_bytes: int) -> int:
    """Return what Forge loads at the least of ``models``, which come together and in this order."""
    if request.forge.never_oom_unet or launched(request).swapped:
        return 0
    loaded_bytes = 0
    for model in models:
        reserve_bytes = request.forge.inference_memory_bytes
        loaded_bytes += least_part(model.size_bytes, free_bytes - loaded_bytes, reserve_bytes)
    return loaded_bytes


def least_held_bytes(work: Work) -> int:
    """With cond and uncond apart, half of the control outputs is enough."""
    return sum(size // 2 if name == "control_outputs" else size for name, size in work.held)


def denoise_estimate_bytes(component: Component, rows: int) -> float:
    """Return what Forge believes the UNet needs for ``rows`` latents."""
    cells = (component.width // LATENT_FACTOR) * (component.height // LATENT_FACTOR)
    return DENOISE_FACTOR[component.attention] * rows * cells * dtype_bytes(component) * DENOISE_UNIT


def vae_estimate_bytes(component: Component) -> int:
    """Return what Forge believes the VAE needs for one picture."""
    pixels = component.width * component.height
    if component.part == "vae_encode":
        return ENCODE_UNIT * pixels * dtype_bytes(component)
    return DECODE_UNIT * (pixels // LATENT_FACTOR**2) * dtype_bytes(component)


def models_of(request: Request, work: Work, weights: ModelWeights) -> tuple[Model, ...]:
    """Return the models that Forge loads together for ``work``, in its order; a detailer brings no ControlNets."""
    if isinstance(work.component, Addon):
        size = addon_weights_bytes(work.component)
        return (Model("image_encoder", size, size // IDLE_LAYERS),) if work.managed else ()
    if work.worker == "text_encoders":
        return (Model("text_encoders", weights.text_encoders_bytes, weights.text_layer_bytes),)
    if work.worker == "vae":
        return (Model("vae", weights.vae_bytes, weights.vae_layer_bytes),)
    unet = unet_of(weights)
    units = () if work.phase == "detailer" else enumerate(request.controlnets)
    return (unet, *(
        Model(f"controlnet {index}", control_bytes(unit, compute_dtype(request)), weights.unet_layer_bytes)
        for index, unit in units if unit.kind in WHOLE_NETS
    ))  # fmt: skip


def decide(request: Request, work: Work, weights: ModelWeights, memory: ForgeMemory) -> Decided:
    """Return what ``memory`` makes of ``work``: how it runs, and what is on the card meanwhile."""
    if isinstance(work.component, Addon):
        return decide_addon(request, work, weights, memory)
    memory.load(models_of(request, work, weights), _required_bytes(request, work))
    component = _as_forge_runs_it(work, memory.free_bytes(before_bytes(work)))
    if component != work.component and work.worker in ("unet", "controlnet"):
        work = halved(work, component)
    return work, component, (*parts_of(memory.loaded), *work.held)


def decide_addon(request: Request, work: Work, weights: ModelWeights, memory: ForgeMemory) -> Decided:
    """Return what is on the card while an add-on works: Forge makes room before upscaling, restoring, preprocessing.

    Detectors of a detailer and adapters find the models as the work before them left them.
    """
    if work.managed:
        memory.load(models_of(request, work, weights))
    elif work.phase == "controlnet_preprocess":
        memory.make_room(PREPROCESSOR_ROOM_BYTES)
    elif work.phase in ("hires_upscale", "face_restore"):
        memory.make_room()
    return work, work.component, (*parts_of(memory.loaded), *work.held)


def _required_bytes(request: Request, work: Work) -> float:
    if work.worker in ("unet", "controlnet"):
        return denoise_estimate_bytes(work.part, 2 * work.part.batch)
    if work.worker == "vae" and forge_tile(request) is None:
        return vae_estimate_bytes(work.part)
    return 0


def _as_forge_runs_it(work: Work, free_bytes: int) -> Component:
    """Split cond and uncond, or a batch of pictures to decode, where Forge's own figures say so."""
    component = work.part
    if work.worker == "vae" and component.batch > 1:
        at_a_time = max(1, int(free_bytes / vae_estimate_bytes(component)))
        return replace(component, batch=min(component.batch, at_a_time))
    halves = work.worker in ("unet", "controlnet") and component.cfg
    if halves and denoise_estimate_bytes(component, 2 * component.batch) >= free_bytes:
        return replace(component, cfg=False)
    return component


def halved(work: Work, component: Component) -> Work:
    """Return ``work`` with cond and uncond apart: then the control outputs are those of one half at a time."""
    held = tuple((name, size // 2 if name == "control_outputs" else size) for name, size in work.held)
    return replace(work, component=component, held=held)


def parts_of(loaded: Iterable[Loaded]) -> Iterator[tuple[str, int]]:
    """Yield what the ``loaded`` models have on the card, and the largest layer that is swapped in."""
    sizes: dict[str, int] = {}
    for item in loaded:
        name = item.model.name.split(" ")[0]
        sizes[name] = sizes.get(name, 0) + item.on_device_bytes
        if item.on_device_bytes < item.model.size_bytes:
            sizes["swap"] = max(sizes.get("swap", 0), item.model.layer_bytes)
    yield from sizes.items()
