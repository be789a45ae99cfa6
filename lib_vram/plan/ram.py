"""The computer's RAM that a generation needs: what is read while a model loads, and what stays there while it runs.

===============  =====================================================  ======================================
host             while the checkpoint is loaded                         while pictures are made
===============  =====================================================  ======================================
A1111            all weights, in the type that they are computed in     nothing; with ``--medvram`` and
                 (none with ``--lowram``)                               ``--lowvram`` what is not on the card
Forge, Neo,      all weights                                            the text encoders, the VAE and the
reForge,                                                                part of the model that is swapped
Classic
diffusers        all weights                                            what is not on the card: nothing, all
                                                                        but one component, or all
===============  =====================================================  ======================================

A ``.safetensors`` file is mapped: its pages are given back when others need them and are not counted. A ``.ckpt``
is read whole, beside the model that is made from it. A LoRA is merged into the weights, and what it changed is kept
in RAM to be put back (A1111 ``network_weights_backup``, Forge ``LoraLoader.backup``): the denoiser once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lib_vram.estimate.diffusers import ram_bytes as diffusers_ram_bytes
from lib_vram.estimate.diffusers import understood
from lib_vram.estimate.estimator import estimate
from lib_vram.estimate.flags import has_flag, of_forge_line, offload_mode
from lib_vram.estimate.physics import COMPUTED, Physics
from lib_vram.estimate.result import Estimate
from lib_vram.estimate.weights import ModelWeights, controlnet_bytes, weights_of
from lib_vram.message import Message, say
from lib_vram.request import Request
from lib_vram.units import GIB, MIB

HOST_BYTES = 1536 * MIB
"""A WebUI without a model. 520 MiB of its own were seen in Forge (June 2025, torch 2.13 for the CPU, Linux, November
2026: RssAnon of the process before the first generation; 4.2 GiB after it with SD 1.5 in fp32, whose weights are 4.0);
the rest is room for CUDA's context and libraries, which that build has not."""
SYSTEM_BYTES = 2 * GIB
"""The operating system, its desktop and a browser with the page: a rule, not a measurement."""
PICKLED = (".ckpt", ".pt", ".pth", ".bin")


@dataclass(frozen=True)
class RamNeed:
    """RAM in bytes, the WebUI itself included: the most while loading, and what stays while pictures are made."""

    loading_bytes: int
    running_bytes: int

    @property
    def most_bytes(self) -> int:
        """The larger of the two."""
        return max(self.loading_bytes, self.running_bytes)


def need_bytes(request: Request, physics: Physics = COMPUTED) -> int:
    """Return the most RAM that ``request`` takes, in bytes; 0 for a family whose weights are not known."""
    need = ram_need(request, physics)
    return need.most_bytes if need else 0


def room_bytes(request: Request) -> int | None:
    """Return the RAM that a WebUI can have on this machine, ``None`` where that is not known."""
    total = request.system.ram_total_bytes
    return None if total is None else max(0, total - SYSTEM_BYTES)


def ram_need(request: Request, physics: Physics = COMPUTED) -> RamNeed | None:
    """Return what ``request`` needs of the computer's RAM, ``None`` for a family whose weights are not known."""
    encoders = tuple(
        replace(encoder, device="gpu") for encoder in request.text_encoders
    )  # all count, wherever they work
    whole = request.replace(text_encoders=encoders)
    loaded = weights_of(whole.replace(model=replace(request.model, storage_dtype=None)))
    kept = weights_of(whole)
    if loaded is None or kept is None:
        return None
    file_bytes = _all_bytes(loaded) if (request.model.checkpoint or "").lower().endswith(PICKLED) else 0
    loading_bytes = 0 if has_flag(request, "--lowram") else _all_bytes(loaded) + file_bytes
    running_bytes = _kept_bytes(request, kept, physics) + _lora_bytes(request, kept)
    return RamNeed(HOST_BYTES + loading_bytes, HOST_BYTES + running_bytes)


def ram_note(request: Request, physics: Physics = COMPUTED) -> Message | None:
    """Return that this machine would swap to disk for ``request``, ``None`` when it would not or nobody knows."""
    need, room = ram_need(request, physics), room_bytes(request)
    if need is None or room is None or need.most_bytes <= room:
        return None
    key = "advice.ram_running" if need.running_bytes > room else "advice.ram_loading"
    wanted_bytes = need.running_bytes if need.running_bytes > room else need.loading_bytes
    return say(key, need_bytes=wanted_bytes, total_bytes=request.system.ram_total_bytes or 0, system_bytes=SYSTEM_BYTES)


def never_enough(request: Request, physics: Physics = COMPUTED) -> bool:
    """Return whether all the RAM of this machine is less than stays in use while pictures are made."""
    need, total = ram_need(request, physics), request.system.ram_total_bytes
    return need is not None and total is not None and need.running_bytes > total


def noted(result: Estimate, request: Request, physics: Physics = COMPUTED) -> Estimate:
    """Return ``result`` with the note on RAM first, where there is one to make."""
    note = ram_note(request, physics)
    if note is None or note in result.notes or result.verdict == "unknown":
        return result
    return replace(result, notes=(note, *result.notes))


def _all_bytes(weights: ModelWeights) -> int:
    return weights.unet_bytes + weights.text_encoders_bytes + weights.vae_bytes


def _kept_bytes(request: Request, weights: ModelWeights, physics: Physics) -> int:
    """Return the weights that lie in RAM while the denoiser works."""
    if of_forge_line(request):
        swapped = max(0, weights.unet_bytes - _on_card_bytes(request, physics))
        return swapped + weights.text_encoders_bytes + weights.vae_bytes
    if request.host == "diffusers":
        return max(diffusers_ram_bytes(understood(request), weights))
    mode = offload_mode(request)
    if mode == "normal":
        return 0
    kept_bytes = weights.text_encoders_bytes + weights.vae_bytes
    if mode == "lowvram":
        kept_bytes += weights.unet_bytes
    low = (unit for unit in request.controlnets if unit.kind == "controlnet" and unit.low_vram)
    return kept_bytes + sum(unit.bytes or controlnet_bytes(unit.family, "fp16") for unit in low)


def _on_card_bytes(request: Request, physics: Physics) -> int:
    """Return how much of the denoiser is on the card in the phase where least of it is."""
    phases = [phase for phase in estimate(request, physics).phases if phase.name.endswith("sampling")]
    return min((dict(phase.resident_parts).get("unet", 0) for phase in phases), default=0)


def _lora_bytes(request: Request, weights: ModelWeights) -> int:
    if not request.loras:
        return 0
    return sum(lora.bytes for lora in request.loras) + weights.unet_bytes
