"""Models that a host keeps on the card though the run at hand does not use them, and sending those away for it.

They are moved to the computer's RAM by the means with which the host itself moves them, and each comes back the way
the host always brings it: face restorers and interrogators are moved to the card at every use, a checkpoint when it is
selected, a cached control model at every step it takes part in, and Forge's line loads what it needs. An upscaler that
is kept (SwinIR's) is brought back by nothing, so it is forgotten and read from its file at its next use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from lib_vram.host.asked import Asked
from lib_vram.request import IdleKind


@dataclass(frozen=True)
class Idle:
    """One model: what it is, its bytes on the card, and how it is sent away."""

    kind: IdleKind
    bytes: int
    send_away: Callable[[], object]


def of_all_hosts(want: Asked) -> Iterator[Idle]:
    """Yield face restorers and kept upscalers, which a host has on the card until told otherwise."""
    for restorer in () if want.restores_faces else _shared("face_restorers", ()):
        yield from _face_restorer(restorer)
    yield from _upscalers(want.hires.upscaler if want.hires else "")


def _face_restorer(restorer: Any) -> Iterator[Idle]:
    """Yield what a restorer has loaded. Its ``face_helper`` is made, and downloaded, by being asked for."""
    helper = vars(restorer).get("face_helper") if hasattr(restorer, "__dict__") else None
    parts = [getattr(restorer, "net", None), *(getattr(helper, name, None) for name in ("face_det", "face_parse"))]
    yield from _modules("face_restore", parts)


def _upscalers(needed: str) -> Iterator[Idle]:
    """Yield the models that upscalers keep from one picture to the next, but not that of the upscaler ``needed``."""
    offered = _shared("sd_upscalers", ())
    kept = {id(data.scaler): data.scaler for data in offered if data.name != needed}
    in_use = {id(data.scaler) for data in offered if data.name == needed}
    for place, scaler in kept.items():
        size = 0 if place in in_use else bytes_on_card(_network(getattr(scaler, "_cached_model", None)))
        if size:
            yield Idle("upscaler", size, partial(_forget, scaler))


def _network(model: Any) -> Any:
    """Return the torch module of what a loader of upscalers has made around it."""
    return model if hasattr(model, "parameters") else getattr(model, "model", None)


def _forget(scaler: Any) -> None:
    scaler._cached_model = None
    scaler._cached_model_config = None


def of_a1111(want: Asked, needed_files: Iterable[str | None]) -> Iterator[Idle]:
    """Yield A1111's interrogators, its other checkpoints, and the ControlNet extension's cached models."""
    interrogator = _shared("interrogator", None)
    deepbooru = getattr(sys.modules.get("modules.deepbooru"), "model", None)
    parts = [getattr(interrogator, name, None) for name in ("clip_model", "blip_model")]
    yield from _modules("interrogator", [*parts, getattr(deepbooru, "model", None)])
    yield from _checkpoints(set(needed_files))
    yield from _cached_controlnets({_without_hash(unit.model) for unit in want.controlnets})


def _checkpoints(needed_files: set[str | None]) -> Iterator[Idle]:
    """Yield checkpoints beside the one in use, where the settings let several be on the card.

    The one in use stays, also where the run asks for another: the host counts on finding it on the card.
    """
    from modules import sd_models, shared

    if getattr(shared.opts, "sd_checkpoints_keep_in_cpu", True):
        return
    for model in getattr(sd_models.model_data, "loaded_sd_models", ()):
        path = getattr(getattr(model, "sd_checkpoint_info", None), "filename", None)
        is_needed = path is not None and os.path.abspath(path) in needed_files
        in_use = model is sd_models.model_data.sd_model or is_needed
        size = 0 if in_use else bytes_on_card(model)
        if size and not getattr(model, "lowvram", False):
            yield Idle("checkpoint", size, partial(sd_models.send_model_to_cpu, model))


def _cached_controlnets(needed: set[str]) -> Iterator[Idle]:
    """Yield what the extension's script keeps for units that are off. What manages its own memory is left alone."""
    scripts = getattr(sys.modules.get("modules.scripts"), "scripts_txt2img", None)
    found = [item for item in getattr(scripts, "alwayson_scripts", ()) if item.title().lower() == "controlnet"]
    cache = getattr(type(found[0]), "model_cache", None) if found else None
    for name, cached in list(cache.items()) if isinstance(cache, dict) else ():
        model = getattr(cached, "model", cached)
        if _without_hash(name) not in needed and not getattr(model, "disable_memory_management", False):
            yield from _modules("controlnet", [model])


def _without_hash(name: str) -> str:
    """Return a control model's name without the ``[hash]`` that lists show behind it and API calls may leave out."""
    return name.partition(" [")[0].lower()


def managed(memory: Any, sd_model: Any, want: Asked) -> Iterator[Idle]:
    """Yield what the memory manager of Forge's line has loaded and the model in use is no part of.

    ``memory`` is the manager's module. Control models stay while a unit is on: which is whose cannot be seen.
    """
    own = {id(part) for part in _own_parts(sd_model)}
    for loaded in list(getattr(memory, "current_loaded_models", ())):
        model = getattr(loaded.model, "model", None)
        kind = _kind_of(model)
        if model is None or id(model) in own or (kind == "controlnet" and want.controlnets):
            continue
        size = bytes_on_card(model, loaded.device)
        if size:
            yield Idle(kind, size, partial(_unload, memory, loaded))


def _own_parts(sd_model: Any) -> Iterator[Any]:
    objects = getattr(sd_model, "forge_objects", None)
    for name in ("unet", "clip", "vae", "clipvision"):
        part = getattr(objects, name, None)
        yield getattr(getattr(part, "patcher", part), "model", None)


_KINDS: tuple[tuple[str, IdleKind], ...] = (
    ("control", "controlnet"), ("adapter", "controlnet"), ("clipvision", "controlnet"), ("blip", "interrogator"),
    ("danbooru", "interrogator"), ("clip", "interrogator"), ("descriptor", "upscaler"), ("rrdb", "upscaler"),
)  # fmt: skip
"""Parts of the class names of what the manager is given, beside checkpoints."""


def _kind_of(model: Any) -> IdleKind:
    name = type(model).__name__.lower()
    return next((kind for part, kind in _KINDS if part in name), "checkpoint")


def _unload(memory: Any, loaded: Any) -> None:
    """Send away one model through the manager: it frees what it is not told to keep, until enough is free."""
    others = [item for item in memory.current_loaded_models if item is not loaded]
    memory.free_memory(1e30, loaded.device, others)


def _modules(kind: IdleKind, modules: Iterable[Any]) -> Iterator[Idle]:
    for module in modules:
        size = bytes_on_card(module)
        if size:
            yield Idle(kind, size, partial(module.to, "cpu"))


def bytes_on_card(module: Any, device: Any = None) -> int:
    """Return the bytes of a torch module's parameters and buffers on the host's device, or on ``device``."""
    where = _type_of(device if device is not None else _device())
    tensors = [tensor for name in ("parameters", "buffers") for tensor in getattr(module, name, tuple)()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.device.type == where)


def _device() -> Any:
    return getattr(sys.modules.get("modules.devices"), "device", "cuda")


def _type_of(device: Any) -> str:
    return str(getattr(device, "type", device)).partition(":")[0]


def _shared(name: str, default: Any) -> Any:
    return getattr(sys.modules.get("modules.shared"), name, default)
