"""What a generation does, in order: which part works at which size, and what else stays alive meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from lib_vram.estimate.controls import WHOLE_NETS, net_variant
from lib_vram.estimate.encoders import encoding_family
from lib_vram.estimate.encoders import unpacked_bytes as encoder_unpacked_bytes
from lib_vram.estimate.extras import (
    adapter_works,
    adapters_held_bytes,
    adapters_kept_bytes,
    adds_loras_on_the_fly,
    detector_works,
    kept_upscaler_bytes,
    lora_bytes,
    preprocessor_works,
    restorer_bytes,
    restorer_works,
    unmanaged_idle_bytes,
    upscaler_works,
)
from lib_vram.estimate.flags import (
    compute_dtype,
    conf_of,
    has_flag,
    host_tiles,
    offload_mode,
    unet_dtype,
    uses_two_halves,
    vae_dtype,
)
from lib_vram.estimate.launched import launched
from lib_vram.estimate.patched import guidance_bytes, in_tiles
from lib_vram.estimate.references import reference_latent_bytes, reference_sizes
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.weights import quantised_layer
from lib_vram.estimate.work import Sizes, Work, Working
from lib_vram.physics.addons import Addon
from lib_vram.physics.attention import SELF_SLICING
from lib_vram.physics.component import Code, CodeHost, Component
from lib_vram.physics.controlnets import result_numbers
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.in_step import SHAPES as IN_STEP
from lib_vram.physics.memory import is_ready
from lib_vram.physics.quantised import scratch_bytes
from lib_vram.request import Family, HostName, Request

LATENT_FACTOR = 8
"""Pixels of the picture per row of the latent (``opt_f`` in both hosts)."""
SIZE_STEPS: dict[HostName, int] = {"neo": 64}
"""Hosts that round every size to the nearest multiple of this before they compute (``process_images_inner`` of the
bundle of Neo 2.26; its own sliders and ``sRound`` for the second pass have the same step)."""
PATCH_PIXELS = 16
"""Pixels of the picture per patch of a transformer, of which diffusers' pipelines compute whole ones."""
SAMPLER_LATENTS = 12
"""Latents that a sampler keeps, in fp32: the input, the noise, the step's input and output for both halves, both
combined results, the last two results of a multi-step sampler, the preview and one to spare. Counted in k-diffusion's
``sample_dpmpp_2m`` and the hosts' ``CFGDenoiser``; 256 KiB each for a picture of 1024×1024."""

EDIT_THIRDS = 3
"""Rows for each picture that InstructPix2Pix computes (``is_edit_model`` in modules/sd_samplers_cfg_denoiser.py)."""

TILED_LATENTS = 2
"""Latents for each row that diffusion in tiles keeps: what is summed up, and its average (``x_buffer``)."""

PLAIN_WEIGHTS = ("fp32", "fp16", "bf16")
"""Weights that are multiplied as they lie there."""

HINT_CHANNELS = 3
TAESD_BYTES_PER_PIXEL = 64 * 2 * 3
"""The preview decoder's last stage: 64 channels in half precision, input, result and shortcut alive together
(modules/sd_vae_taesd.py). A rule, not a measurement."""

DEFAULT_TILE = 768
"""Side of a tile in pixels where the request names none (A1111 and reForge: our own tiles)."""
DIFFUSERS_TILE = 1024
DIFFUSERS_TILES: dict[Family, int] = {"sd15": 512, "sd21": 768}
DIFFUSERS_VAE_TILES = {"wan": 256}
"""diffusers' tiles are of the size that the VAE was trained at (``sample_size`` of its configuration)."""
FORGE_TILE = 512
"""Forge decodes tiles of 64×64 latents and the same area as 32×128 and 128×32 (backend/patcher/vae.py)."""

CPU_UPSCALERS = ("none", "lanczos", "nearest")


def timeline(request: Request) -> tuple[Work, ...]:
    """Return the pieces of work of one batch of ``request``, in the order in which the host does them."""
    works = tuple(_timeline(request))
    if launched(request).vae_on_cpu:
        works = tuple(work for work in works if work.worker != "vae")
    return tuple(_with_kept(request, works))


def _with_kept(request: Request, works: tuple[Work, ...]) -> Iterator[Work]:
    """Add what stays on the device from one batch to the next, or from its first use on: add-ons and idle models."""
    left = any(model.kind == "face_restore" for model in request.idle_models)
    restorer = restorer_bytes(request) if left or request.batch_count > 1 else 0
    upscaler, used = _kept_upscaler_bytes(request), request.batch_count > 1
    idle = unmanaged_idle_bytes(request)
    adapter, adapted = adapters_kept_bytes(request), request.batch_count > 1
    for work in works:
        kept = {
            "face_restore": restorer, "upscaler": upscaler if used else 0, "idle_models": idle,
            "adapter": adapter if adapted else 0,
        }  # fmt: skip
        names = {name for name, _ in work.held}
        more = tuple((name, size) for name, size in kept.items() if size and name not in names)
        used, adapted = used or "upscaler" in names, adapted or "adapter" in names
        yield replace(work, held=(*work.held, *more)) if more else work


def _kept_upscaler_bytes(request: Request) -> int:
    wanted = upscaled_size(request) if request.mode == "txt2img" else None
    if wanted is None or uses_latent_upscaler(request):
        return 0
    size = computed_side(request, request.width), computed_side(request, request.height)
    return kept_upscaler_bytes(request, size, wanted)


def size_multiple(request: Request) -> int:
    """Return what the host makes both sides a multiple of."""
    pairs = request.host == "diffusers" and SHAPES[request.model.family].transformer
    return SIZE_STEPS.get(request.host, PATCH_PIXELS if pairs else LATENT_FACTOR)


def latent_floor(pixels: int) -> int:
    """Return the size that is really computed: the hosts cut a side down to whole rows of the latent."""
    return max(LATENT_FACTOR, pixels // LATENT_FACTOR * LATENT_FACTOR)


def computed_side(request: Request, pixels: int) -> int:
    """Return the side that ``request.host`` makes of one of ``pixels``: cut to whole rows, or rounded to its step."""
    step = size_multiple(request)
    if request.host in SIZE_STEPS:
        return max(step, (pixels + step // 2) // step * step)
    return max(step, pixels // step * step)


def upscaled_size(request: Request) -> tuple[int, int] | None:
    """Return the size to which the first pass is enlarged before it is cut to the second pass's size.

    With both sides given, both hosts enlarge until the wanted size is covered and cut the rest off
    (``calculate_target_resolution``); else it is the second pass's own size. ``None`` without a second pass.
    """
    target, want = request.hires_size(), request.hires
    if target is None or want is None or not (want.width and want.height):
        return target
    if request.width * want.height < want.width * request.height:
        return want.width, want.width * request.height // request.width
    return want.height * request.width // request.height, want.height


def uses_latent_upscaler(request: Request) -> bool:
    """Return whether the second pass enlarges the latent itself, without a decode and an encode in between."""
    return request.hires is not None and request.hires.upscaler.lower().startswith("latent")


def _timeline(request: Request) -> Iterator[Work]:
    width, height = computed_side(request, request.width), computed_side(request, request.height)
    yield from preprocessor_works(request, width, height)
    if request.host == "diffusers":  # its pipelines read the prompts first
        yield from _text(request)
    yield from _first_encodes(request, width, height)
    for wide, high in reference_sizes(request):
        yield _encode(request, "vae_encode", wide, high)
    if request.host != "diffusers":
        yield from _text(request)
    if request.mode == "txt2img" and _is_for_inpainting(request):
        yield _encode(request, "vae_encode", width, height)  # of a grey picture (``txt2img_image_conditioning``)
    yield from _sampling(request, "sampling", width, height)
    second = request.hires_size() if request.mode == "txt2img" else None
    if second is not None:
        yield from _hires_upscale(request, width, height)
        width, height = computed_side(request, second[0]), computed_side(request, second[1])
        yield from _sampling(request, "hires_sampling", width, height)
    yield _decode(request, "vae_decode", width, height)
    yield from restorer_works(request, width, height)
    if request.detailer is not None:
        yield from detector_works(request, width, height)
        yield from _detailer(request, request.detailer.width, request.detailer.height)


def _first_encodes(request: Request, width: int, height: int) -> Iterator[Work]:
    """Yield the encodes before the prompts are read: img2img's picture, and the one that a model for editing looks at.

    The latter A1111 encodes as one batch, the others one picture after the other (``inpainting_image_conditioning``).
    """
    if request.mode == "img2img":
        start = request.start_picture
        size = (latent_floor(start.width), latent_floor(start.height)) if start else (width, height)
        yield _encode(request, "vae_encode", *size)
        if (request.model.variant == "pix2pix" or _is_for_inpainting(request)) and request.host == "a1111":
            yield _encode(request, "vae_encode", width, height, at_once=request.batch_size)


def _text(request: Request) -> Iterator[Work]:
    loaded = request.model.family == LOADED
    family = LOADED if loaded and not launched(request).text_on_cpu else encoding_family(request)
    if family is None:
        return
    component = Component(
        family=family, part="text_encode", width=512, height=512, dtype=compute_dtype(request),
        attention="sdpa" if request.host == "diffusers" else request.attention, cfg=False,
        alloc_conf=conf_of(request), code=code_of(request),
    )  # fmt: skip
    if loaded and not (request.model.text_encoders_bytes and is_ready(component)):
        return  # what is not known of a model without a name is said in a note
    unpacked = encoder_unpacked_bytes(request)
    yield Work("text_encode", "text_encoders", component, (("unpacked_weights", unpacked),) if unpacked else ())


def _hires_upscale(request: Request, width: int, height: int) -> Iterator[Work]:
    if uses_latent_upscaler(request):
        second = request.hires_size()
        if _is_for_inpainting(request) and second is not None:
            yield _encode(request, "hires_upscale", *(computed_side(request, side) for side in second))
        return
    decode = _decode(request, "hires_upscale", width, height)
    yield decode
    enlarged = upscaled_size(request)
    if enlarged is not None:
        yield from upscaler_works(request, (width, height), enlarged, decode.held)
        yield _encode(
            request, "hires_upscale", computed_side(request, enlarged[0]), computed_side(request, enlarged[1])
        )


def _sampling(request: Request, phase: PhaseName, width: int, height: int) -> Iterator[Work]:
    cfg = uses_two_halves(request) and request.batch_cond_uncond
    thirds = _takes_thirds(request)
    component = Component(
        family=request.model.family, part="denoise", width=width, height=height,
        batch=request.batch_size * (EDIT_THIRDS if thirds and request.batch_cond_uncond else 1),
        frames=_frames(request), dtype=compute_dtype(request), attention=request.attention,
        cfg=cfg and not thirds, weights_dtype=unet_dtype(request),
        alloc_conf=conf_of(request), host=code_host(request), code=code_of(request),
    )  # fmt: skip
    yield from sampling_works(request, phase, component)


def _is_for_inpainting(request: Request) -> bool:
    return request.model.variant == "inpaint" and not SHAPES[request.model.family].transformer


def _takes_thirds(request: Request) -> bool:
    """Whether prompt, negative prompt and neither of picture and text are computed, as A1111 does for InstructPix2Pix.

    With an *Image CFG Scale* of 1 it takes the usual halves; a request does not say, and thirds are the custom.
    """
    return request.model.variant == "pix2pix" and request.host == "a1111" and request.mode == "img2img"


def _frames(request: Request) -> int:
    """Return the frames of a video; families that make pictures have one."""
    return request.frames if SHAPES[request.model.family].frames_per_latent > 1 else 1


def sampling_works(request: Request, phase: PhaseName, component: Component) -> Iterator[Work]:
    """Yield the ControlNets' turns and then the UNet's own, for the UNet at work as ``component``."""
    held = _sampling_held(request, phase, component)
    nets = [request.controlnets[unit] for unit in _controlnets(request)]
    tiles = in_tiles(request, component)
    outputs = ("control_outputs", control_outputs_bytes(tiles, *map(net_variant, nets))) if nets else None
    for turn, unit in enumerate(_controlnets(request)):
        part = _control_component(request, component, unit)
        yield Work(phase, "controlnet", part, (*held, outputs) if turn and outputs else held, unit=unit)
    yield Work(
        phase, "unet", component, (*held, outputs) if outputs else held, beside=_preview_decode(request, component)
    )
    yield from adapter_works(request, phase, component.width, component.height, held)


def control_outputs_bytes(component: Component, *variants: str) -> int:
    """Return the size of what the ControlNets hand to the model that works as ``component``; several are summed up."""
    frames = SHAPES[component.family].latent_frames(component.frames)
    numbers = partial(result_numbers, component.family, width=component.width, height=component.height)
    most = max((numbers(variant, latent_frames=frames) for variant in variants or ("",)), default=0)
    return most * _rows(component) * dtype_bytes(component)


def latent_bytes(request: Request, width: int, height: int) -> int:
    """Return the size of one picture's or video's latent in fp32."""
    shape = SHAPES[request.model.family]
    cells = (width // shape.latent_pixels) * (height // shape.latent_pixels)
    return shape.latent_channels * cells * shape.latent_frames(request.frames) * 4


def dtype_bytes(component: Component) -> int:
    """Return the bytes of one activation."""
    return 4 if component.dtype == "fp32" else 2


def looks_at_free_memory(component: Working) -> bool:
    """Return whether attention cuts itself by what is free then: A1111's sub-quadratic one has fixed chunks."""
    if isinstance(component, Addon):
        return False
    fixed = component.host == "a1111" and component.attention == "sub_quad"
    return component.attention in SELF_SLICING and not fixed


def _controlnets(request: Request) -> tuple[int, ...]:
    return tuple(index for index, unit in enumerate(request.controlnets) if unit.kind in WHOLE_NETS)


def _control_component(request: Request, unet: Component, unit: int) -> Component:
    return Component(
        family=request.controlnets[unit].family, part="controlnet", width=unet.width, height=unet.height,
        batch=unet.batch, frames=unet.frames, dtype=unet.dtype, attention=unet.attention, cfg=unet.cfg,
        alloc_conf=unet.alloc_conf, host=unet.host, code=unet.code, variant=net_variant(request.controlnets[unit]),
    )  # fmt: skip


def _sampling_held(request: Request, phase: PhaseName, component: Component) -> Sizes:
    pixels = component.width * component.height
    latents = component.batch * latent_bytes(request, component.width, component.height) * SAMPLER_LATENTS
    latents += reference_latent_bytes(request)
    if request.tiled_diffusion is not None:
        latents += TILED_LATENTS * _rows(component) * latent_bytes(request, component.width, component.height)
    held: Sizes = (("latents", latents),)
    guidance = guidance_bytes(request, component)
    if guidance:
        held = (*held, ("guidance", guidance))
    images = HINT_CHANNELS * pixels * len(_controlnets(request)) * _rows(component) * dtype_bytes(component)
    if phase == "hires_sampling" and not uses_latent_upscaler(request):
        images += _picture_bytes(request, component.width, component.height, component.batch)
    if images:
        held = (*held, ("images", images))
    adapters = adapters_held_bytes(request, component.width, component.height, _rows(component))
    if adapters:
        held = (*held, ("adapter", adapters))
    if adds_loras_on_the_fly(request):
        layer = quantised_layer(request.model.family, unet_dtype(request))
        held = (*held, ("lora", lora_bytes(request, layer)))
    unpacked = _unpacked_bytes(request, component)
    if unpacked:
        held = (*held, ("unpacked_weights", unpacked))
    if request.live_preview == "taesd" and _preview_runs_beside(request):
        held = (*held, ("live_preview", TAESD_BYTES_PER_PIXEL * pixels))
    return held


def _unpacked_bytes(request: Request, component: Component) -> int:
    """Return what the largest layer takes while its quantised weights are made ready for a multiplication."""
    dtype = unet_dtype(request)
    layer = quantised_layer(request.model.family, dtype)
    return scratch_bytes(dtype, layer, component.dtype) if layer and dtype not in PLAIN_WEIGHTS else 0


def _preview_runs_beside(request: Request) -> bool:
    """Under medvram and lowvram A1111 draws previews between the steps (``parallel_processing_allowed``)."""
    return request.host != "a1111" or offload_mode(request) == "normal"


def _preview_decode(request: Request, component: Component) -> Component | None:
    """Only A1111 without medvram decodes previews with the real VAE; the others fall back to the approximation."""
    if request.live_preview != "full" or request.host != "a1111" or offload_mode(request) != "normal":
        return None
    return _vae_component(request, "vae_decode", component.width, component.height, 1)


def _decode(request: Request, phase: PhaseName, width: int, height: int) -> Work:
    """A1111 decodes one picture after the other; Forge as many at a time as its own formula lets it.

    diffusers decodes all at once, or in slices of one, whose pictures it keeps until all are there.
    """
    sliced = has_flag(request, "--enable-vae-slicing")
    batch = 1 if request.host == "a1111" or sliced else request.batch_size
    held: Sizes = (("latents", request.batch_size * latent_bytes(request, width, height)),)
    if sliced and request.batch_size > 1:
        held = (*held, ("images", _picture_bytes(request, width, height, request.batch_size - 1)))
    return Work(phase, "vae", _vae_component(request, "vae_decode", width, height, batch), held)


def _encode(request: Request, phase: PhaseName, width: int, height: int, at_once: int = 1) -> Work:
    """Both hosts encode one picture after the other; the batch is there twice, as it came and as -1 to 1."""
    held = (("images", 2 * _picture_bytes(request, width, height, request.batch_size)),)
    return Work(phase, "vae", _vae_component(request, "vae_encode", width, height, at_once), held)


def _picture_bytes(request: Request, width: int, height: int, batch: int) -> int:
    """A1111 and diffusers put the pictures on the device in the VAE's dtype, Forge in fp32 (``Img2Img.init``)."""
    channel_bytes = 2 if request.host in ("a1111", "diffusers") and vae_dtype(request) != "fp32" else 4
    return batch * HINT_CHANNELS * width * height * channel_bytes


def _vae_component(
    request: Request, part: Literal["vae_decode", "vae_encode"], width: int, height: int, batch: int
) -> Component:
    whole = Component(
        family=request.model.family, part=part, width=width, height=height,
        batch=1 if _frames(request) > 1 and request.host != "diffusers" else batch, frames=_frames(request),
        dtype=vae_dtype(request),
        attention=request.attention, cfg=False, alloc_conf=conf_of(request), host=code_host(request),
        code=code_of(request),
    )  # fmt: skip
    tile = vae_tile(request)
    if request.host == "diffusers":  # slices of attention are the denoiser's alone, and a batch is tiled as one
        return replace(whole, tile=tile, attention="sdpa" if request.attention == "split" else request.attention)
    if tile is None:
        return whole
    if tile >= max(width, height):
        return replace(whole, batch=1)
    if host_tiles(request):
        return replace(whole, batch=1, tile=tile)
    if SHAPES[request.model.family].vae not in IN_STEP:
        return whole  # our tiles leave a VAE of another shape alone
    return replace(whole, batch=1, tile=tile, in_step=True, attention="sdpa", host="forge")


def vae_tile(request: Request) -> int | None:
    """Return the side of the VAE's tiles in pixels, for decode and encode; ``None`` when it works on whole pictures."""
    if host_tiles(request):
        return forge_tile(request)
    return request.vae.tile_size or own_tile(request) if request.vae.tiled else None


def own_tile(request: Request) -> int:
    """Return the side of a tile in pixels where the request names none."""
    if request.host != "diffusers":
        return DEFAULT_TILE
    return DIFFUSERS_TILES.get(request.model.family) or DIFFUSERS_VAE_TILES.get(
        SHAPES[request.model.family].vae, DIFFUSERS_TILE
    )


def forge_tile(request: Request) -> int | None:
    """Return the side of Forge's own tiles in pixels, ``None`` when its VAE works on the whole picture."""
    return FORGE_TILE if request.forge.never_oom_vae or request.vae.tiled else None


def code_host(request: Request) -> CodeHost:
    """Return whose form of the model code runs."""
    return request.host if request.host in ("a1111", "neo") else "forge"


def code_of(request: Request) -> Code:
    """Return whose classes run: diffusers' own, or those of the ``ldm`` line."""
    return "diffusers" if request.host == "diffusers" else "ldm"


def _detailer(request: Request, width: int, height: int) -> Iterator[Work]:
    """A detailer repaints one crop at a time: an img2img of its own with the same model."""
    crop = request.replace(
        width=width, height=height, mode="img2img", batch_size=1, hires=None, detailer=None, refiner=None,
        controlnets=(), restore_faces=None, reference_images=(),
    )  # fmt: skip
    for work in _timeline(crop):
        yield replace(work, phase="detailer")


def _rows(component: Component) -> int:
    return component.batch * (2 if component.cfg else 1)
