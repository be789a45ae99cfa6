"""The models that a WebUI has loaded, with the real bytes of their parameters on the card and in RAM.

Only looked at: no model is loaded, moved or kept alive for it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from lib_vram.live.picture import Weights, WeightsKind
from lib_vram.machine import torch_memory
from lib_vram.machine.torch_memory import Snapshot, TorchMemory

Named = tuple[WeightsKind, str, Any]
"""What a loaded model is for, its name for people, and the module (or object with tensors)."""

_AWAY = ("cpu", "meta")


class LookedAt:
    """What all hosts of the A1111 line show of themselves while they work: see :class:`lib_vram.host.base.Host`."""

    def torch_memory(self) -> TorchMemory | None:
        """Return what PyTorch's allocator holds, ``None`` on the CPU."""
        return torch_memory.read()

    def snapshot(self) -> Snapshot | None:
        """Return the allocator's pieces, ``None`` where it does not show them."""
        return torch_memory.snapshot()

    def loaded_weights(self) -> tuple[Weights, ...]:
        """Return the loaded models with their real bytes on the card and in RAM."""
        return summed(weights_of([*self.loaded_parts(), *of_extensions()]))

    def loaded_parts(self) -> Iterable[Named]:
        """Return the parts of the loaded checkpoints, as this host keeps them."""
        raise AttributeError(f"{type(self).__name__} does not show its models")

    def is_busy(self) -> bool:
        """Whether a job is at work."""
        return is_generating()

    def folders(self) -> dict[str, str]:
        """Return the folders whose disks matter: of the models, and for temporary files."""
        return {"models": model_folder(), "temp": tempfile.gettempdir()}


def weights_of(found: Iterable[Named]) -> tuple[Weights, ...]:
    """Return each of ``found`` with its bytes; what is found twice counts once, empty ones are left out."""
    seen: set[int] = set()
    counted = [Weights(kind, name, *_bytes(owner, seen)) for kind, name, owner in found if owner is not None]
    return tuple(item for item in counted if item.card_bytes or item.ram_bytes)


def _bytes(owner: Any, seen: set[int]) -> tuple[int, int]:
    """Return the bytes on the card and in RAM of the tensors that are not in ``seen`` yet."""
    card_bytes = ram_bytes = 0
    for tensor in _tensors(owner):
        kind = tensor.device.type
        place = tensor.data_ptr() if kind != "meta" else 0
        if not place or place in seen:
            continue  # meta has no memory, and an empty tensor none either
        seen.add(place)
        size_bytes = tensor.nelement() * tensor.element_size()
        if kind in _AWAY:
            ram_bytes += size_bytes
        else:
            card_bytes += size_bytes
    return card_bytes, ram_bytes


def _tensors(owner: Any) -> Iterator[Any]:
    """Yield the tensors of a module, or of an object such as a LoRA's layer that only has some as attributes."""
    if hasattr(owner, "parameters") and hasattr(owner, "buffers"):
        yield from list(owner.parameters())
        yield from list(owner.buffers())
        return
    for value in list(getattr(owner, "__dict__", {}).values()):
        if hasattr(value, "data_ptr"):
            yield value
        elif hasattr(value, "parameters") and hasattr(value, "buffers"):
            yield from _tensors(value)


def named(sd_model: Any) -> str:
    """Return the file name of a loaded checkpoint, without its folder."""
    info = getattr(sd_model, "sd_checkpoint_info", None)
    return os.path.basename(str(getattr(info, "filename", "") or ""))


def of_a1111(model_data: Any) -> Iterator[Named]:
    """Yield the parts of the checkpoint in use, and those that the host keeps beside it."""
    current = model_data.sd_model
    if current is not None:
        name = named(current)
        yield "unet", name, getattr(getattr(current, "model", None), "diffusion_model", None)
        yield "text_encoder", "", getattr(current, "cond_stage_model", None) or getattr(current, "conditioner", None)
        yield "vae", "", getattr(current, "first_stage_model", None)
    for model in getattr(model_data, "loaded_sd_models", ()):
        if model is not None and model is not current:
            yield "checkpoint", named(model), model


def of_forge_line(sd_model: Any, managed: Iterable[Any]) -> Iterator[Named]:
    """Yield the parts of the checkpoint in use, and what else the host's memory manager has loaded (``managed``)."""
    objects = getattr(sd_model, "forge_objects", None)
    if objects is not None:
        clip, vae = getattr(objects, "clip", None), getattr(objects, "vae", None)
        yield "unet", named(sd_model), getattr(getattr(objects, "unet", None), "model", None)
        yield "text_encoder", "", _module_of(clip, "cond_stage_model")
        yield "vae", "", _module_of(vae, "first_stage_model")
    for loaded in list(managed):
        module = getattr(getattr(loaded, "model", None), "model", None)
        if module is not None:
            yield _kind_of(module), type(module).__name__, module


def _module_of(holder: Any, attribute: str) -> Any:
    return getattr(holder, attribute, None) or getattr(getattr(holder, "patcher", None), "model", None)


def _kind_of(module: Any) -> WeightsKind:
    name = type(module).__name__.lower()
    return "controlnet" if "control" in name or "adapter" in name else "model"


def of_extensions() -> Iterator[Named]:
    """Yield what all hosts share: ControlNet's own cache, LoRAs, upscalers, face restorers, the interrogator."""
    yield from _controlnets()
    for network in list(getattr(sys.modules.get("networks"), "loaded_networks", ())):
        for layer in list(getattr(network, "modules", {}).values()):
            yield "lora", str(getattr(network, "name", "")), layer
    shared = sys.modules.get("modules.shared")
    for upscaler in list(getattr(shared, "sd_upscalers", ()) or ()):
        yield "upscaler", str(getattr(upscaler, "name", "")), _module(getattr(upscaler, "scaler", None), "model")
    for restorer in list(getattr(shared, "face_restorers", ()) or ()):
        name = getattr(restorer, "name", "")
        yield "face_restore", str(name() if callable(name) else name), _module(restorer, "net")
    interrogator = getattr(shared, "interrogator", None)
    for attribute in ("clip_model", "blip_model"):
        yield "interrogator", attribute.partition("_")[0].upper(), _module(interrogator, attribute)


def _module(holder: Any, attribute: str) -> Any:
    """Return an attribute that holds a module by now; before the first use there is nothing or a name."""
    found = getattr(holder, "__dict__", {}).get(attribute)
    return found if hasattr(found, "parameters") else None


def _controlnets() -> Iterator[Named]:
    """Yield the models that sd-webui-controlnet keeps for the next run, from its script object."""
    runner = getattr(sys.modules.get("modules.scripts"), "scripts_txt2img", None)
    for script in list(getattr(runner, "alwayson_scripts", ()) or ()):
        cache = getattr(type(script), "model_cache", None)
        if script.title() == "ControlNet" and isinstance(cache, dict):
            for name, model in list(cache.items()):
                yield "controlnet", str(name), getattr(model, "model", model)


def summed(weights: Iterable[Weights]) -> tuple[Weights, ...]:
    """Return the same with the layers of one LoRA (one name, one kind) as one."""
    totals: dict[tuple[WeightsKind, str], tuple[int, int]] = {}
    for item in weights:
        card_bytes, ram_bytes = totals.get((item.kind, item.name), (0, 0))
        totals[item.kind, item.name] = card_bytes + item.card_bytes, ram_bytes + item.ram_bytes
    return tuple(Weights(kind, name, *sizes) for (kind, name), sizes in totals.items())


def model_folder() -> str:
    """Return the folder of the host's models, the current one where the host does not say."""
    for name in ("modules.paths_internal", "modules.paths"):
        path = getattr(sys.modules.get(name), "models_path", None)
        if path:
            return str(path)
    return "."


def is_generating() -> bool:
    """Whether the host works on a job."""
    return bool(getattr(getattr(sys.modules.get("modules.shared"), "state", None), "job", None))
