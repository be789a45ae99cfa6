"""AUTOMATIC1111: models stay on the card unless a flag says otherwise; it has no tiled VAE, so we bring one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lib_vram.host import (
    freeing,
    levers_attention,
    levers_controlnet,
    levers_idle,
    levers_storage,
    owners,
    units,
)
from lib_vram.host.asked import Asked
from lib_vram.host.installed_tiles import BesideTiledVae
from lib_vram.host.levers import levers_of
from lib_vram.host.tiled_run import own_tiles
from lib_vram.host.webui import dtype_name, stands_in
from lib_vram.machine.card import Card
from lib_vram.request import HostName, Request

_ATTENTION = {
    "xformers": "xformers", "sdp": "sdpa", "sdp-no-mem": "sdpa", "sub-quadratic": "sub_quad",
    "Doggettx": "split", "InvokeAI": "split", "V1": "split",
}  # fmt: skip


SDXL = ("sdxl", "sdxl_refiner")
"""What *Enable for SDXL* is for: models with a ``conditioner``."""
TOGETHER = "batch_cond_uncond"
"""The host's option by which prompt and negative prompt are computed in one batch."""


class A1111(BesideTiledVae):
    """AUTOMATIC1111's WebUI and forks of the same code."""

    name: HostName = "a1111"
    title = "AUTOMATIC1111"
    own_controls = BesideTiledVae.own_controls | {"tiled", "tile_size", "attention", "fp8_weights"}
    memory_flags = frozenset(
        {"medvram", "medvram-sdxl", "lowvram", "lowram", "no-half", "no-half-vae", "upcast-sampling", "precision"}
    )

    def __init__(self) -> None:
        super().__init__()
        self._waits_for_run = False

    def version(self) -> str:
        """Return the tag of the WebUI's own repository; ``""`` when it has none."""
        from modules import launch_utils

        tag = launch_utils.git_tag()
        return "" if tag == "<none>" else tag

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the VAE, with our tiles, and whether cond and uncond go together."""
        from modules import devices

        vae = {"dtype": dtype_name(devices.dtype_vae, "fp16"), "tiled": want.tiled}
        if want.tiled:
            vae["tile_size"] = want.tile_size
        together = bool(self.option("batch_cond_uncond", True)) and not want.apart
        return {"vae": vae, "batch_cond_uncond": together, "more_attention": levers_attention.more_than_pytorchs()}

    def weights_dtype(self, path: str | None, card: Card) -> str:
        """Return the UNet's type: fp8 by an option (``check_fp8``), fp32 by ``--no-half``, else fp16."""
        from modules import devices, shared

        storage = str(self.option("fp8_storage", "Disable"))
        if storage == "Enable" or (storage == "Enable for SDXL" and self.family_of(path) in SDXL):
            return "fp8"
        if getattr(shared.cmd_opts, "no_half", False):
            return "fp32"
        return dtype_name(devices.dtype, "fp16")

    def attention(self, card: Card) -> str:
        """Return the attention in use; before a model is loaded and on a stand-in card, what the host would choose."""
        from modules import sd_hijack

        optimizer = sd_hijack.current_optimizer
        if levers_attention.BEFORE in self.meanwhile:
            return str(self.meanwhile[levers_attention.BEFORE])
        if optimizer is None or stands_in(card):
            return self._attention_to_come()
        return _ATTENTION.get(optimizer.name, "sdpa")

    def _attention_to_come(self) -> str:
        """Return the choice of the settings or the flags; *Automatic* is Doggettx where xformers is not asked for."""
        from modules import sd_hijack, shared

        choice = self.option("cross_attention_optimization", "Automatic")
        if choice == "None":
            return "math"
        named = [item for item in sd_hijack.optimizers if item.title() == choice]
        asked = [item for item in sd_hijack.optimizers if getattr(shared.cmd_opts, item.cmd_opt or "", False)]
        return _ATTENTION.get((named or asked)[0].name, "sdpa") if named or asked else "split"

    def loaded_parts(self) -> Iterable[owners.Named]:
        """Return the parts of the checkpoint in use, and those that are kept beside it."""
        from modules import sd_models

        return owners.of_a1111(sd_models.model_data)

    def unload_models(self) -> None:
        """Move the checkpoints to the computer's RAM; the one in use goes back before the next run computes.

        The host takes a model that it has kept for one that is on the card. Under ``--lowvram`` and ``--medvram``
        its parts come to the card by themselves.
        """
        from modules import sd_models

        for model in _checkpoints(sd_models.model_data):
            sd_models.send_model_to_cpu(model)
        if sd_models.model_data.sd_model is not None and not self._waits_for_run:
            freeing.before_next_run(self._bring_back)
            self._waits_for_run = True

    def _bring_back(self) -> None:
        from modules import sd_models

        self._waits_for_run = False
        model = sd_models.model_data.sd_model
        if model is not None and not getattr(model, "lowvram", False):
            sd_models.send_model_to_device(model)

    def can_store_fp8(self, weights_dtype: str) -> bool:
        """Whether this PyTorch has fp8 and the weights are not that small already."""
        return weights_dtype in levers_storage.WHOLE_TYPES and levers_storage.can_store_fp8()

    def idle_models(self, want: Asked) -> list[levers_idle.Idle]:
        """Return face restorers, interrogators, checkpoints and cached control models that ``want`` does not use."""
        files = [self.checkpoint_path(want.checkpoint), *(self.checkpoint_path(name) for name in _others(want))]
        return [*super().idle_models(want), *levers_idle.of_a1111(want, files)]

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on what ``request`` asks for in the run of ``p``, on top of what all hosts have."""
        super().prepare_run(p, request)
        levers = levers_of(request, self.asked(p))
        card = self.card()
        now = self.attention(card) if card else ""
        if levers.attention and levers.attention != now:
            levers_attention.compute_with(self, p, levers.attention, now)
        if levers.stores_fp8 and levers_storage.can_store_fp8():
            levers_storage.a1111_in_fp8(self, p)
        levers_controlnet.leave_between_steps(p, levers.low_vram_units, self.runs.of(p).of_fields)
        self._prepare_tiles_and_halves(p, request)

    def before_sampling(self, p: Any, latent: Any) -> None:
        """Keep the two halves apart: Regional Prompter puts the option back in ``process``, whether it is used or not.

        What the option was is given back as before: by the host, or by the undoing of the override.
        """
        from modules import shared

        if self._held.get(TOGETHER) is False:
            shared.opts.data[TOGETHER] = False

    def _prepare_tiles_and_halves(self, p: Any, request: Request | None) -> None:
        argument = units.own_argument(p)
        apart = not request.batch_cond_uncond if request else argument.apart
        tiled = request.vae.tiled if request else argument.tiled
        if apart and self.option(TOGETHER, True):
            self.override(p, TOGETHER, False)  # read at every step
        size = (request.vae.tile_size if request else None) or argument.tile_size
        if self.installed_tile(p, request) is None and tiled:
            own_tiles(self.runs.of(p), size)


def _others(want: Asked) -> list[str]:
    """Return the names of the checkpoints that a run uses beside its own."""
    return [name for name in (want.refiner, want.hr_checkpoint) if name is not None]


def _checkpoints(model_data: Any) -> list[Any]:
    """Return the checkpoint in use and those that the host keeps beside it, each once."""
    checkpoints = [model_data.sd_model, *getattr(model_data, "loaded_sd_models", ())]
    return [model for place, model in enumerate(checkpoints) if model is not None and model not in checkpoints[:place]]
