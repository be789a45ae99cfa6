"""Forge Classic: the Forge of early 2024 under gradio 3; it keeps 1 GiB free, and its *Never OOM* works."""

from __future__ import annotations

from typing import Any

from lib_vram.host import units
from lib_vram.host.asked import Asked
from lib_vram.host.forge import SMALLEST_TILED_SIDE, UNET, VAE, one_by_one
from lib_vram.host.ldm_patched import LdmPatched
from lib_vram.machine.card import Card
from lib_vram.request import HostName, Request


class Classic(LdmPatched):
    """Haoming02's Forge Classic, and the Forge of early 2024 that it comes from."""

    name: HostName = "classic"
    title = "Forge Classic"

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the VAE, the reserve with *Never OOM*'s switches, and whether cond and uncond go together."""
        tiled = want.tiled and _can_tile(want.width, want.height)
        return {
            "vae": {"dtype": self.vae_dtype(card)},
            "batch_cond_uncond": not want.apart,
            "forge": {
                "inference_memory_bytes": self.reserve_asked(want),
                "never_oom_vae": want.never_oom_vae or tiled,
                "never_oom_unet": want.never_oom_unet,
            },
        }

    def vae_dtype_to_come(self) -> Any:
        """Return the torch type in which Classic would load a VAE."""
        from ldm_patched.modules import model_management

        return model_management.vae_dtype()

    def weights_dtype_to_come(self) -> str:
        """Return fp8 where the option for it is on, else fp16."""
        return "fp8" if self.option("fp8_storage", False) is True else "fp16"

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return both of *Never OOM*'s switches, and ours for cond and uncond."""
        vae = ("never_oom_vae", original.forge.never_oom_vae, changed.forge.never_oom_vae)
        return [vae, *super().lever_pairs(original, changed)]

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on what ``request`` asks for in the run of ``p``, on top of what all hosts have."""
        super().prepare_run(p, request)
        argument = units.own_argument(p)
        apart = not request.batch_cond_uncond if request else argument.apart
        wanted = {VAE: argument.tiled}
        if request is not None:
            wanted = {UNET: request.forge.never_oom_unet, VAE: request.forge.never_oom_vae}
        self.reserve(p, request.forge.inference_memory_bytes if request else self.reserve_asked(self.asked(p)))
        if not _can_tile(p.width, p.height):
            wanted.pop(VAE)
        self.never_oom(p, wanted)
        if apart:
            self.sample_apart(p, "calc_cond_uncond_batch", one_by_one)


def _can_tile(width: int, height: int) -> bool:
    return min(width, height) >= SMALLEST_TILED_SIDE
