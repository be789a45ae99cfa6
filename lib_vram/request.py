"""A request: everything about one generation that decides how much memory it needs.

The JSON form is the contract with the command line, HTTP and the hosts' adapters. Unknown
fields are refused by name; every field but ``model.family``, ``width``, ``height`` and
``device.total_bytes`` has a default.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lib_vram.errors import BadInput

HostName = Literal["a1111", "forge", "reforge", "classic", "neo", "diffusers"]
Family = Literal[
    "sd15", "sd21", "sdxl", "sdxl_refiner", "sd35_medium", "sd35_large", "flux1", "chroma",
    "flux2_klein_4b", "flux2_klein_9b", "qwen_image", "zimage", "lumina2", "wan21_1b", "wan21_14b",
    "loaded",
]  # fmt: skip
"""``loaded`` is whatever a WebUI has loaded that has no name here: known by the trace of its own classes alone, and
only where it was traced."""
Attention = Literal["sdpa", "xformers", "math", "split", "sub_quad", "sage"]
Dtype = Literal["fp32", "fp16", "bf16", "fp8"]
WeightsDtype = Literal["fp32", "fp16", "bf16", "fp8", "q8_0", "q4_k", "q4_0", "nf4", "int8"]
StorageDtype = Literal["fp8", "nf4"]
ControlKind = Literal["controlnet", "controllllite", "t2i_adapter", "ip_adapter", "control_lora"]
EncoderName = Literal[
    "clip_l", "clip_g", "open_clip_h", "t5_xxl", "umt5_xxl", "qwen3_4b", "qwen3_8b", "qwen25_vl_7b", "gemma2_2b",
]  # fmt: skip
Platform = Literal["linux", "windows", "macos"]
EncoderDevice = Literal["gpu", "cpu"]
FaceRestorer = Literal["gfpgan", "codeformer"]
IdleKind = Literal["controlnet", "checkpoint", "upscaler", "interrogator", "face_restore"]
LivePreview = Literal["off", "approx", "taesd", "full"]
Mode = Literal["txt2img", "img2img"]
ModelVariant = Literal["", "inpaint", "pix2pix"]
Guidance = Literal["sag", "pag", "freeu"]
RefinedPass = Literal["first", "second"]

SIZE_LIMITS = (64, 16384)
"""Pixels: the smallest side the UNet's three halvings leave something of, and far above any card."""
BATCH_LIMITS = (1, 256)
BYTES_LIMITS = (0, 2**50)

_BOUNDS: dict[str, tuple[float, float]] = {
    "width": SIZE_LIMITS,
    "height": SIZE_LIMITS,
    "batch_size": BATCH_LIMITS,
    "batch_count": (1, 10000),
    "frames": (1, 1024),
    "cfg_scale": (0, 100),
    "hires.scale": (1, 16),
    "hires.width": (0, SIZE_LIMITS[1]),
    "hires.height": (0, SIZE_LIMITS[1]),
    "refiner.switch_at": (0, 1),
    "vae.tile_size": (128, 4096),
    "upscaler_tile": (0, 4096),
    "token_merging_ratio": (0, 0.9),
    "hypertile.unet_tile_size": (0, 512),
    "hypertile.vae_tile_size": (0, 512),
    "hypertile.swap_size": (0, 64),
    "hypertile.depth": (0, 3),
    "tiled_diffusion.tile_width": (64, SIZE_LIMITS[1]),
    "tiled_diffusion.tile_height": (64, SIZE_LIMITS[1]),
    "tiled_diffusion.overlap": (0, SIZE_LIMITS[1]),
    "tiled_diffusion.batch": BATCH_LIMITS,
    "hr_fix.block": (1, 32),
    "hr_fix.factor": (0.1, 9),
    "hr_fix.start": (0, 1),
    "hr_fix.end": (0, 1),
    "device.total_bytes": (1, BYTES_LIMITS[1]),
}

_LENGTHS = {"controlnets": 32, "text_encoders": 8, "reference_images": 16, "idle_models": 64, "guidance": 8}
"""The hosts have at most 10 units; the work of an estimate grows with the third power of their number."""
_LENGTH = 1000


@dataclass(frozen=True)
class DeviceSpec:
    """The card. ``used_by_others_bytes`` is what other programs hold, without this process."""

    total_bytes: int
    name: str = "GPU"
    used_by_others_bytes: int = 0


@dataclass(frozen=True)
class SystemSpec:
    """The machine's RAM and operating system; ``None`` where it is not known."""

    ram_total_bytes: int | None = None
    ram_free_bytes: int | None = None
    platform: Platform | None = None


@dataclass(frozen=True)
class ModelSpec:
    """The checkpoint. ``checkpoint`` is a file whose header, when given, overrides the family's known weights.

    ``storage_dtype`` is what the host is told to keep the weights in (A1111's *FP8 weight*, Forge's *Diffusion in Low
    Bits*) and computes from in ``weights_dtype``; ``None`` keeps them as they are loaded. ``variant`` is that of a UNet
    which takes a picture's latent besides: for inpainting, or for InstructPix2Pix.

    ``text_encoders_bytes`` and ``text_layer_bytes``, all of them and their largest layer, are what a WebUI holds of a
    ``loaded`` model; other families' are counted.
    """

    family: Family
    checkpoint: str | None = None
    weights_dtype: WeightsDtype = "fp16"
    storage_dtype: StorageDtype | None = None
    variant: ModelVariant = ""
    text_encoders_bytes: int | None = None
    text_layer_bytes: int | None = None


@dataclass(frozen=True)
class TextEncoder:
    """One text encoder that is kept in another way than the rest of the model.

    ``dtype`` is what its weights lie in, ``None`` for the type they are computed in; on the device ``"cpu"`` it
    takes nothing of the card. ``checkpoint`` is a file of its own, whose header then decides.
    """

    name: EncoderName
    dtype: WeightsDtype | None = None
    device: EncoderDevice = "gpu"
    checkpoint: str | None = None


@dataclass(frozen=True)
class VaeSpec:
    """How the VAE runs. ``tile_size`` is in pixels of the picture; ``None`` is the host's own.

    ``checkpoint`` is a file of its own, whose header then decides what it weighs.
    """

    dtype: Dtype = "fp16"
    tiled: bool = False
    tile_size: int | None = None
    checkpoint: str | None = None


@dataclass(frozen=True)
class Hires:
    """The second pass. A width and height of 0 mean: use ``scale``; a single 0 follows the aspect."""

    scale: float = 2.0
    width: int = 0
    height: int = 0
    upscaler: str = "Latent"


@dataclass(frozen=True)
class ControlUnit:
    """One active control model.

    ``preprocessor`` is its name in the host (``openpose_full``), which looks at a picture of ``processor_res`` pixels;
    ``None`` is the host's own. ``bytes`` is the size of the control model's tensors, ``None`` where it is not known.
    """

    kind: ControlKind = "controlnet"
    family: Family = "sd15"
    low_vram: bool = False
    preprocessor: str = "none"
    processor_res: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Refiner:
    """A second checkpoint that takes over at ``switch_at`` of the steps.

    With a second pass, ``refined_pass`` is the one in which it does; where both are refined, the second needs more.
    """

    family: Family = "sdxl_refiner"
    switch_at: float = 0.8
    checkpoint: str | None = None
    refined_pass: RefinedPass = "second"


@dataclass(frozen=True)
class Lora:
    """One LoRA; ``bytes`` is the size of its file's tensors."""

    bytes: int


@dataclass(frozen=True)
class Detailer:
    """A detection pass that repaints crops of this size. ``model`` is the detector's file."""

    width: int = 512
    height: int = 512
    model: str = "face_yolov8n.pt"


@dataclass(frozen=True)
class HyperTile:
    """Self-attention in tiles, in A1111 and reForge. Sizes in pixels; it draws from ``swap_size`` divisions."""

    unet: bool = True
    vae: bool = False
    unet_tile_size: int = 256
    vae_tile_size: int = 128
    swap_size: int = 3
    depth: int = 3


@dataclass(frozen=True)
class TiledDiffusion:
    """The UNet in overlapping tiles, ``batch`` of them at a time: MultiDiffusion, Tiled Diffusion. Sizes in pixels.

    With ``sets_size`` the script gives the run its size when it begins, so that no other can be asked for.
    """

    tile_width: int = 768
    tile_height: int = 768
    overlap: int = 64
    batch: int = 4
    first_pass_only: bool = False
    sets_size: bool = False


@dataclass(frozen=True)
class HrFix:
    """Kohya's HR fix: the UNet is smaller by ``factor`` from an input block on, between two parts of the steps."""

    block: int = 3
    factor: float = 2.0
    start: float = 0.0
    end: float = 0.35


@dataclass(frozen=True)
class ReferenceImage:
    """A picture whose latent goes through the model beside the one that is made: Flux Kontext, Qwen-Image-Edit."""

    width: int
    height: int


@dataclass(frozen=True)
class IdleModel:
    """A model that the host keeps on the device though this generation does not use it."""

    kind: IdleKind
    bytes: int


@dataclass(frozen=True)
class ForgeSettings:
    """Forge's own memory settings. ``inference_memory_bytes`` is total memory less *GPU Weights*.

    ``online_lora`` is *Diffusion in Low Bits* with "fp16 LoRA": LoRAs are put into a layer whenever it is used.
    """

    inference_memory_bytes: int = 1024**3
    never_oom_vae: bool = False
    never_oom_unet: bool = False
    online_lora: bool = False


@dataclass(frozen=True)
class Request:
    """One generation on one card. Sizes of pictures in pixels, of memory in bytes."""

    device: DeviceSpec
    model: ModelSpec
    width: int
    height: int
    host: HostName = "a1111"
    host_args: tuple[str, ...] = ()
    alloc_conf: str = ""
    system: SystemSpec = SystemSpec()
    vae: VaeSpec = VaeSpec()
    attention: Attention = "sdpa"
    more_attention: tuple[Attention, ...] = ()
    """What this machine's host can change to for a run, beside what comes with every PyTorch: ``xformers``."""
    batch_cond_uncond: bool = True
    live_preview: LivePreview = "approx"
    mode: Mode = "txt2img"
    batch_size: int = 1
    batch_count: int = 1
    cfg_scale: float = 7.0
    frames: int = 1
    hires: Hires | None = None
    hires_model: ModelSpec | None = None
    """The checkpoint of the second pass, ``None`` for the first one's."""
    controlnets: tuple[ControlUnit, ...] = ()
    refiner: Refiner | None = None
    loras: tuple[Lora, ...] = ()
    detailer: Detailer | None = None
    restore_faces: FaceRestorer | None = None
    upscaler_tile: int | None = None
    """The side of an upscaler's tile in pixels, 0 for the whole picture at once; ``None`` is the host's setting."""
    token_merging_ratio: float = 0.0
    hypertile: HyperTile | None = None
    tiled_diffusion: TiledDiffusion | None = None
    hr_fix: HrFix | None = None
    guidance: tuple[Guidance, ...] = ()
    """What Forge's scripts patch into the UNet: Self- and Perturbed-Attention Guidance, FreeU."""
    text_encoders: tuple[TextEncoder, ...] = ()
    reference_images: tuple[ReferenceImage, ...] = ()
    start_picture: ReferenceImage | None = None
    """The size of img2img's picture where it is encoded as it is and its latent resized; ``None`` is the run's size."""
    idle_models: tuple[IdleModel, ...] = ()
    forge: ForgeSettings = field(default_factory=ForgeSettings)

    @classmethod
    def from_dict(cls, data: object) -> Request:
        """Return the request that ``data``, a parsed JSON object, describes.

        Raises:
            BadInput: a field is unknown, missing, of the wrong type or out of its range.
        """
        return _build(cls, data, "")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``Request.from_dict`` of it is this request again."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Request:
        """Return a copy with ``changes``."""
        return dataclasses.replace(self, **changes)

    @property
    def images(self) -> int:
        """How many pictures the user asked for."""
        return self.batch_size * self.batch_count

    @property
    def uses_cfg(self) -> bool:
        """Whether an unconditional half is computed at all: not at a CFG scale of 1."""
        return self.cfg_scale != 1.0

    def hires_size(self) -> tuple[int, int] | None:
        """Return the width and height of the second pass, as the hosts compute them before rounding to 8."""
        if self.hires is None:
            return None
        want = self.hires
        if want.width == 0 and want.height == 0:
            return int(self.width * want.scale), int(self.height * want.scale)
        if want.height == 0:
            return want.width, want.width * self.height // self.width
        if want.width == 0:
            return want.height * self.width // self.height, want.height
        return want.width, want.height


def _build(cls: type, data: object, path: str) -> Any:
    name = path or "request"
    if not isinstance(data, Mapping):
        raise BadInput(name, got=data, takes="an object with named fields")
    known = {item.name: item for item in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in known:
            unknown = _join(path, str(key)) or "''"
            raise BadInput(unknown, got=value, takes=f"no such field; {name} has {', '.join(known)}")
        values[key] = _convert(hints[key], value, _join(path, key))
    for key, item in known.items():
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and key not in values:
            raise BadInput(_join(path, key), got=None, takes="a value: this field is required")
    return cls(**values)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _convert(hint: Any, value: object, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _convert(next(item for item in arguments if item is not type(None)), value, path)
    if origin is Literal:
        if value not in arguments:
            raise BadInput(path, got=value, takes=f"one of {', '.join(arguments)}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise BadInput(path, got=value, takes="a list")
        most = _LENGTHS.get(path, _LENGTH)
        if len(value) > most:
            raise BadInput(path, got=f"{len(value)} items", takes=f"a list of at most {most}")
        return tuple(_convert(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path)
    return _scalar(hint, value, path)


def _scalar(hint: type, value: object, path: str) -> Any:
    if hint is bool:
        if not isinstance(value, bool):
            raise BadInput(path, got=value, takes="true or false")
        return value
    if hint is str:
        if not isinstance(value, str) or len(value) > 4096:
            raise BadInput(path, got=value, takes="a text of at most 4096 characters")
        return value
    low, high = _bounds(path)
    takes = f"a {'whole ' if hint is int else ''}number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(path, got=value, takes=takes)
    if value != value or not low <= value <= high or (hint is int and value != int(value)):
        raise BadInput(path, got=value, takes=takes)
    return hint(value)


def _bounds(path: str) -> tuple[float, float]:
    if path.startswith(("detailer.", "reference_images[", "start_picture.")) or path.endswith(".processor_res"):
        return SIZE_LIMITS
    return _BOUNDS.get(path, BYTES_LIMITS)
