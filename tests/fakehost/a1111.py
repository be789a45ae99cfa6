"""What AUTOMATIC1111 has of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.fakehost.webui import FakeHost


class FakeA1111(FakeHost):
    """Decodes through one function of a module; cond and uncond go together when an option says so."""

    name = "a1111"

    def sample(self, p: Any) -> None:
        """One call of the UNet with both halves, or two with one each."""
        together = self.opts.batch_cond_uncond
        self.record.unet_batches += [2 * p.batch_size] if together else [p.batch_size, p.batch_size]

    def decode(self, p: Any) -> None:
        """Decode by the name that other modules look up at every call."""
        self.modules["modules.sd_samplers_common"].samples_to_images_tensor("latent", 0, self.model)

    def build(self) -> None:
        """Make the modules of this host."""
        self.opts.data |= {
            "fp8_storage": "Disable",
            "cross_attention_optimization": "Automatic",
        }
        self.opts.data_labels["batch_cond_uncond"] = SimpleNamespace(default=True)  # not in the settings file
        self.module("modules.lowvram")
        self.module("modules.devices", dtype="torch.float16", dtype_vae="torch.float16")
        sdp = SimpleNamespace(name="sdp", cmd_opt="opt_sdp_attention", title=lambda: "sdp - scaled dot product")
        self.module("modules.sd_hijack", current_optimizer=sdp, optimizers=[sdp])
        self.module("modules.launch_utils", git_tag=lambda: "v1.10.1")
        self.model = SimpleNamespace(first_stage_model=SimpleNamespace(decoder=SimpleNamespace(forward=None)))
        self.modules["modules.shared"].sd_model = self.model

        def samples_to_images_tensor(sample: Any, approximation: Any = None, model: Any = None) -> str:
            tile = vars(model.first_stage_model.decoder).get("vram_guard_tile_size")
            self.record.decodes.append(f"tiled {tile}" if tile else "whole")
            return "picture"

        self.module("modules.sd_samplers_common", samples_to_images_tensor=samples_to_images_tensor)
