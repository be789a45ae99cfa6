"""What Forge Classic has of its own, as the source of its branch "classic" does it."""

from __future__ import annotations

from typing import Any

from tests.fakehost.ldm_patched import MIB, FakeLdmPatched, NeverOom
from tests.fakehost.webui import Script


class FakeClassic(FakeLdmPatched):
    """*Never OOM* works: its flag decides about tiles. 1 GiB is kept free."""

    name = "classic"
    own_reserve_bytes = 1024 * MIB

    def build(self) -> None:
        """Make the modules of this host."""
        super().build()
        self.memory.vae_dtype = lambda: "torch.bfloat16"

        def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, batch: int, *rest: Any) -> tuple[str, str]:
            self.record.unet_batches.append((len(cond) + len(uncond or ())) * batch)
            return ("cond" if cond else "nothing"), ("uncond" if uncond else "nothing")

        self.module("ldm_patched.modules.samplers", calc_cond_uncond_batch=calc_cond_uncond_batch)

    def step(self, p: Any) -> None:
        """One call for both halves, by the name in the sampler's module."""
        samplers = self.modules["ldm_patched.modules.samplers"]
        samplers.calc_cond_uncond_batch("model", ["cond"], ["uncond"], p.batch_size, 0.5, {})

    def decode(self, p: Any) -> None:
        """Decode as the flag says."""
        self.record.decodes.append("tiled" if self.memory.VAE_ALWAYS_TILED else "whole")

    def own_scripts(self) -> list[tuple[Script, list[Any]]]:
        """*Never OOM*, with both switches off."""
        return [(NeverOom(self), [False, False])]
