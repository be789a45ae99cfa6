"""A plain diffusers pipeline as the host: where its script puts the components, and which calls it makes.

The words of ``host_args`` are the calls of the script, as flags or as they are written in Python
(``--enable-model-cpu-offload``, ``pipe.enable_model_cpu_offload()``). What each placement keeps on the card:

===================================  ======================================================================
call                                 on the card
===================================  ======================================================================
none, ``to("cuda")``                 every component, all the time
``enable_model_cpu_offload()``       the component at work: the next one of ``model_cpu_offload_seq`` sends the
                                     one before it away; the last stays, ControlNets stay from their first use,
                                     and all leave when the pipeline returns (``maybe_free_model_hooks``)
``enable_sequential_cpu_offload()``  the layer at work
===================================  ======================================================================

Two consequences of the hooks are easily missed, and are computed: the last text encoder is still there while the VAE
encodes a picture, and the VAE stays beside the denoiser after it. Read in diffusers 0.36 and accelerate's
``cpu_offload_with_hook``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from lib_vram.errors import BadInput
from lib_vram.estimate.controls import control_bytes
from lib_vram.estimate.diffusers_weights import as_counted, encoders_as_counted
from lib_vram.estimate.flags import compute_dtype, has_flag, unet_dtype, upcasts_vae, vae_dtype
from lib_vram.estimate.forge import Decided
from lib_vram.estimate.loading import HALF_VAE
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Sizes, Work
from lib_vram.physics.families import SHAPES
from lib_vram.physics.weights import weights_bytes
from lib_vram.request import Attention, Family, ForgeSettings, Request

Placement = Literal["whole", "model", "sequential"]

PLACEMENTS: dict[str, Placement] = {
    "--to-cuda": "whole",
    "--enable-model-cpu-offload": "model",
    "--enable-sequential-cpu-offload": "sequential",
}
"""From the quickest to the one that needs least."""
VAE_TILING, VAE_SLICING = "--enable-vae-tiling", "--enable-vae-slicing"
ATTENTIONS: dict[str, Attention] = {
    "--enable-attention-slicing": "split",
    "--enable-xformers-memory-efficient-attention": "xformers",
}
SAFETY_CHECKER = "--safety-checker"
FP16_FIX = "--vae-fp16-fix"
"""No call of a script: it says that the VAE is one that does not ask to be computed in fp32 (``force_upcast``)."""
WORDS = (*PLACEMENTS, VAE_TILING, VAE_SLICING, *ATTENTIONS, SAFETY_CHECKER, FP16_FIX)
ALIASES = {
    "--enable-xformers": "--enable-xformers-memory-efficient-attention",
    "--vae.enable-tiling": VAE_TILING,
    "--vae.enable-slicing": VAE_SLICING,
}

SAFETY_CHECKER_PARAMETERS = 303_981_588
"""CLIP's ViT-L/14, its projection and the concepts (``StableDiffusionSafetyChecker``)."""
WITH_SAFETY_CHECKER: tuple[Family, ...] = ("sd15", "sd21")
PICTURE_UPSCALERS = ("none", "lanczos", "nearest")
"""Between two pipelines a picture is enlarged on the CPU, a latent on the card."""
NOT_THERE: dict[str, Any] = {
    "hires_model": None, "detailer": None, "restore_faces": None, "upscaler_tile": None, "token_merging_ratio": 0.0,
    "hypertile": None, "tiled_diffusion": None, "hr_fix": None, "guidance": (), "start_picture": None,
    "forge": ForgeSettings(), "batch_cond_uncond": True,
}  # fmt: skip
"""Fields of what the WebUIs do beside the model, with the value that stands for nothing of it."""
NEGATIVE_ENCODED = ("flux1", "flux2_klein_4b", "flux2_klein_9b")
"""Families whose pipelines encode no negative prompt by custom: their guidance is distilled."""


@lru_cache(maxsize=512)
def understood(request: Request) -> Request:
    """Return ``request`` with the words of its ``host_args`` as flags, and those that are fields as fields.

    Requests for other hosts are returned as they are.

    Raises:
        BadInput: a word is none that is known here, or a field asks for what a plain pipeline does not do.
    """
    if request.host != "diffusers":
        return request
    words = tuple(dict.fromkeys(_word(argument) for argument in request.host_args))
    placed = [word for word in words if word in PLACEMENTS]
    if len(placed) > 1:
        raise BadInput("host_args", got=" ".join(placed), takes="one way of placing the pipeline")
    _refuse_what_is_not_there(request)
    if SAFETY_CHECKER in words and request.model.family not in WITH_SAFETY_CHECKER:
        raise BadInput("host_args", got=SAFETY_CHECKER, takes=f"it for {' and '.join(WITH_SAFETY_CHECKER)} only")
    vae, attention = request.vae, request.attention
    if VAE_TILING in words:
        vae = replace(vae, tiled=True)
    for word, way in ATTENTIONS.items():
        if word in words and not (way == "split" and SHAPES[request.model.family].transformer):
            attention = way  # transformers of diffusers have no slices: the call does nothing there
    kept = tuple(word for word in words if word not in ATTENTIONS and word != VAE_TILING)
    return request.replace(host_args=kept, vae=vae, attention=attention)


def placement(request: Request) -> Placement:
    """Return how the script of ``request``, which is :func:`understood`, places the pipeline."""
    return next((way for word, way in PLACEMENTS.items() if has_flag(request, word)), "whole")


def with_placement(request: Request, way: Placement) -> Request:
    """Return ``request`` with its pipeline placed in another way."""
    others = tuple(word for word in request.host_args if word not in PLACEMENTS)
    return request.replace(host_args=(*others, *(word for word, named in PLACEMENTS.items() if named == way)))


def keeps_pipelines(request: Request) -> bool:
    """Return whether a second pipeline's components are on the card beside the first one's."""
    return request.host == "diffusers" and placement(request) == "whole"


def beside_each_other(
    request: Request, weights: ModelWeights, refined: Request, other: ModelWeights
) -> tuple[int, int]:
    """Return what the refiner's pipeline adds to the first one, and the first one to the refiner's, in bytes.

    They share the VAE and the refiner's text encoder, which is the first pipeline's second one.
    """
    base, refiner = as_counted(request, weights), as_counted(refined, other)
    both, shared = (item.allocated("text_encoders", item.text_encoders_bytes) for item in (base, refiner))
    encoders = max(0, both - shared)
    return refiner.allocated("unet", refiner.unet_bytes), base.allocated("unet", base.unet_bytes) + encoders


def diffusers_decides(
    request: Request, works: tuple[Work, ...], weights: ModelWeights, empty_bytes: int
) -> tuple[Decided, ...]:
    """Return for each work what is on the card then; how much is free there (``empty_bytes``) decides nothing."""
    way, counted, weights = placement(request), weights, as_counted(request, weights)
    if way == "model":
        hooks = _Hooks(request, counted)
        return tuple((work, work.component, (*hooks.parts_during(work), *work.held)) for work in works)
    parts = _whole_parts if way == "whole" else _layer_parts
    checker = _safety_checker(request)
    return tuple((work, work.component, (*parts(request, work, weights), *checker, *work.held)) for work in works)


def _word(argument: str) -> str:
    """Return an argument as the flag that it stands for: ``pipe.enable_vae_tiling()`` is ``--enable-vae-tiling``."""
    text = re.sub(r"^(--?)?(pipe|pipeline)\.|^--?", "", argument.strip())
    text = re.sub(r"""^to\(["']cuda(:\d+)?["']\)$""", "to-cuda", text)
    word = "--" + re.sub(r"\(.*\)$", "", text).replace("_", "-")
    word = ALIASES.get(word, word)
    if word not in WORDS:
        raise BadInput("host_args", got=argument, takes=f"calls of a diffusers script: {', '.join(WORDS)}")
    return word


def _refuse_what_is_not_there(request: Request) -> None:
    for name, nothing in NOT_THERE.items():
        if getattr(request, name) != nothing:
            raise _not_there(name, getattr(request, name))
    if request.live_preview in ("taesd", "full"):
        raise _not_there("live_preview", request.live_preview)
    if request.model.variant:
        raise _not_there("model.variant", request.model.variant)
    if request.attention in ("sub_quad", "sage"):
        raise _not_there("attention", request.attention)
    for place, unit in enumerate(request.controlnets):
        if unit.kind != "controlnet":
            raise _not_there(f"controlnets[{place}].kind", unit.kind)
        if unit.low_vram or unit.preprocessor != "none":
            name = "low_vram" if unit.low_vram else "preprocessor"
            raise _not_there(f"controlnets[{place}].{name}", getattr(unit, name))
    upscaler = request.hires.upscaler.lower() if request.hires else "none"
    if upscaler not in PICTURE_UPSCALERS and not upscaler.startswith("latent"):
        raise BadInput("hires.upscaler", got=upscaler, takes="Latent, None, Lanczos or Nearest between two pipelines")


def _not_there(field: str, value: object) -> BadInput:
    got = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return BadInput(field, got=got, takes="its default: a plain diffusers pipeline has nothing of the kind")


def _whole_parts(request: Request, work: Work, weights: ModelWeights) -> Sizes:
    controls = sum(control_bytes(unit, compute_dtype(request)) for unit in request.controlnets)
    return (
        ("unet", weights.unet_bytes),
        ("text_encoders", weights.text_encoders_bytes),
        (_vae_name(request, work), _vae_bytes(request, weights, works=work.worker == "vae")),
        ("controlnet", controls),
        ("lora", _lora_bytes(request)),
    )


def _layer_parts(request: Request, work: Work, weights: ModelWeights) -> Sizes:
    layers = {"text_encoders": weights.text_layer_bytes, "vae": weights.vae_layer_bytes}
    name = "unet" if work.worker == "controlnet" else work.worker
    return ((name, layers.get(name, weights.unet_layer_bytes)),)


def _vae_bytes(request: Request, weights: ModelWeights, *, works: bool) -> int:
    """Return what the VAE weighs: where it is made fp32 for its turn, it is in half precision outside of that."""
    dtype = request.vae.dtype if upcasts_vae(request) and not works else vae_dtype(request)
    return weights.vae_bytes if dtype == vae_dtype(request) else weights.vae_bytes // 2


def _vae_name(request: Request, work: Work) -> str:
    """Return the name under which it is known what the VAE takes beyond its weight: that depends on the type."""
    return HALF_VAE if upcasts_vae(request) and work.worker != "vae" else "vae"


def _lora_bytes(request: Request) -> int:
    """Return what LoRAs weigh, which lie beside the layers that they change until they are fused."""
    return sum(lora.bytes for lora in request.loras)


def _safety_checker(request: Request) -> Sizes:
    if not has_flag(request, SAFETY_CHECKER):
        return ()
    return (("idle_models", weights_bytes(SAFETY_CHECKER_PARAMETERS, compute_dtype(request))),)


class _Hooks:
    """What accelerate's hooks have on the card, from call to call, during one run of one pipeline or two."""

    def __init__(self, request: Request, weights: ModelWeights) -> None:
        self.request = request
        self.encoders = encoders_as_counted(request, weights.text_encoders_bytes)
        self.sizes = {
            **self.encoders,
            "unet": as_counted(request, weights).unet_bytes + _lora_bytes(request),
            "vae": _vae_bytes(request, weights, works=False),
            **{
                f"controlnet {place}": control_bytes(unit, compute_dtype(request))
                for place, unit in enumerate(request.controlnets)
            },
        }
        self.vae_at_work_bytes = _vae_bytes(request, weights, works=True)
        self.stays = stays_by_quantisation(request)
        """What bitsandbytes has quantised in 8 bits gets no hook and never leaves."""
        chain = (*self.encoders, "unet", "vae")
        self.chain = tuple(name for name in chain if name not in self.stays)
        self.there: set[str] = set(self.stays)
        self.is_second = False

    def parts_during(self, work: Work) -> Sizes:
        """Return what is on the card while ``work`` is done, which comes after all that was asked about before."""
        if not self.is_second and _begins_second(work):
            self.is_second = True
            self.there = set(self.stays)
            self._encode_text()
        if work.worker == "text_encoders":
            most = self._encode_text()
            return self._parts(most, work)
        if work.worker == "controlnet":
            self._call(f"controlnet {work.unit}")
            return self._parts(max(self.there, self._in_later_steps(), key=self._size), work)
        self._call(work.worker)
        return self._parts(self.there, work)

    def _in_later_steps(self) -> set[str]:
        """Return what a ControlNet finds from the second step on: the denoiser, where first the last encoder was."""
        before = self.chain.index("unet") - 1 if "unet" in self.chain else -1
        gone = {self.chain[before]} if before >= 0 else set()
        return (self.there - gone) | {name for name in self.sizes if name == "unet" or name.startswith("controlnet")}

    def _size(self, names: set[str]) -> int:
        return sum(self.sizes[name] for name in names)

    def _encode_text(self) -> set[str]:
        """Call every encoder in turn, for the negative prompt again, and return the most that was there at once."""
        negative = self.request.uses_cfg and self.request.model.family not in NEGATIVE_ENCODED
        most: set[str] = set(self.there)
        for name in (*self.encoders, *(self.encoders if negative else ())):
            self._call(name)
            most = max(most, set(self.there), key=self._size)
        return most

    def _call(self, name: str) -> None:
        place = self.chain.index(name) if name in self.chain else 0
        if place:
            self.there.discard(self.chain[place - 1])
        self.there.add(name)

    def _parts(self, names: set[str], work: Work) -> Sizes:
        totals: dict[str, int] = {}
        for name in sorted(names):
            shown = f"text_encoders {name}" if name in self.encoders else name.split(" ")[0]
            shown = _vae_name(self.request, work) if shown == "vae" else shown
            size = self.vae_at_work_bytes if name == work.worker == "vae" else self.sizes[name]
            totals[shown] = totals.get(shown, 0) + size
        return (*totals.items(), *_safety_checker(self.request))


def stays_by_quantisation(request: Request) -> tuple[str, ...]:
    """Return what model offload leaves on the card: a denoiser, and text encoders, in bitsandbytes' 8 bits."""
    encoders = tuple(item.name for item in request.text_encoders if item.dtype == "int8" and item.device == "gpu")
    return (*encoders, "unet") if unet_dtype(request) == "int8" else encoders


def _begins_second(work: Work) -> bool:
    """Return whether ``work`` is the first of the second pipeline, which samples at the larger size."""
    if work.phase == "hires_upscale":
        return work.part.part == "vae_encode"
    return work.phase == "hires_sampling"


def ram_bytes(request: Request, weights: ModelWeights) -> Iterator[int]:
    """Yield the weights that lie in RAM at each moment in which another component works."""
    way = placement(request)
    everything = (weights.unet_bytes, weights.text_encoders_bytes, weights.vae_bytes)
    if way == "whole":
        yield 0
    elif way == "sequential":
        yield sum(everything)
    else:
        movable = everything[1:] if "unet" in stays_by_quantisation(request) else everything
        yield from (sum(movable) - size for size in movable)
