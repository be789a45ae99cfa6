"""What Forge and Neo share: the package ``backend``, whose memory manager loads and unloads models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lib_vram.host import levers_idle, levers_storage, owners
from lib_vram.host.asked import Asked
from lib_vram.host.chosen_modules import OPTION, Chosen, chosen_modules, paths_of
from lib_vram.host.webui import CHECKPOINT, WebUI

STORAGE = "forge_unet_storage_dtype"
"""*Diffusion in Low Bits*."""


class BackendLine(WebUI):
    """A host with Forge's ``backend``."""

    loads_anew: tuple[str, ...] = (CHECKPOINT, OPTION)
    """Options that have the host look up how the model is to be loaded."""

    def chosen(self, want: Asked) -> Chosen:
        """Return the files of *VAE / Text Encoder*, each as the part of the model that it is."""
        return chosen_modules(paths_of(want.chosen_modules, self.option(OPTION, ())))

    def overridden(self, p: Any) -> dict[str, Any]:
        """Return the options that ``p`` has the host set for its run, those that take effect in it.

        How a model is loaded is looked up anew only where something else about the loading changes (``set_config`` in
        modules/sysinfo.py); *Diffusion in Low Bits* by itself does not count.
        """
        options, asked = super().overridden(p), getattr(p, "override_settings", None) or {}
        others = [key for key in self.loads_anew if key in asked and asked[key] != self.option(key, None)]
        if not others:
            options.pop(STORAGE, None)
        return options

    def online_lora(self) -> bool:
        """Whether *Diffusion in Low Bits* is one of those that add LoRAs to a layer whenever it is used."""
        return "fp16 lora" in str(self.option(STORAGE, "")).lower()

    def can_store_fp8(self, weights_dtype: str) -> bool:
        """Whether this PyTorch has fp8 and the weights are not that small already."""
        return weights_dtype in levers_storage.WHOLE_TYPES and levers_storage.can_store_fp8()

    def idle_models(self, want: Asked) -> list[levers_idle.Idle]:
        """Return what the memory manager and others keep on the card and ``want`` does not use."""
        from backend import memory_management

        return [*super().idle_models(want), *self.managed_idle(memory_management, want)]

    def loaded_parts(self) -> Iterable[owners.Named]:
        """Return the parts of the checkpoint in use, and what else the memory manager has loaded."""
        from backend import memory_management

        return owners.of_forge_line(self.loaded_model(), memory_management.current_loaded_models)

    def unload_models(self) -> None:
        """Move every model to the computer's RAM; the host loads what the next run needs."""
        from backend import memory_management

        memory_management.unload_all_models()

    def empty_caches(self) -> None:
        """Give PyTorch's cache back to the driver, in the host's own way."""
        from backend import memory_management

        memory_management.soft_empty_cache()
