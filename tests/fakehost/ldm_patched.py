"""What reForge and Forge Classic have in common: the memory manager's module, and a main thread that drops failures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.forge import free_memory_of, others_loaded
from tests.fakehost.processing import page_run
from tests.fakehost.webui import FakeHost, Script

MIB = 1024**2
FLAGS = (
    "vae_in_fp16", "vae_in_bf16", "vae_in_fp32", "unet_in_fp8_e4m3fn", "unet_in_fp8_e5m2", "all_in_fp32",
    "unet_in_bf16", "attention_split", "attention_quad",
)  # fmt: skip


class OutOfMemoryError(RuntimeError):
    """Stands for torch's."""


class NeverOom(Script):
    """Writes what its first two arguments say, in its ``process``, at every run; a UNet switch that moves unloads."""

    def __init__(self, host: FakeLdmPatched) -> None:
        self.host = host
        self.was_on = False

    def title(self) -> str:
        return "Never OOM Integrated"

    def process(self, p: Any, unet: bool, vae: bool, *sizes: int) -> None:
        memory = self.host.memory
        memory.VAE_ALWAYS_TILED = vae
        if unet != self.was_on:
            memory.unload_all_models()
            memory.vram_state = "NO_VRAM" if unet else "NORMAL_VRAM"
        self.was_on = unet


class FakeLdmPatched(FakeHost):
    """``unloads`` counts how often everything was sent away, ``reserves`` what was kept free while the UNet worked."""

    own_reserve_bytes = 0

    def build(self) -> None:
        """Make the modules that both hosts have."""
        self.unloads = 0
        self.reserves: list[int] = []
        self.args = SimpleNamespace(**dict.fromkeys(FLAGS, False))
        self.module("ldm_patched.modules.args_parser", args=self.args)

        def attention_pytorch() -> None: ...

        self.module("ldm_patched.ldm.modules.attention", optimized_attention=attention_pytorch)
        self.memory: Any = self.module(
            "ldm_patched.modules.model_management", VAE_ALWAYS_TILED=False, vram_state="NORMAL_VRAM",
            minimum_inference_memory=lambda: self.own_reserve_bytes, unload_all_models=self._unload,
            current_loaded_models=[], soft_empty_cache=lambda: None,
        )  # fmt: skip
        self.memory.free_memory = free_memory_of(self.memory)
        self.module("modules_forge.forge_version", version="of the fake")
        self._main_thread()

    def _unload(self) -> None:
        self.unloads += 1

    def _main_thread(self) -> None:
        """What the work raises is printed, and the page's side gets ``None``."""

        def run_and_wait_result(function: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except Exception as fault:
                self.record.log.append(f"{type(fault).__name__}: {fault}")
                return None

        self.module("modules_forge.main_thread", run_and_wait_result=run_and_wait_result)

    def page(self, p: Any, module: str = "modules.txt2img") -> str:
        """Return the red line that the page shows after a run of ``p``, ``""`` when it has pictures."""

        def txt2img_function(id_task: str) -> list[Any]:
            return page_run(p)

        txt2img_function.__module__ = module
        try:
            list(self.modules["modules_forge.main_thread"].run_and_wait_result(txt2img_function, "task(1)"))
        except Exception as fault:
            return f"{type(fault).__name__}: {fault}"
        return ""

    def others_on_card(self) -> list[Any]:
        """Return what the memory manager has loaded beside the model in use."""
        sd_model = self.modules["modules.sd_models"].model_data.sd_model
        return super().others_on_card() + others_loaded(self.memory.current_loaded_models, sd_model)

    def sample(self, p: Any) -> None:
        """Prepare as the hosts do, then one step with both halves."""
        self.reserves.append(self.memory.minimum_inference_memory())
        self.step(p)

    def step(self, p: Any) -> None:
        """Compute both halves through the host's function."""
        raise NotImplementedError
