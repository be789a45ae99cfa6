"""What Forge Neo has of its own, as its source of version 2.26 does it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.forge import FakeForge
from tests.fakehost.processing import page_run

GIB, MIB = 1024**3, 1024**2
RESERVED = 400 * MIB


class OutOfMemoryError(RuntimeError):
    """Stands for ``torch.OutOfMemoryError``."""


class FakeNeo(FakeForge):
    """Sizes are rounded, and the checkpoint is loaded, after ``before_process``; the model may be a stand-in."""

    name = "neo"
    reads_headers_in = ("lib_vram.host.neo",)
    is_wan = False

    def own_scripts(self) -> list[Any]:
        """Neo has no *Never OOM*."""
        return []

    def build(self) -> None:
        """Make the modules of this host."""
        self.kept: list[float] = []
        """What stayed free in each sampling."""
        self.unloads = 0
        self.is_dead = False
        self.opts.data |= {"forge_unet_storage_dtype": "Automatic", "forge_model_mode": "local", "res_step": 64}
        self.opts.data["setting_allocated_vram"] = 1.0
        self.module(
            "backend.memory_management", total_vram=12288.0, VAE_ALWAYS_TILED=False,
            vae_dtype=lambda: "torch.bfloat16", extra_reserved_memory=lambda: RESERVED,
        )  # fmt: skip
        memory = self.modules["backend.memory_management"]
        memory.minimum_inference_memory = lambda: 0.8 * GIB + memory.extra_reserved_memory()
        self.manage_memory()
        flags = (
            "fp32_vae", "fp16_vae", "force_fp32", "fp32_unet", "bf16_unet", "fp16_unet", "fp8_e4m3fn_unet",
            "fp8_e5m2_unet",
        )  # fmt: skip
        self.args = SimpleNamespace(**dict.fromkeys(flags, False), reserve_vram=None)
        self.module("backend.args", args=self.args)

        def attention_pytorch() -> None: ...

        self.module("backend.attention", attention_function=attention_pytorch)

        def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, batch: int, *rest: Any) -> tuple[str, str]:
            self.record.unet_batches.append((len(cond) + len(uncond or ())) * batch)
            return ("cond" if cond else "nothing"), ("uncond" if uncond else "nothing")

        self.module("backend.sampling.sampling_function", calc_cond_uncond_batch=calc_cond_uncond_batch)
        self.module("modules_forge.forge_version", version="neo", release="2.26")
        self.module("modules_forge.presets")
        self.modules["modules.shared"].latent_upscale_modes = {}
        self._checkpoints()
        self._main_thread()

    def _main_thread(self) -> None:
        """The thread that computes for the page: it keeps one text of a failure, and a step behind it reads that."""

        def run_and_wait_result(function: Any, *arguments: Any) -> Any:
            try:
                result, module.last_exception = function(*arguments), None
                return result
            except Exception as fault:
                module.last_exception = "OOM" if self._is_oom(fault) else f"{type(fault).__name__}: {fault}"
                return None

        def cleanup() -> None:
            if module.last_exception == "OOM":
                self.unloads += 1

        module = self.module("modules_forge.main_thread", run_and_wait_result=run_and_wait_result, last_exception=None)
        self.module("modules.ui", cleanup=cleanup)

    def _is_oom(self, fault: Exception) -> bool:
        """On a torch without CUDA Neo's test for others that say so raises, and with it ends the thread."""
        if not isinstance(fault, OutOfMemoryError) and "out of memory" in str(fault).lower():
            self.is_dead = True
        return isinstance(fault, OutOfMemoryError)

    def page(self, p: Any) -> tuple[Any, str]:
        """Return result and error line of a run as the page has it: Neo's own text comes first."""

        def txt2img_function(id_task: str) -> list[Any]:
            return page_run(p)

        txt2img_function.__module__ = "modules.txt2img"
        thread = self.modules["modules_forge.main_thread"]
        result = thread.run_and_wait_result(txt2img_function, "task(1)")
        shown = "" if result is not None else thread.last_exception
        self.modules["modules.ui"].cleanup()
        return result, shown

    def _checkpoints(self) -> None:
        models = self.modules["modules.sd_models"]
        info = models.checkpoints_list["model.safetensors"]
        models.model_data = SimpleNamespace(
            sd_model=SimpleNamespace(), forge_loading_parameters={"checkpoint_info": info, "additional_modules": []}
        )  # a stand-in without ``sd_checkpoint_info`` until the first generation
        self.wanted = info

    def settle(self, p: Any) -> None:
        """Round both sides to 64, and take a video's frames in groups of four and one."""
        if self.is_wan:
            p.batch_size = (p.batch_size - 1) // 4 * 4 + 1
        p.width, p.height = (max(64, (side + 32) // 64 * 64) for side in (p.width, p.height))

    def load_model(self) -> None:
        """Load what the page has chosen, in place of the stand-in."""
        super().load_model()
        self.modules["modules.sd_models"].model_data.sd_model = SimpleNamespace(sd_checkpoint_info=self.wanted)

    def sample(self, p: Any) -> None:
        """Each pass begins with fresh copies of the patchers and tells the scripts."""
        for _ in range(2 if getattr(p, "enable_hr", False) else 1):
            latent = SimpleNamespace(shape=(p.batch_size, 4, p.height // 8, p.width // 8))
            for script in self.runner.alwayson_scripts:
                hook = getattr(script, "process_before_every_sampling", None)
                if hook is not None:
                    hook(p, *p.script_args[script.args_from : script.args_to], x=latent, noise=latent)
            self.kept.append(self.modules["backend.memory_management"].minimum_inference_memory())
            super().sample(p)
