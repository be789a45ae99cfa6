"""What Forge has of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.webui import FakeHost, Script


class NeverOom(Script):
    """Forge's own switches: writes what its arguments say, in its ``process``, at every run."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host

    def title(self) -> str:
        return "Never OOM Integrated"

    def process(self, p: Any, unet: bool, vae: bool) -> None:
        self.host.modules["backend.memory_management"].VAE_ALWAYS_TILED = vae


def free_memory_of(memory: Any) -> Any:
    """Return the manager's function that sends away what it is not told to keep, until enough is free."""

    def free_memory(wanted_bytes: float, device: Any, keep_loaded: Any = ()) -> None:
        for loaded in [item for item in memory.current_loaded_models if item not in keep_loaded]:
            memory.current_loaded_models.remove(loaded)
            loaded.model.model.to("cpu")

    return free_memory


def others_loaded(loaded: list[Any], sd_model: Any) -> list[Any]:
    """Return the models in the manager's list that are no part of ``sd_model``."""
    objects = getattr(sd_model, "forge_objects", None)
    own = [getattr(getattr(objects, name, None), "model", None) for name in ("unet", "vae")]
    return [item.model.model for item in loaded if item.model.model not in own]


class FakeForge(FakeHost):
    """Both halves of a step go through one function; a module's flag decides about tiles."""

    name = "forge"
    reads_headers_in = ("lib_vram.host.forge",)

    def sample(self, p: Any) -> None:
        """One call of Forge's function for both halves."""
        function = self.modules["backend.sampling.sampling_function"]
        function.calc_cond_uncond_batch("model", ["cond"], ["uncond"], p.batch_size, 0.5, {})

    def decode(self, p: Any) -> None:
        """Decode as the flag says."""
        tiled = self.modules["backend.memory_management"].VAE_ALWAYS_TILED
        self.record.decodes.append("tiled" if tiled else "whole")

    def own_scripts(self) -> list[tuple[Script, list[Any]]]:
        """*Never OOM*, with both switches off."""
        return [(NeverOom(self), [False, False])]

    def manage_memory(self) -> None:
        """Make the memory manager's list, and what is written down when a way of loading has changed."""
        memory = self.modules["backend.memory_management"]
        memory.current_loaded_models = []
        memory.soft_empty_cache = lambda: None
        memory.free_memory = free_memory_of(memory)
        self.told, self.stored = "Automatic", "Automatic"

        def refresh_model_loading_parameters() -> None:
            self.told = self.opts.forge_unet_storage_dtype

        main_entry = self.module("modules_forge.main_entry")
        main_entry.refresh_model_loading_parameters = refresh_model_loading_parameters

    def load_model(self) -> None:
        """Read the model anew when it was told to load it otherwise."""
        if self.told != self.stored:
            self.stored = self.told
            super().load_model()

    @property
    def is_in_fp8(self) -> bool:
        return self.stored.startswith("float8")

    def others_on_card(self) -> list[Any]:
        """Return what the memory manager has loaded beside the model in use."""
        loaded = self.modules["backend.memory_management"].current_loaded_models
        return super().others_on_card() + others_loaded(loaded, self.modules["modules.sd_models"].model_data.sd_model)

    def build(self) -> None:
        """Make the modules of this host."""
        self.opts.data |= {"forge_unet_storage_dtype": "Automatic", "forge_inference_memory": 1024}
        self.module(
            "backend.memory_management", total_vram=12288.0, current_inference_memory=1024**3,
            VAE_ALWAYS_TILED=False, vae_dtype=lambda: "torch.bfloat16",
        )  # fmt: skip
        self.manage_memory()
        flags = (
            "vae_in_fp32", "vae_in_fp16", "all_in_fp32", "unet_in_bf16", "unet_in_fp8_e4m3fn", "unet_in_fp8_e5m2",
            "attention_split", "attention_quad",
        )  # fmt: skip
        self.module("backend.args", args=SimpleNamespace(**dict.fromkeys(flags, False)))

        def attention_pytorch() -> None: ...

        self.module("backend.attention", attention_function=attention_pytorch)

        def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, batch: int, *rest: Any) -> tuple[str, str]:
            halves = len(cond) + len(uncond or ())
            self.record.unet_batches.append(halves * batch)
            return ("cond" if cond else "nothing"), ("uncond" if uncond else "nothing")

        self.module("backend.sampling.sampling_function", calc_cond_uncond_batch=calc_cond_uncond_batch)
        self.module("modules_forge.forge_version", version="2.0.1v1.10.1")
