"""What an estimate must say beside its numbers: what is not counted, what widens it, what the host will do."""

from __future__ import annotations

from collections.abc import Iterator

from lib_vram.estimate.controls import is_known, is_loaded_by_hosts
from lib_vram.estimate.diffusers import FP16_FIX, placement, stays_by_quantisation
from lib_vram.estimate.extras import adds_loras_on_the_fly, lora_bytes, unknown_preprocessors
from lib_vram.estimate.flags import (
    TITLES,
    lacks_fused_attention,
    of_forge_line,
    offload_mode,
    set_conf,
    unet_dtype,
    upcasts_vae,
    vae_dtype,
)
from lib_vram.estimate.launched import a1111_flag_notes, flag_notes
from lib_vram.estimate.named import detector_network, runs_a_network, upscaler_network
from lib_vram.estimate.patched import FREEU_BYTES, hr_fix_share
from lib_vram.estimate.references import TAKES_REFERENCES
from lib_vram.estimate.residency import CONTEXT_HIGH_BYTES, CONTEXT_LOW_BYTES, Placed
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.estimate.timeline import computed_side, vae_tile
from lib_vram.estimate.weights import quantised_layer
from lib_vram.message import Message, say
from lib_vram.physics.addons import Addon
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.families import SHAPES
from lib_vram.physics.interval import HALVES, device_reasons
from lib_vram.request import Request

VAE_PHASES = ("vae_encode", "hires_upscale", "vae_decode")
"""Phases in which only the VAE works: Forge catches its running out of memory and goes on in tiles."""


def later_notes(request: Request, *, refiner_known: bool) -> tuple[Message, ...]:
    """Return what of ``request`` needs memory that cannot be computed yet: the verdict stays open for these."""
    kinds = sorted({unit.kind for unit in request.controlnets if not is_known(unit)})
    notes = [say("estimate.control_later", kind=kind) for kind in kinds]
    if request.refiner is not None and not refiner_known:
        notes.append(say("estimate.refiner_later", family=request.refiner.family))
    return tuple(notes)


def notes_on(
    request: Request, placed: tuple[Placed, ...], phases: tuple[PhaseEstimate, ...], room_bytes: int
) -> tuple[Message, ...]:
    """Return the notes on an estimate of ``request``, the most useful first."""
    if request.host == "diffusers":
        return (*_diffusers_notes(request), *_general_notes(request, placed))
    host_notes = _forge_notes(request, placed, phases, room_bytes) if of_forge_line(request) else _a1111_notes(request)
    return (*host_notes, *_general_notes(request, placed))


def ends_in_tiles(estimate: Estimate) -> bool:
    """Return whether all that does not fit is the VAE's work, which the host would do again in tiles by itself."""
    if all(note.key != "estimate.forge_retries_tiled" for note in estimate.notes):
        return False
    failing = [phase for phase in estimate.phases if phase.needs_bytes > estimate.available_bytes]
    return all(phase.name in VAE_PHASES for phase in failing)


def _forge_notes(
    request: Request, placed: tuple[Placed, ...], phases: tuple[PhaseEstimate, ...], room_bytes: int
) -> Iterator[Message]:
    if any(phase.name in VAE_PHASES and phase.needs_bytes > room_bytes for phase in phases):
        yield say("estimate.forge_retries_tiled", host=TITLES[request.host])
    if any("swap" in dict(item.resident) for item in placed):
        yield say("estimate.forge_swaps", host=TITLES[request.host])
    if request.batch_cond_uncond and request.uses_cfg and any(_is_halved(item) for item in placed):
        yield say("estimate.forge_halves", host=TITLES[request.host])
    yield from flag_notes(request, swaps=any("swap" in dict(item.resident) for item in placed))


def _is_halved(item: Placed) -> bool:
    component = item.component
    return not isinstance(component, Addon) and component.part == "denoise" and not component.cfg


def _diffusers_notes(request: Request) -> Iterator[Message]:
    if upcasts_vae(request):
        yield say("estimate.diffusers_vae_upcast", flag=FP16_FIX)
    if placement(request) == "model" and stays_by_quantisation(request):
        yield say("estimate.diffusers_int8_stays")
    if request.loras:
        yield say("estimate.diffusers_loras")


def _a1111_notes(request: Request) -> Iterator[Message]:
    yield from a1111_flag_notes(request)
    if request.model.family == "sdxl" and vae_dtype(request) == "fp16":
        yield say("estimate.vae_may_run_in_fp32")
    if request.live_preview == "full":
        allowed = offload_mode(request) == "normal"
        yield say("estimate.preview_full" if allowed else "estimate.preview_full_not_under_medvram")


def _general_notes(request: Request, placed: tuple[Placed, ...]) -> Iterator[Message]:
    width, height = computed_side(request, request.width), computed_side(request, request.height)
    if (width, height) != (request.width, request.height):
        yield say("estimate.size_cut", width=request.width, height=request.height, to_width=width, to_height=height)
    tile = vae_tile(request)
    parts = [item.component for item in placed if not isinstance(item.component, Addon)]
    if tile and any(part.tile for part in parts):
        yield say("estimate.tiles", tile=tile)
    if any(part.dtype == "fp32" for part in parts):
        yield say("interval.fp32")
    if unet_dtype(request) not in HALVES:
        yield say("interval.quantised", dtype=unet_dtype(request))
    yield from device_reasons(request.device.name)
    if lacks_fused_attention(request):
        yield say("estimate.no_fused_attention", device=request.device.name)
    yield from _addon_notes(request)
    yield from _reference_notes(request)
    yield from _patch_notes(request)
    yield from _allocator_notes(request)
    if request.loras and request.host != "diffusers":
        layer = quantised_layer(request.model.family, "fp16")
        way = "on_the_fly" if adds_loras_on_the_fly(request) else "merged"
        yield say(f"estimate.loras_{way}", scratch_bytes=lora_bytes(request, layer))
    yield say("estimate.interval", low_bytes=CONTEXT_LOW_BYTES, high_bytes=CONTEXT_HIGH_BYTES)


def _allocator_notes(request: Request) -> Iterator[Message]:
    conf = AllocatorConf.parse(set_conf(request))
    if conf.stream_ordered:
        yield say("estimate.alloc_conf_pool", conf=set_conf(request))
    if conf.expandable and request.system.platform == "windows":
        yield say("estimate.expandable_ignored")
    elif conf.expandable and request.system.platform is None:
        yield say("estimate.expandable_not_on_windows")


def _reference_notes(request: Request) -> Iterator[Message]:
    if not request.reference_images:
        return
    if request.model.family not in TAKES_REFERENCES:
        yield say("estimate.references_not_taken", family=request.model.family)
    elif request.model.family == "qwen_image":
        yield say("estimate.references_seen_by_the_encoder")


def _patch_notes(request: Request) -> Iterator[Message]:
    """What tiles, guidance and Kohya's HR fix do to the UNet's need."""
    tiles, fix = request.tiled_diffusion, request.hr_fix
    if tiles is not None:
        yield say("estimate.unet_in_tiles", width=tiles.tile_width, height=tiles.tile_height, batch=tiles.batch)
    if fix is not None and not SHAPES[request.model.family].transformer:
        share = hr_fix_share(request)
        if share > 1:
            yield say("estimate.hr_fix_enlarges")
        elif share == 1:
            yield say("estimate.hr_fix_some_steps")
        else:
            yield say("estimate.hr_fix_all_steps", percent=round(100 * (1 - share)))
    if "pag" in request.guidance:
        yield say("estimate.guidance_runs_again")
    if "sag" in request.guidance and request.uses_cfg:
        yield say("estimate.guidance_keeps_scores")
    if "freeu" in request.guidance and FREEU_BYTES.get(request.model.family):
        yield say("estimate.freeu_transforms")


def _addon_notes(request: Request) -> Iterator[Message]:
    """What stands in for a network that has no figures of its own."""
    if request.hires and request.mode == "txt2img" and runs_a_network(request.hires.upscaler):
        network = upscaler_network(request.hires.upscaler, request.host)
        if network is None:
            yield say("estimate.upscaler_not_counted", upscaler=request.hires.upscaler)
        elif network.by_rule:
            yield say("estimate.upscaler_by_rule", upscaler=request.hires.upscaler)
    for name in unknown_preprocessors(request):
        yield say("estimate.preprocessor_by_rule", preprocessor=name)
    detector = detector_network(request.detailer.model) if request.detailer else None
    if request.detailer and detector and detector.by_rule:
        yield say("estimate.detector_by_rule", detector=request.detailer.model)
    others = {unit.family for unit in request.controlnets if not is_loaded_by_hosts(unit)}
    for family in sorted(others) if request.host != "diffusers" else ():
        yield say("estimate.control_not_loaded", host=TITLES[request.host], family=family)
    if any(unit.kind not in ("controlnet", "t2i_adapter") and not unit.bytes for unit in request.controlnets):
        yield say("estimate.control_of_typical_size")
