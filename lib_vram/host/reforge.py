"""reForge: it moves models layer by layer above a reserve; its *Never OOM* switch for the VAE reaches nothing.

What that switch sets is read by ``VAE.decode_inner``, which nobody calls: pictures are decoded and encoded whole, and
in tiles only after the card has run out. So the tiles are ours here, for both, as on A1111.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lib_vram.host import units
from lib_vram.host.asked import Asked
from lib_vram.host.forge import UNET
from lib_vram.host.installed_tiles import BesideTiledVae
from lib_vram.host.ldm_patched import LdmPatched
from lib_vram.host.tiled_run import own_tiles
from lib_vram.machine.card import Card
from lib_vram.request import HostName, Request


class Reforge(BesideTiledVae, LdmPatched):
    """Panchovix's reForge."""

    name: HostName = "reforge"
    title = "reForge"
    own_controls = LdmPatched.own_controls | {"tiled", "tile_size"}

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the VAE with our tiles, the reserve, and whether cond and uncond go together."""
        vae: dict[str, Any] = {"dtype": self.vae_dtype(card), "tiled": want.tiled}
        if want.tiled:
            vae["tile_size"] = want.tile_size
        return {
            "vae": vae,
            "batch_cond_uncond": not want.apart,
            "forge": {"inference_memory_bytes": self.reserve_asked(want), "never_oom_unet": want.never_oom_unet},
        }

    def reserve_asked(self, want: Asked) -> int:
        """Return what ``want`` has kept free: never less than reForge keeps for its own work."""
        return max(super().reserve_asked(want), self.reserve_bytes())

    def vae_dtype_to_come(self) -> Any:
        """Return the torch type in which reForge would load the VAE of SD 1, SD 2 or SDXL."""
        from ldm_patched.modules import model_management as memory

        return memory.vae_dtype(memory.vae_device(), [memory.torch.bfloat16, memory.torch.float32])

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on what ``request`` asks for in the run of ``p``, on top of what all hosts have."""
        super().prepare_run(p, request)
        argument = units.own_argument(p)
        apart = not request.batch_cond_uncond if request else argument.apart
        tiled = request.vae.tiled if request else argument.tiled
        self.reserve(p, request.forge.inference_memory_bytes if request else self.reserve_asked(self.asked(p)))
        if request is not None:
            self.never_oom(p, {UNET: request.forge.never_oom_unet})
        if self.installed_tile(p, request) is None and tiled:
            own_tiles(self.runs.of(p), (request.vae.tile_size if request else None) or argument.tile_size)
        if apart:
            self.sample_apart(p, "calc_cond_batch", _one_by_one)


def _one_by_one(together: Callable[..., Any]) -> Callable[..., Any]:
    """Return reForge's function for a list of conditions as one call for each of them that is there."""

    def calc_cond_batch(model: Any, conds: list[Any], *rest: Any) -> Any:
        present = [place for place, cond in enumerate(conds) if cond is not None]
        if len(present) < 2:
            return together(model, conds, *rest)
        results = list(together(model, _only(conds, present[0]), *rest))
        for place in present[1:]:
            results[place] = together(model, _only(conds, place), *rest)[place]
        return results

    return calc_cond_batch


def _only(conds: list[Any], kept: int) -> list[Any]:
    return [cond if place == kept else None for place, cond in enumerate(conds)]
