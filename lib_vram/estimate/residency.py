"""What each host keeps on the device while a part works: the rules, host by host.

=====================  =======================================  ==================================
A1111                  while the UNet works                     while another part works
=====================  =======================================  ==================================
no flag                everything                               everything
``--medvram``          the UNet                                 that part alone
``--medvram-sdxl``     as ``--medvram`` for SDXL, else no flag
``--lowvram``          its largest block and its output layer   that part alone
=====================  =======================================  ==================================

A ControlNet stays in every phase, unless its *Low VRAM* is ticked: then only during its own turn.
Forge and its relatives decide by the memory that is free at that moment: see :mod:`lib_vram.estimate.forge`,
:mod:`lib_vram.estimate.neo`, :mod:`lib_vram.estimate.reforge`, :mod:`lib_vram.estimate.classic`.
diffusers does what its script says: see :mod:`lib_vram.estimate.diffusers`.
On top of all that comes what the driver and the library's kernels hold: :data:`CONTEXT_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from lib_vram.estimate.classic import classic_decides, classic_least
from lib_vram.estimate.controls import WHOLE_NETS, control_bytes
from lib_vram.estimate.diffusers import diffusers_decides
from lib_vram.estimate.flags import (
    OffloadMode,
    compute_dtype,
    host_tiles,
    lacks_fused_attention,
    offload_mode,
    set_conf,
)
from lib_vram.estimate.forge import Decided, forge_decides, forge_least
from lib_vram.estimate.neo import neo_decides, neo_least
from lib_vram.estimate.patched import in_tiles, resized
from lib_vram.estimate.references import with_references
from lib_vram.estimate.reforge import reforge_decides, reforge_least
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.shortened import shortened_attention
from lib_vram.estimate.timeline import looks_at_free_memory
from lib_vram.estimate.weights import ModelWeights
from lib_vram.estimate.work import Sizes, Work, Worker, Working
from lib_vram.physics.addons import Addon
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.physics.component import Component
from lib_vram.physics.kernels import capability_of, sdpa_kernel
from lib_vram.request import HostName, Request
from lib_vram.units import MIB, round_up

CONTEXT_BYTES = 460 * MIB
"""Driver context and kernels of one PyTorch process, in the middle of what is seen on NVIDIA cards
(0.3 to 0.6 GiB over drivers and cards; a machine's own figure replaces it once measured)."""
CONTEXT_LOW_BYTES = 307 * MIB
CONTEXT_HIGH_BYTES = 614 * MIB

TOKEN_PARTS = ("text_encode", "denoise", "controlnet")
HEAD_SIZE = 64
"""Of most models' heads; those of others are multiples of 8 too, which is all that the choice of a kernel asks."""

SEGMENT_BYTES = 2 * MIB
"""The allocator takes memory from the driver in multiples of this, so what stays is counted as it is reserved."""

A1111_KEEPS: dict[OffloadMode, dict[Worker, tuple[str, ...]]] = {
    "normal": {
        "text_encoders": ("unet", "text_encoders", "vae"),
        "controlnet": ("unet", "text_encoders", "vae"),
        "unet": ("unet", "text_encoders", "vae"),
        "vae": ("unet", "text_encoders", "vae"),
    },
    "medvram": {"text_encoders": ("text_encoders",), "controlnet": ("unet",), "unet": ("unet",), "vae": ("vae",)},
    "lowvram": {"text_encoders": ("text_encoders",), "controlnet": ("block",), "unet": ("block",), "vae": ("vae",)},
}
"""modules/lowvram.py: one of the hooked modules is on the device at a time; ControlNets run in the UNet's turn."""


A1111_BESIDE_ADDONS: dict[PhaseName, Worker] = {
    "sampling": "unet", "hires_sampling": "unet", "refiner_sampling": "unet", "hires_upscale": "vae",
}  # fmt: skip
"""Whose turn it still is while an add-on works; before the first and after the last phase medvram has all on the CPU
(``send_everything_to_cpu`` at the end of ``process_images_inner``'s loop)."""

OWN_WEIGHTS: dict[Worker, tuple[str, ...]] = {
    "text_encoders": ("text_encoders",),
    "unet": ("unet", "controlnet"),
    "controlnet": ("unet", "controlnet"),
    "vae": ("vae",),
    "addon": (),
}
"""The weights that a worker cannot do without."""
WEIGHTS = frozenset(("unet", "text_encoders", "vae", "controlnet", "image_encoder", "idle"))


Rule = Callable[[Request, tuple[Work, ...], ModelWeights, int], tuple[Decided, ...]]
Bound = Callable[[Request, tuple[Work, ...], ModelWeights, int], tuple[int, ...]]

DECIDES: dict[HostName, Rule] = {
    "forge": forge_decides, "neo": neo_decides, "reforge": reforge_decides, "classic": classic_decides,
    "diffusers": diffusers_decides,
}  # fmt: skip
"""Hosts that move models by what is free, and diffusers, which does so by what its script says; A1111 keeps what
:data:`A1111_KEEPS` says."""
LEAST: dict[HostName, Bound] = {
    "forge": forge_least, "neo": neo_least, "reforge": reforge_least, "classic": classic_least,
}  # fmt: skip
"""For those that go by what is free, a lower bound of what they keep on the device."""


@dataclass(frozen=True)
class Placed:
    """A piece of work with what is on the device meanwhile, largest first, as PyTorch's allocator holds it.

    ``tails_bytes`` is what is reserved between the weights and too small for the activations, which here use none of
    it: it counts in what they take when nothing limits them.
    """

    work: Work
    component: Working
    resident: Sizes
    tails_bytes: int = 0

    @cached_property
    def resident_bytes(self) -> int:
        """All that is on the device beside the activations, driver context included."""
        return sum(size for _, size in self.resident)

    @cached_property
    def needed_bytes(self) -> int:
        """The same without other models' weights, which Forge keeps only while there is room for them."""
        others = WEIGHTS.difference(OWN_WEIGHTS[self.work.worker])
        return sum(size for name, size in self.resident if name not in others)


def place(request: Request, works: tuple[Work, ...], weights: ModelWeights) -> tuple[Placed, ...]:
    """Return ``works`` with what ``request.host`` keeps on the device during each."""
    decides = DECIDES.get(request.host)
    if decides is not None:
        decided = decides(request, works, weights, available_bytes(request) - CONTEXT_BYTES)
    else:
        decided = tuple((work, work.component, _a1111_parts(request, work, weights)) for work in works)
    room_bytes = available_bytes(request)
    return tuple(
        _placed(work, as_computed(request, component), parts, weights, room_bytes) for work, component, parts in decided
    )


def as_computed(request: Request, component: Working) -> Working:
    """Return ``component`` as it runs, where the host's own figures do not look: references, tiles, the GPU's kernels.

    Our decode in tiles takes a bounded number of queries at a time on every device.
    """
    if isinstance(component, Addon):
        return component
    component = in_tiles(request, resized(request, with_references(request, component)))
    ours = component.tile is not None and not host_tiles(request) and component.code == "ldm"
    if lacks_fused_attention(request) and component.attention == "sdpa" and not ours:
        component = replace(component, attention="math")
    if component.attention == "sdpa" and component.part in TOKEN_PARTS and keeps_no_log(request, component):
        component = replace(component, attention="xformers")
    shortened = None if ours else shortened_attention(request, component)
    return replace(component, shortened=shortened) if shortened is not None else component


def keeps_no_log(request: Request, component: Component) -> bool:
    """Return whether torch's attention takes its memory-efficient kernel here, which like xformers' keeps no sums.

    It does on GPUs before Ampere, and everywhere in fp32.
    """
    capability = capability_of(request.device.name)
    return sdpa_kernel(component.dtype, HEAD_SIZE, capability=capability) == "efficient"


def least_bytes(request: Request, works: tuple[Work, ...], weights: ModelWeights) -> tuple[int, ...]:
    """Return for each work a lower bound, driver context included, of what the host can keep on the device."""
    bound = LEAST.get(request.host)
    if bound is not None:
        least = bound(request, works, weights, available_bytes(request) - CONTEXT_BYTES)
        return tuple(CONTEXT_BYTES + size for size in least)
    return tuple(placed.resident_bytes for placed in place(request, works, weights))


def available_bytes(request: Request) -> int:
    """Return what the card has left for this process, its driver context included.

    A memory fraction is PyTorch's own limit, which does not count the context.
    """
    total = request.device.total_bytes
    allowed = AllocatorConf.parse(set_conf(request)).allowed_bytes(total)
    left = total - request.device.used_by_others_bytes
    return max(0, left if allowed == total else min(left, allowed + CONTEXT_BYTES))


def with_part(placed: Placed, name: str, size_bytes: int) -> Placed:
    """Return ``placed`` with one more part on the device."""
    return replace(placed, resident=_sorted((*placed.resident, (name, round_up(size_bytes, SEGMENT_BYTES)))))


def _placed(work: Work, component: Working, parts: Sizes, weights: ModelWeights, room_bytes: int) -> Placed:
    """Attention that slices itself by free memory is told what it will find free."""
    loads = dict(weights.loads)
    resident = _with_context((name, loads[name].allocated(size) if name in loads else size) for name, size in parts)
    tails_bytes = sum(loads[name].tails(size) for name, size in parts if name in loads)
    if not isinstance(component, Addon) and looks_at_free_memory(component):
        free_bytes = max(0, room_bytes - sum(size for _, size in resident))
        component = replace(component, free_bytes=free_bytes)
    return Placed(work, component, resident, tails_bytes)


def _a1111_parts(request: Request, work: Work, weights: ModelWeights) -> Sizes:
    sizes = {
        "unet": weights.unet_bytes,
        "block": weights.block_bytes,
        "text_encoders": weights.text_encoders_bytes,
        "vae": weights.vae_bytes,
    }
    kept = _a1111_keeps(request, work)
    parts = tuple(("unet" if name == "block" else name, sizes[name]) for name in kept)
    control = _a1111_controlnets(request, work)
    return (*parts, *((("controlnet", control),) if control else ()), *work.held)


def _a1111_keeps(request: Request, work: Work) -> tuple[str, ...]:
    mode = offload_mode(request)
    turn = A1111_BESIDE_ADDONS.get(work.phase) if work.worker == "addon" else work.worker
    if turn is None:
        return A1111_KEEPS[mode]["vae"] if mode == "normal" else ()
    return A1111_KEEPS[mode][turn]


def _a1111_controlnets(request: Request, work: Work) -> int:
    total = 0
    for index, unit in enumerate(request.controlnets):
        its_turn = work.worker == "controlnet" and work.unit == index
        if unit.kind in WHOLE_NETS and (its_turn or not unit.low_vram):
            total += control_bytes(unit, compute_dtype(request))
    return total


def _with_context(parts: Iterable[tuple[str, int]]) -> Sizes:
    """Return the whole segments of ``parts``; pieces of one part (``text_encoders clip_g``) are one."""
    sizes: dict[str, int] = {}
    for name, size in parts:
        shown = name.split(" ")[0]
        sizes[shown] = sizes.get(shown, 0) + size
    rounded = tuple((name, round_up(size, SEGMENT_BYTES)) for name, size in sizes.items() if size > 0)
    return _sorted((("context", CONTEXT_BYTES), *rounded))


def _sorted(parts: Sizes) -> Sizes:
    return tuple(sorted(parts, key=lambda part: -part[1]))
