"""What Forge and Neo share: the package ``backend``, whose memory manager loads and unloads models."""

from __future__ import annotations

from collections.abc import Iterable

from lib_vram.host import levers_idle, levers_storage, owners
from lib_vram.host.asked import Asked
from lib_vram.host.chosen_modules import OPTION, Chosen, chosen_modules, paths_of
from lib_vram.host.webui import WebUI


class BackendLine(WebUI):
    """A host with Forge's ``backend``."""

    def chosen(self, want: Asked) -> Chosen:
        """Return the files of *VAE / Text Encoder*, each as the part of the model that it is."""
        return chosen_modules(paths_of(want.chosen_modules, self.option(OPTION, ())))

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
