"""What the host's command-line flags, and the allocator's setting, mean for memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from lib_vram.physics.allocator import AllocatorConf
from lib_vram.physics.families import LOADED, SHAPES
from lib_vram.physics.kernels import capability_of, has_fused_attention
from lib_vram.request import Dtype, Family, HostName, Request, WeightsDtype

OffloadMode = Literal["normal", "medvram", "lowvram"]

FORGE_LINE = frozenset(("forge", "neo", "reforge", "classic"))
"""Hosts that move models by what is free, halve a batch and decode in tiles by themselves."""

TITLES: Mapping[HostName, str] = {
    "a1111": "AUTOMATIC1111", "forge": "Forge", "neo": "Forge Neo", "reforge": "reForge", "classic": "Forge Classic",
    "diffusers": "diffusers",
}  # fmt: skip
"""What people call the hosts."""

FULL_PRECISION = {
    "a1111": ("--no-half",), "forge": ("--all-in-fp32",), "neo": ("--force-fp32",),
    "reforge": ("--all-in-fp32", "--fp32-unet"), "classic": ("--all-in-fp32",),
}  # fmt: skip
"""Flags under which weights and activations are fp32 (A1111 modules/sd_models.py, Forge and Neo backend/args.py)."""
FULL_PRECISION_VAE = {
    "a1111": ("--no-half", "--no-half-vae"), "forge": ("--vae-in-fp32",), "neo": ("--fp32-vae", "--force-fp32"),
    "reforge": ("--vae-in-fp32",), "classic": ("--vae-in-fp32",),
}  # fmt: skip


WITHOUT_POOL = ("GTX 1650", "GTX 1630")
"""Cards that ``--cuda-malloc`` leaves as they are, beside those before compute capability 6 (the hosts' own list)."""
WHOLE_TYPES = ("fp32", "fp16", "bf16")
"""Weights that flags for fp32 make larger."""
STORED_SMALLER = ("fp32", "fp16", "bf16", "fp8")
"""Weights that the hosts' *FP8 weight* and *Diffusion in Low Bits* store in another type."""


def of_forge_line(request: Request) -> bool:
    """Return whether ``request`` is for Forge or one of its relatives."""
    return request.host in FORGE_LINE


def host_tiles(request: Request) -> bool:
    """Return whether the host decodes in tiles of its own when asked to; elsewhere the tiles are ours.

    reForge has such a switch too, but it reaches nothing.
    """
    return of_forge_line(request) and request.host != "reforge"


OLD_HOSTS: Mapping[HostName, frozenset[Family]] = {
    "a1111": frozenset(("sd15", "sd21", "sdxl", "sdxl_refiner", "sd35_medium", "sd35_large")),
    "classic": frozenset(("sd15", "sd21", "sdxl", "sdxl_refiner")),
    "diffusers": frozenset(SHAPES) - {LOADED},
}
"""Hosts that run only some of the families."""


ONE_BATCH: frozenset[Family] = frozenset(
    ("sd15", "sd21", "sdxl", "sdxl_refiner", "sd35_medium", "sd35_large", "zimage")
)
"""Families whose pipelines in diffusers 0.36 compute prompt and negative prompt as one batch. Chroma's, Lumina 2's,
Qwen-Image's and Wan's call the transformer twice; Flux.1 and Klein have the guidance in the model."""


def runs_on(host: HostName, family: Family) -> bool:
    """Return whether ``host`` has code for ``family``."""
    return family in OLD_HOSTS.get(host, SHAPES)


def has_flag(request: Request, flag: str, value: str | None = None) -> bool:
    """Return whether the host was started with ``flag``, as ``--flag value`` or ``--flag=value``."""
    arguments = request.host_args
    if value is None:
        return flag in arguments
    joined = f"{flag}={value}"
    return joined in arguments or f"{flag} {value}" in arguments or (flag, value) in pairwise(arguments)


def offload_mode(request: Request) -> OffloadMode:
    """Return how A1111 moves the model's parts: ``--medvram-sdxl`` counts for SDXL only (modules/lowvram.py)."""
    if has_flag(request, "--lowvram"):
        return "lowvram"
    is_sdxl = request.model.family in ("sdxl", "sdxl_refiner")
    if has_flag(request, "--medvram") or (is_sdxl and has_flag(request, "--medvram-sdxl")):
        return "medvram"
    return "normal"


def compute_dtype(request: Request) -> Dtype:
    """Return the dtype of the UNet's and the text encoders' activations."""
    if _any_flag(request, FULL_PRECISION) or has_flag(request, "--precision", "full") or _is_loaded_in_fp32(request):
        return "fp32"
    return "bf16" if request.model.weights_dtype == "bf16" else "fp16"


def unet_dtype(request: Request) -> WeightsDtype:
    """Return the dtype in which the UNet's weights lie on the device; what is quantised already is left as it is.

    Storage in fp8 wins over the flags for fp32, which decide what is computed in: A1111 makes the model fp32 and then
    its layers fp8 (``load_model_weights``), Forge takes *Diffusion in Low Bits* or the file's own small type
    (backend/loader.py).
    """
    loaded, stored = request.model.weights_dtype, request.model.storage_dtype
    if stored is not None and loaded in STORED_SMALLER:
        return stored
    return "fp32" if loaded in WHOLE_TYPES and _any_flag(request, FULL_PRECISION) else loaded


def vae_dtype(request: Request) -> Dtype:
    """Return the dtype in which the VAE runs."""
    full = _any_flag(request, FULL_PRECISION_VAE) or _is_loaded_in_fp32(request) or upcasts_vae(request)
    return "fp32" if full else request.vae.dtype


def upcasts_vae(request: Request) -> bool:
    """Return whether diffusers makes the VAE fp32 for its turn: SDXL's asks for that (``force_upcast``) in fp16."""
    asks = request.model.family in ("sdxl", "sdxl_refiner") and request.vae.dtype == "fp16"
    return request.host == "diffusers" and asks and not has_flag(request, "--vae-fp16-fix")


def _is_loaded_in_fp32(request: Request) -> bool:
    """Whether a pipeline is of one type, as ``from_pretrained`` makes it: a script names it once (``torch_dtype``)."""
    return request.host == "diffusers" and request.model.weights_dtype == "fp32"


def uses_two_halves(request: Request) -> bool:
    """Return whether prompt and negative prompt are computed, on diffusers as one batch.

    A1111 computes both even at a CFG scale of 1.
    """
    if request.host == "diffusers":
        return request.cfg_scale > 1 and request.model.family in ONE_BATCH
    return True if request.host == "a1111" else request.uses_cfg


def set_conf(request: Request) -> str:
    """Return the allocator's setting, with what flags of the start add to it (``modules_forge/cuda_malloc.py``).

    Forge's line asks for the driver's own pool under ``--cuda-malloc``, but not on the cards of before 2017 that its
    list names, nor on a GTX 1630 or 1650; Neo has a flag for expandable segments as well.
    """
    conf, added = request.alloc_conf, []
    if of_forge_line(request) and has_flag(request, "--cuda-malloc") and _has_pool(request) and "backend:" not in conf:
        added.append("backend:cudaMallocAsync")
    if request.host == "neo" and has_flag(request, "--expandable-segments") and "expandable_segments:" not in conf:
        added.append("expandable_segments:True")
    return ",".join((*((conf,) if conf else ()), *added))


def _has_pool(request: Request) -> bool:
    name = request.device.name
    capability = capability_of(name)
    old = capability is not None and capability < (6, 0)
    return not old and not any(part in name for part in WITHOUT_POOL)


def conf_of(request: Request) -> str:
    """Return the allocator's setting as it takes effect: PyTorch has no expandable segments on Windows, and says so.

    Raises:
        BadInput: PyTorch does not take it.
    """
    conf = replayed_conf(set_conf(request))
    if request.system.platform != "windows" or not AllocatorConf.parse(conf).expandable:
        return conf
    return ",".join(option for option in conf.split(",") if not option.strip().startswith("expandable_segments"))


@lru_cache(maxsize=64)
def replayed_conf(alloc_conf: str) -> str:
    """Return ``alloc_conf``, which the replay follows.

    Raises:
        BadInput: PyTorch does not take ``alloc_conf``.
    """
    AllocatorConf.parse(alloc_conf)
    return alloc_conf


def lacks_fused_attention(request: Request) -> bool:
    """Return whether torch's attention keeps a score matrix on this device: it has no kernel there that does not."""
    return request.attention == "sdpa" and not has_fused_attention(request.device.name)


def _any_flag(request: Request, table: Mapping[str, tuple[str, ...]]) -> bool:
    return any(has_flag(request, flag) for flag in table.get(request.host, ()))
