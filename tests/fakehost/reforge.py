"""What reForge has of its own, as its source of March 2026 does it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.ldm_patched import MIB, FakeLdmPatched, NeverOom
from tests.fakehost.webui import Script


class FakeReforge(FakeLdmPatched):
    """*Never OOM*'s switch for the VAE is read by nobody: decoding goes through one function of a module, whole."""

    name = "reforge"
    own_reserve_bytes = int(0.8 * 1024 * MIB) + 400 * MIB

    def build(self) -> None:
        """Make the modules of this host."""
        super().build()
        self.args.fp32_unet = False
        self.memory.torch = SimpleNamespace(bfloat16="torch.bfloat16", float32="torch.float32")
        self.memory.vae_device, self.memory.vae_dtype = (lambda: "cuda"), (lambda device, types: types[0])
        self.module("modules.lowvram")
        self.module("ldm_patched.modules.patcher_extension")
        self.vae_in_our_tiles()
        info = self.modules["modules.sd_models"].checkpoints_list["model.safetensors"]
        self.modules["modules.sd_models"].model_data.sd_model = SimpleNamespace(
            sd_checkpoint_info=info,
            forge_objects=SimpleNamespace(
                vae=SimpleNamespace(vae_dtype="torch.bfloat16"),
                unet=SimpleNamespace(model_dtype=lambda: "torch.float16"),
            ),
        )

        def calc_cond_batch(model: Any, conds: list[Any], batch: int, *rest: Any) -> list[str]:
            self.record.unet_batches.append(sum(len(cond or ()) for cond in conds) * batch)
            return [cond[0] if cond else "nothing" for cond in conds]

        self.module("ldm_patched.modules.samplers", calc_cond_batch=calc_cond_batch)

    def step(self, p: Any) -> None:
        """One call with the list of both halves, by the name in the sampler's module."""
        self.modules["ldm_patched.modules.samplers"].calc_cond_batch(
            "model", [["cond"], ["uncond"]], p.batch_size, 0.5, {}
        )

    def decode(self, p: Any) -> None:
        """Decode by the name that other modules look up at every call."""
        self.modules["modules.sd_samplers_common"].samples_to_images_tensor("latent", 0, self.model)

    def encode(self, p: Any) -> None:
        """Encode by the name that ``modules.processing`` has imported."""
        self.modules["modules.processing"].images_tensor_to_samples("image", 0, None)

    def own_scripts(self) -> list[tuple[Script, list[Any]]]:
        """*Never OOM*, with both switches off and its two tile sizes."""
        return [(NeverOom(self), [False, False, 512, 64])]
