"""What AUTOMATIC1111 has of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.webui import FakeHost


class FakeA1111(FakeHost):
    """Decodes through one function of a module; cond and uncond go together when an option says so."""

    name = "a1111"

    def _attention(self) -> None:
        """Attention is what was applied last; without a selection it is the first one."""
        sdp = SimpleNamespace(name="sdp", cmd_opt="opt_sdp_attention", title=lambda: "sdp - scaled dot product")
        sub_quad = SimpleNamespace(name="sub-quadratic", cmd_opt=None, title=lambda: "sub-quadratic")
        self.attentions: list[str] = []

        def apply_optimizations(option: str | None = None) -> None:
            wanted = option or self.opts.cross_attention_optimization
            hijack.current_optimizer = next((item for item in hijack.optimizers if item.title() == wanted), sdp)

        hijack = self.module(
            "modules.sd_hijack", current_optimizer=sdp, optimizers=[sdp, sub_quad],
            model_hijack=SimpleNamespace(apply_optimizations=apply_optimizations),
        )  # fmt: skip

    def load_model(self) -> None:
        """Read the weights anew when they are to be stored otherwise."""
        if self.opts.fp8_storage != self.stored:
            self.stored = self.opts.fp8_storage
            super().load_model()

    @property
    def is_in_fp8(self) -> bool:
        return self.stored == "Enable"

    def others_on_card(self) -> list[Any]:
        """Return what A1111 keeps: interrogators, other checkpoints, cached control models."""
        models = self.modules["modules.sd_models"].model_data
        others = [item for item in getattr(models, "loaded_sd_models", ()) if item is not models.sd_model]
        interrogator = getattr(self.modules["modules.shared"], "interrogator", None)
        others += [getattr(interrogator, "blip_model", None)]
        script = next(item for item in self.runner.alwayson_scripts if item.title() == "ControlNet")
        others += [cached.model for cached in script.model_cache.values()]
        return super().others_on_card() + [item for item in others if item is not None and item.is_on_card]

    def sample(self, p: Any) -> None:
        """Tell the scripts, then one call of the UNet with both halves, or two with one each."""
        for script in self.runner.alwayson_scripts:
            hook = getattr(script, "process_before_every_sampling", None)
            if hook is not None:
                hook(p, *p.script_args[script.args_from : script.args_to], x="latent", noise="noise")
        self.attentions.append(self.modules["modules.sd_hijack"].current_optimizer.name)
        together = self.opts.batch_cond_uncond
        self.record.unet_batches += [2 * p.batch_size] if together else [p.batch_size, p.batch_size]

    def decode(self, p: Any) -> None:
        """Decode by the name that other modules look up at every call."""
        self.modules["modules.sd_samplers_common"].samples_to_images_tensor("latent", 0, self.model)

    def encode(self, p: Any) -> None:
        """Encode by the name that ``modules.processing`` has imported."""
        self.modules["modules.processing"].images_tensor_to_samples("image", 0, None)

    def build(self) -> None:
        """Make the modules of this host."""
        self.opts.data |= {
            "fp8_storage": "Disable",
            "cross_attention_optimization": "Automatic",
        }
        self.opts.data_labels["batch_cond_uncond"] = SimpleNamespace(default=True)  # not in the settings file
        self.module("modules.lowvram")
        self.module("modules.devices", dtype="torch.float16", dtype_vae="torch.float16", torch_gc=lambda: None)
        self._attention()
        self.stored = "Disable"
        self.module("modules.launch_utils", git_tag=lambda: "v1.10.1")
        self.vae_in_our_tiles()
