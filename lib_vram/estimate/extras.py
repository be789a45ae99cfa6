"""What a generation runs beside the model: preprocessors, adapters, upscalers, detectors, face restorers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lib_vram.estimate.controls import ADAPTED, WHOLE_NETS, control_bytes
from lib_vram.estimate.flags import FORGE_LINE, compute_dtype, conf_of, has_flag, of_forge_line, unet_dtype
from lib_vram.estimate.named import (
    KEEP_UPSCALERS,
    Network,
    detector_network,
    preprocessor_networks,
    upscaler_network,
    upscaler_tile,
)
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.work import Sizes, Work
from lib_vram.physics.addons import Addon, AddonDtype, AddonKind, addon_weights_bytes, composed_bytes
from lib_vram.physics.lora import merging_bytes, on_the_fly_bytes
from lib_vram.request import ControlUnit, IdleKind, Request

PROCESSOR_RES = 512
"""Pixels of the shorter side that a preprocessor sees where nothing else is asked for."""
RES_STEP = 64
"""To a multiple of which its picture's sides are rounded (``resize_image`` in the annotators' util.py)."""
MOST_UPSCALES = 3
"""How often an upscaler is run at most until the wanted size is reached (modules/upscaler.py)."""
CPU_DETECTOR_FLAGS = ("--lowvram", "--medvram", "--medvram-sdxl")
"""With these ADetailer detects on the CPU (``get_ultralytics_device``)."""

T2I_LEVELS: dict[str, tuple[tuple[int, int], ...]] = {
    "sd15": ((320, 1), (640, 2), (1280, 4), (1280, 8)),
    "sdxl": ((320, 2), (640, 2), (1280, 4), (1280, 4)),
}
"""What a T2I-Adapter hands to the UNet: channels and halving of the latent."""
MANAGED: tuple[IdleKind, ...] = ("checkpoint", "controlnet", "interrogator")
"""Models that Forge and its relatives keep among those that they move (``current_loaded_models``)."""
PROMPT_TOKENS, IMAGE_TOKENS = 77, 16
"""Tokens of a prompt, and of an image at the most (IP-Adapter Plus; four otherwise)."""
IP_WIDEST = {"sd15": 320, "sdxl": 640}
"""Channels of the cross-attention at which an IP-Adapter finds the most tokens of the picture."""
IP_WIDTHS = {"sd15": 5 * 320 + 5 * 640 + 6 * 1280, "sdxl": 10 * 640 + 60 * 1280}
"""Channels of all cross-attentions together."""
LLLITE_CHANNELS = 32
LLLITE_MODULES = ((16, 2), (120, 4))
"""SDXL's ControlLLLite: how many layers have a condition of their own, and how coarse it is beside the latent."""
LLLITE_WIDTH, LLLITE_HALVING = 640, 2
"""Channels and coarseness of the widest layers that it changes: their changed input stays to the end of the block."""
STAY_IN = frozenset(FORGE_LINE)
"""Hosts that keep an IP-Adapter on the device until another one is used: the object that put it there keeps it."""


def preprocessor_works(request: Request, width: int, height: int) -> Iterator[Work]:
    """Yield what the ControlNets' preprocessors and the adapters' image encoders run, before anything else."""
    for unit in request.controlnets:
        for network in _networks_of(unit):
            wide, high = _processor_size(unit, width, height)
            addon = _addon(request, network, wide, high)
            managed = of_forge_line(request) and network.kind.startswith("clip_vision")
            held: Sizes = () if managed else (("preprocessor", addon_weights_bytes(addon)),)
            yield Work("controlnet_preprocess", "addon", addon, held, managed=managed)


def _networks_of(unit: ControlUnit) -> tuple[Network, ...]:
    networks = preprocessor_networks(unit.preprocessor)
    if unit.kind == "ip_adapter" and not networks:
        return preprocessor_networks("ip-adapter-auto")
    return networks


def unknown_preprocessors(request: Request) -> tuple[str, ...]:
    """Return the names of preprocessors that another network stands in for."""
    names = (unit.preprocessor for unit in request.controlnets)
    return tuple(dict.fromkeys(name for name in names if any(item.by_rule for item in preprocessor_networks(name))))


def _processor_size(unit: ControlUnit, width: int, height: int) -> tuple[int, int]:
    """Return the size of the picture that a preprocessor sees, which has the shape of the one that is made."""
    res = unit.processor_res or PROCESSOR_RES
    scale = res / min(width, height)
    return _stepped(width * scale), _stepped(height * scale)


def _stepped(side: float) -> int:
    return max(RES_STEP, round(side / RES_STEP) * RES_STEP)


def adapter_works(request: Request, phase: PhaseName, width: int, height: int, held: Sizes) -> Iterator[Work]:
    """Yield the T2I-Adapters' turns, in which their features are computed from the control picture."""
    for unit in request.controlnets:
        if unit.kind == "t2i_adapter" and unit.family in ADAPTED[unit.kind]:
            addon = Addon(_t2i_kind(unit), width, height, _dtype(request), alloc_conf=conf_of(request))
            own = ("adapter", control_bytes(unit, compute_dtype(request)))
            beside = tuple(item for item in held if item[0] != "adapter")
            yield Work(phase, "addon", addon, (*beside, own))


def _t2i_kind(unit: ControlUnit) -> AddonKind:
    return "t2i_adapter_sdxl" if ADAPTED["t2i_adapter"][unit.family] == "sdxl" else "t2i_adapter_sd15"


def adapters_held_bytes(request: Request, width: int, height: int, rows: int) -> int:
    """Return what adapters keep on the device while the UNet works on ``rows`` latents: weights, features, and inputs.

    Forge's T2I-Adapters go back to the CPU after their turn; A1111's IP-Adapters stay there.
    """
    total = 0
    for unit in request.controlnets:
        if unit.kind not in WHOLE_NETS and unit.family in ADAPTED[unit.kind]:
            total += _adapter_bytes(request, unit)
            total += _itemsize(request) * _feature_numbers(request, unit, width // 8, height // 8, rows)
    return total


def adapters_kept_bytes(request: Request) -> int:
    """Return what IP-Adapters weigh that stay on the device after the UNet's work, until others are used."""
    if request.host not in STAY_IN:
        return 0
    units = (unit for unit in request.controlnets if unit.kind == "ip_adapter" and unit.family in ADAPTED[unit.kind])
    return sum(control_bytes(unit, compute_dtype(request)) for unit in units)


def _adapter_bytes(request: Request, unit: ControlUnit) -> int:
    """Return what the weights of an adapter take on the device beside the UNet's work."""
    if unit.kind == "t2i_adapter" and (of_forge_line(request) or unit.low_vram):
        return 0
    if unit.kind == "ip_adapter" and request.host == "a1111":
        return 0
    return control_bytes(unit, compute_dtype(request))


def _itemsize(request: Request) -> int:
    return 4 if compute_dtype(request) == "fp32" else 2


def _feature_numbers(request: Request, unit: ControlUnit, columns: int, lines: int, rows: int) -> int:
    """Return how many numbers an adapter adds to what is live at the peak of ``rows`` latents.

    Traced with Forge's own classes and its UNet: what it keeps, and what it leaves alive of a block where the UNet
    peaks. The features of a T2I-Adapter are those of one control picture, kept and copied at every step.
    """
    if unit.kind == "t2i_adapter":
        levels = T2I_LEVELS[ADAPTED[unit.kind][unit.family]]
        return 2 * sum(channels * -(-lines // halving) * -(-columns // halving) for channels, halving in levels)
    if unit.kind == "ip_adapter":
        shape = ADAPTED[unit.kind][unit.family]
        prompts = 2 * PROMPT_TOKENS * IP_WIDEST[shape]
        return rows * (prompts if of_forge_line(request) else 2 * IMAGE_TOKENS * IP_WIDTHS[shape])
    kept = sum(count * -(-lines // halving) * -(-columns // halving) for count, halving in LLLITE_MODULES)
    area = -(-lines // LLLITE_HALVING) * -(-columns // LLLITE_HALVING)
    return LLLITE_CHANNELS * kept + (rows * LLLITE_WIDTH * area if of_forge_line(request) else 0)


def adds_loras_on_the_fly(request: Request) -> bool:
    """Return whether LoRAs are put into a layer whenever it is used: Forge does so only with quantised weights."""
    if not request.loras or not request.forge.online_lora or request.host not in ("forge", "neo"):
        return False
    return request.host == "neo" or unet_dtype(request) not in ("fp32", "fp16", "bf16")


def lora_bytes(request: Request, layer_parameters: int) -> int:
    """Return what putting LoRAs into the largest layer takes while it happens, on the fly or once."""
    scratch = on_the_fly_bytes if adds_loras_on_the_fly(request) else merging_bytes
    return scratch(request.host, layer_parameters, _itemsize(request))


def upscaler_works(request: Request, size: tuple[int, int], wanted: tuple[int, int], held: Sizes) -> Iterator[Work]:
    """Yield the upscaler's turn between the passes: from ``size`` to ``wanted``, one picture and tile at a time."""
    addon = upscaler_of(request, size, wanted)
    if addon is not None:
        composed = composed_bytes(addon)
        own: Sizes = (("upscaler", addon_weights_bytes(addon)), *((("images", composed),) if composed else ()))
        yield Work("hires_upscale", "addon", addon, (*held, *own))


def upscaler_of(request: Request, size: tuple[int, int], wanted: tuple[int, int]) -> Addon | None:
    """Return the upscaler as it runs on the largest picture that it gets; ``None`` where none is run, or known."""
    network = upscaler_network(request.hires.upscaler, request.host) if request.hires else None
    if network is None:
        return None
    width, height = _last_input(size, wanted, network.scale)
    return replace(_addon(request, network, width, height), tile=upscaler_tile(request))


def _last_input(size: tuple[int, int], wanted: tuple[int, int], scale: int) -> tuple[int, int]:
    """Return the picture's size before the last run: an upscaler is run again until the wanted size is covered."""
    width, height = size
    for _ in range(MOST_UPSCALES - 1):
        if width * scale >= wanted[0] and height * scale >= wanted[1]:
            break
        width, height = width * scale, height * scale
    return width, height


def kept_upscaler_bytes(request: Request, size: tuple[int, int], wanted: tuple[int, int]) -> int:
    """Return the weights of the upscaler that the host keeps on the device after its first use; 0 where it does not."""
    name = request.hires.upscaler.lower() if request.hires else ""
    if request.host not in KEEP_UPSCALERS or (request.host != "neo" and name.startswith("r-esrgan")):
        return 0
    addon = upscaler_of(request, size, wanted)
    return addon_weights_bytes(addon) if addon else 0


def managed_idle(request: Request) -> tuple[int, ...]:
    """Return the bytes of idle models that Forge and its relatives send away when they need the room."""
    if not of_forge_line(request):
        return ()
    return tuple(model.bytes for model in request.idle_models if model.kind in MANAGED)


def unmanaged_idle_bytes(request: Request) -> int:
    """Return the bytes of idle models that stay on the device whatever is needed.

    A face restorer or upscaler that this generation runs as well is counted there.
    """
    models = [model for model in request.idle_models if not (of_forge_line(request) and model.kind in MANAGED)]
    return sum(model.bytes for model in models if not (model.kind == "face_restore" and request.restore_faces))


def detector_works(request: Request, width: int, height: int) -> Iterator[Work]:
    """Yield the detailer's detector on the finished picture."""
    network = detector_network(request.detailer.model) if request.detailer else None
    if network is None or (request.host == "a1111" and any(has_flag(request, flag) for flag in CPU_DETECTOR_FLAGS)):
        return
    addon = _addon(request, network, width, height)
    yield Work("detailer", "addon", addon, (("detector", addon_weights_bytes(addon)),))


def restorer_works(request: Request, width: int, height: int) -> Iterator[Work]:
    """Yield face detection on the whole picture, then restoring and parsing of one face after the other."""
    held = (("face_restore", restorer_bytes(request)),)
    for kind in _restorers(request):
        yield Work("face_restore", "addon", _addon(request, Network(kind), width, height), held)


def restorer_bytes(request: Request) -> int:
    """Return what the networks of face restoration weigh, which are on the device together; 0 without it."""
    return sum(addon_weights_bytes(Addon(kind, 512, 512)) for kind in _restorers(request))


def _restorers(request: Request) -> tuple[AddonKind, ...]:
    return () if request.restore_faces is None else ("retinaface", request.restore_faces, "parsenet")


def _dtype(request: Request) -> AddonDtype:
    return "fp32" if compute_dtype(request) == "fp32" else "fp16"


def _addon(request: Request, network: Network, width: int, height: int) -> Addon:
    half = network.half and _dtype(request) == "fp16" and not has_flag(request, "--upcast-sampling")
    if request.host == "a1111" and network.kind.startswith("clip_vision"):
        half = False  # the extension's ClipVisionDetector leaves them as they are loaded
    return Addon(
        network.kind, width, height, "fp16" if half else "fp32", alloc_conf=conf_of(request),
        shuffle=network.shuffle, by_rule=network.by_rule, parameters=network.parameters,
    )  # fmt: skip
