"""The Lab as a host: a page that stands in for a WebUI, on a virtual card that really runs out.

Everything that a WebUI would know by itself (the card, the flags it was started with, the
checkpoint's family) is a field of the Lab's page and comes with the form.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lib_vram.errors import BadInput
from lib_vram.guard.argument import NAMES
from lib_vram.host import freeing
from lib_vram.host.base import FieldWrite, GuardMode, Settings
from lib_vram.live.picture import Weights, WeightsKind
from lib_vram.machine.card import Card, Holder
from lib_vram.machine.torch_memory import Snapshot, TorchMemory
from lib_vram.message import say
from lib_vram.plan.result import Plan
from lib_vram.request import Family, HostName, Mode, Request, WeightsDtype
from lib_vram.units import GIB, MIB


@dataclass(frozen=True)
class LabCheckpoint:
    """A checkpoint that the Lab offers: a name as people know it, and what it stands for."""

    name: str
    family: Family
    weights_dtype: WeightsDtype


CHECKPOINTS = (
    LabCheckpoint("sd_xl_base_1.0.safetensors", "sdxl", "fp16"),
    LabCheckpoint("v1-5-pruned-emaonly.safetensors", "sd15", "fp16"),
    LabCheckpoint("v1-5-pruned-fp32.safetensors", "sd15", "fp32"),
)

CARDS: tuple[tuple[str, int], ...] = (
    ("NVIDIA GeForce GTX 1650", 4),
    ("NVIDIA GeForce RTX 2060", 6),
    ("NVIDIA GeForce RTX 3070", 8),
    ("NVIDIA GeForce GTX 1080 Ti", 11),
    ("NVIDIA GeForce RTX 3060", 12),
    ("NVIDIA GeForce RTX 4060 Ti", 16),
    ("NVIDIA GeForce RTX 3090", 24),
)
"""Names as the driver gives them, and GiB on the box."""

HOSTS: dict[str, HostName] = {"AUTOMATIC1111": "a1111", "Forge": "forge"}
FLAGS: dict[str, tuple[str, ...]] = {"none": (), "--medvram": ("--medvram",), "--lowvram": ("--lowvram",)}
MODES: dict[str, GuardMode] = {"Off": "off", "Show": "show", "Ask": "ask", "Fix": "fix"}

LORA_BYTES: dict[Family, int] = {"sd15": 144 * MIB, "sdxl": 218 * MIB}
"""A LoRA of rank 128 for SD 1.5 and one of rank 32 for SDXL, as most are shared."""
_LORA = re.compile(r"<lora:[^:<>]+(?::[^<>]*)?>")
_MOST_LORAS = 100

DEFAULT_CARD = CARDS[4]
DEFAULT_OTHERS_BYTES = GIB
_KINDS: dict[str, WeightsKind] = {
    "unet": "unet", "text_encoder": "text_encoder", "text_encoder_2": "text_encoder", "text_encoders": "text_encoder",
    "vae": "vae", "controlnet": "controlnet", "lora": "lora", "refiner": "checkpoint",
}  # fmt: skip
"""What the parts of an estimate that are models are for."""
OTHER_PROGRAMS = ("virtual-browser", 4312)
"""Name and process number of the made-up program that holds the Lab's "other programs" memory."""


@dataclass
class LabRun:
    """What the hosts call ``p``: one generation that is about to run."""

    request: Request
    is_api: bool = False
    extra_generation_params: dict[str, Any] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)

    def init(self) -> None:
        """Called before anything is computed; a refusal puts itself in its place."""

    def comment(self, text: str) -> None:
        """Add a line to what is shown under the pictures."""
        self.comments.append(text)


class LabHost:
    """The WebUI that the Lab's page pretends to be, as its fields last said."""

    own_controls = frozenset(NAMES)

    def __init__(self, mode: GuardMode = "ask", language: str = "en") -> None:
        self.on_failure: Callable[[str, Any], object] | None = None
        self._lock = threading.Lock()
        self._mode = mode
        self._language = language
        self._host: HostName = "a1111"
        self._title = "AUTOMATIC1111"
        self._flags: tuple[str, ...] = ()
        self._card = _card(DEFAULT_CARD[0], DEFAULT_CARD[1] * GIB, DEFAULT_OTHERS_BYTES)
        self._at_work = 0
        self._left = (0, 0)
        self._parts: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> HostName:
        """The host whose rules are followed."""
        return self._host

    @property
    def title(self) -> str:
        """What stands on the tab's last section."""
        return f"Lab ({self._title})"

    def start(self) -> None:
        """Put nothing in place: the Lab's own run raises to its page."""

    def version(self) -> str:
        """Return nothing: the Lab is as old as VRAM Guard itself."""
        return ""

    def settings(self) -> Settings:
        """Return the choices made in the Lab's page."""
        return Settings(mode=self._mode, language=self._language)

    def launch_arguments(self) -> tuple[str, ...]:
        """Return the flags of the page, as they last were."""
        return self._flags

    def card(self) -> Card | None:
        """Return the virtual card as the page's fields last described it."""
        return self._card

    def request_from_form(self, tab: Mode, form: Mapping[str, Any]) -> Request:
        """Return the request that the Lab's fields describe.

        Raises:
            BadInput: a field is not usable.
        """
        request = Request.from_dict(_request_dict(tab, form))
        self._remember(form, request)
        return request

    def _remember(self, form: Mapping[str, Any], request: Request) -> None:
        device = request.device
        with self._lock:
            self._host = request.host
            self._flags = request.host_args
            self._title = str(form.get("lab_host", "AUTOMATIC1111"))
            self._mode = MODES.get(str(form.get("lab_mode")), self._mode)
            self._card = _card(device.name, device.total_bytes, device.used_by_others_bytes)

    def request_from_processing(self, p: LabRun) -> Request:
        """Return the request that is about to run."""
        return p.request

    def field_writes(self, plan: Plan, original: Request) -> tuple[FieldWrite, ...]:
        """Return the page's fields that differ between ``original`` and what ``plan`` makes of it."""
        before, after = _page_fields(original), _page_fields(plan.request)
        changed = [name for name in after if after[name] != before.get(name)]
        return tuple(FieldWrite(name, after[name], before.get(name)) for name in changed)

    def apply(self, p: LabRun, plan: Plan, original: Request) -> None:
        """Run what the plan says in place of what was asked for."""
        p.request = plan.request

    def prepare_run(self, p: LabRun, request: Request | None) -> None:
        """Do nothing: the Lab's generation reads every lever from the request."""

    def before_sampling(self, p: LabRun, latent: Any) -> None:
        """The Lab's runs need nothing before they sample."""

    def joins(self, p: LabRun) -> bool:
        """Return False: nobody copies the Lab's runs."""
        return False

    def restore(self, p: LabRun | None = None) -> None:
        """Do nothing: nothing outlives a run."""

    @contextmanager
    def working(self, request: Request) -> Iterator[None]:
        """Be at work on ``request``; afterwards its model and the cache of its peak are left on the virtual card."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            left = _left_by(request)
            with self._lock:
                self._at_work -= 1
                self._left = left[:2]
                self._parts = left[2]

    def reach(self, allocated_bytes: int, reserved_bytes: int, parts: tuple[tuple[str, int], ...]) -> None:
        """Be at the peak of a phase of the run at work, with ``parts`` resident, the driver's among them."""
        with self._lock:
            self._left = (allocated_bytes, max(allocated_bytes, reserved_bytes))
            self._parts = parts

    def torch_memory(self) -> TorchMemory | None:
        """Return what the virtual card's allocator holds: of the run at work, or what the last one left."""
        from lib_vram.estimate.residency import CONTEXT_BYTES

        with self._lock:
            allocated_bytes, reserved_bytes = self._left
            began = reserved_bytes > 0 or self._at_work > 0
        return TorchMemory(allocated_bytes, reserved_bytes, driver_bytes=CONTEXT_BYTES if began else 0)

    def snapshot(self) -> Snapshot | None:
        """Return nothing: the Lab's allocator begins in one piece with every run."""
        return None

    def loaded_weights(self) -> tuple[Weights, ...]:
        """Return the models that are on the virtual card."""
        with self._lock:
            allocated_bytes, parts = self._left[0], self._parts
        if not allocated_bytes:
            return ()
        return tuple(Weights(_KINDS[name], "", size, 0) for name, size in parts if name in _KINDS)

    def is_busy(self) -> bool:
        """Whether a run is at work."""
        return self._at_work > 0

    def folders(self) -> dict[str, str]:
        """Return where temporary files go: the Lab has no models."""
        return {"temp": tempfile.gettempdir()}

    def free(self, level: freeing.Level) -> freeing.Freed:
        """Free the virtual card of what the last run left. Raises ``Busy`` while one is at work."""
        with self._lock:
            self._raise_when_busy()
            before = _memory(self._card, *self._left)
            weights_bytes = 0 if level == "models" else self._left[0]
            self._left = (weights_bytes, weights_bytes)
            after = _memory(self._card, *self._left)
        return freeing.Freed(level, before, after, freeing.what_stays(level, after))

    def make_room(self, level: freeing.Level) -> None:
        """Free the virtual card from within a run."""
        with self._lock:
            weights_bytes = 0 if level == "models" else self._left[0]
            self._left = (weights_bytes, weights_bytes)

    def switches_checkpoint(self, request: Request) -> bool:
        """Return False: the Lab keeps no checkpoint."""
        return False

    def restart(self, how: freeing.How) -> freeing.Restarting:
        """Let the page load anew; the Lab's own process is restarted by hand. Raises ``Busy`` during a run."""
        with self._lock:
            self._raise_when_busy()
        if how == "reload":
            return freeing.Restarting(started=True)
        return freeing.Restarting(started=False, steps=say("free.steps_lab"))

    def _raise_when_busy(self) -> None:
        if self._at_work:
            raise freeing.Busy("a generation is at work")

    def is_open_to_others(self) -> bool:
        """Return False: the Lab answers on 127.0.0.1 alone."""
        return False


def _card(name: str, total_bytes: int, others_bytes: int) -> Card:
    held = min(others_bytes, total_bytes)
    holders = (Holder(OTHER_PROGRAMS[1], OTHER_PROGRAMS[0], held),) if held else ()
    return Card(
        name=name,
        total_bytes=total_bytes,
        free_bytes=total_bytes - held,
        used_by_others_bytes=held,
        source="virtual",
        holders=holders,
    )


_Parts = tuple[tuple[str, int], ...]


def _left_by(request: Request) -> tuple[int, int, _Parts]:
    """Return what PyTorch would have allocated and reserved after ``request``, and the last phase's weights."""
    from lib_vram.estimate.estimator import estimate

    phases = estimate(request).phases
    if not phases:
        return 0, 0, ()
    driver_bytes = [dict(phase.resident_parts).get("context", 0) for phase in phases]
    weights_bytes = phases[-1].resident_bytes - driver_bytes[-1]
    peak_bytes = max(phase.wants_bytes - driver for phase, driver in zip(phases, driver_bytes, strict=True))
    room_bytes = request.device.total_bytes - request.device.used_by_others_bytes - max(driver_bytes)
    return weights_bytes, max(weights_bytes, min(peak_bytes, room_bytes)), phases[-1].resident_parts


def _memory(card: Card, allocated_bytes: int, reserved_bytes: int) -> freeing.Memory:
    others_bytes = card.used_by_others_bytes or 0
    return freeing.Memory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        others_bytes=others_bytes,
        free_bytes=max(0, card.total_bytes - others_bytes - reserved_bytes),
    )


def checkpoint_named(name: Any) -> LabCheckpoint:
    """Return the Lab's checkpoint ``name``.

    Raises:
        BadInput: the Lab has no such checkpoint.
    """
    found = next((item for item in CHECKPOINTS if item.name == name), None)
    if found is None:
        raise BadInput("checkpoint", got=name, takes=f"one of {', '.join(item.name for item in CHECKPOINTS)}")
    return found


def _request_dict(tab: Mode, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's JSON form; what is wrong in it, ``Request.from_dict`` says by name."""
    checkpoint = checkpoint_named(form.get("checkpoint", CHECKPOINTS[0].name))
    total_bytes = _gib(form, "lab_total_gib", DEFAULT_CARD[1])
    others_bytes = min(_gib(form, "lab_others_gib", 0), total_bytes)
    width, height = _size(tab, form)
    return {
        "host": _choice(form, "lab_host", HOSTS, "AUTOMATIC1111"),
        "host_args": list(_choice(form, "lab_flags", FLAGS, "none")),
        "device": {
            "name": str(form.get("lab_card") or DEFAULT_CARD[0]),
            "total_bytes": total_bytes,
            "used_by_others_bytes": others_bytes,
        },
        "model": {
            "family": checkpoint.family,
            "weights_dtype": checkpoint.weights_dtype,
            "storage_dtype": "fp8" if form.get("fp8_weights") else None,
        },
        "vae": {
            "dtype": form.get("lab_vae_dtype", "fp16"),
            "tiled": bool(form.get("vae_tiled", False)),
            "tile_size": form.get("vae_tile_size") if form.get("vae_tiled") else None,
        },
        "attention": form.get("attention") or form.get("lab_attention", "sdpa"),
        "live_preview": form.get("live_preview") or "approx",
        "upscaler_tile": form.get("upscaler_tile") or None,
        "batch_cond_uncond": not form.get("cond_uncond_apart", False),
        "mode": tab,
        "width": width,
        "height": height,
        "batch_size": form.get("batch_size", 1),
        "batch_count": form.get("batch_count", 1),
        "cfg_scale": form.get("cfg_scale", 7.0),
        "hires": _hires(form) if tab == "txt2img" and form.get("enable_hr") else None,
        "refiner": _refiner(form) if form.get("enable_refiner") and form.get("refiner_checkpoint") else None,
        "controlnets": _controlnets(form, checkpoint.family),
        "loras": _loras(form, checkpoint.family),
        "forge": {
            "inference_memory_bytes": _inference_memory(form, total_bytes),
            "never_oom_vae": bool(form.get("never_oom_vae", False)),
            "never_oom_unet": bool(form.get("never_oom_unet", False)),
        },
    }


def _choice(form: Mapping[str, Any], name: str, choices: Mapping[str, Any], default: str) -> Any:
    value = form.get(name) or default
    if value not in choices:
        raise BadInput(name, got=value, takes=f"one of {', '.join(choices)}")
    return choices[value]


def _number(form: Mapping[str, Any], name: str, default: float) -> float:
    value = form.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**20:
        raise BadInput(name, got=value, takes="a number from 0 up")
    return float(value)


def _gib(form: Mapping[str, Any], name: str, default: float) -> int:
    return int(_number(form, name, default) * GIB)


def _size(tab: Mode, form: Mapping[str, Any]) -> tuple[Any, Any]:
    """The picture's size; "Resize by" takes it from the picture that was put in, in multiples of 8."""
    if tab == "img2img" and "resize_scale" in form and form.get("image_width") and form.get("image_height"):
        scale = _number(form, "resize_scale", 1)
        sides = (_number(form, name, 512) for name in ("image_width", "image_height"))
        width, height = (int(side * scale) // 8 * 8 for side in sides)
        return width, height
    return form.get("width"), form.get("height")


def _hires(form: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "scale": form.get("hr_scale", 2.0),
        "width": form.get("hr_resize_x", 0),
        "height": form.get("hr_resize_y", 0),
        "upscaler": form.get("hr_upscaler", "Latent"),
    }


def _refiner(form: Mapping[str, Any]) -> dict[str, Any]:
    return {"family": "sdxl_refiner", "switch_at": form.get("refiner_switch_at", 0.8)}


def _controlnets(form: Mapping[str, Any], family: Family) -> list[dict[str, Any]]:
    units = form.get("controlnets") or []
    if not isinstance(units, list) or not all(isinstance(unit, Mapping) for unit in units):
        raise BadInput("controlnets", got=units, takes="a list of units")
    return [
        {"kind": "controlnet", "family": family, "low_vram": bool(unit.get("low_vram"))}
        for unit in units
        if unit.get("enabled") and unit.get("model") not in (None, "", "None")
    ]


def _loras(form: Mapping[str, Any], family: Family) -> list[dict[str, int]]:
    found = _LORA.findall(str(form.get("prompt", "")))[:_MOST_LORAS]
    return [{"bytes": LORA_BYTES[family]} for _ in found]


def _inference_memory(form: Mapping[str, Any], total_bytes: int) -> int:
    """What *GPU Weights* leaves for computing; Forge's own default is 1 GiB."""
    weights = form.get("gpu_weights_mb")
    if weights is None:
        return min(GIB, total_bytes)
    return max(0, total_bytes - int(_number(form, "gpu_weights_mb", 0) * MIB))


def _page_fields(request: Request) -> dict[str, Any]:
    """Return the page's fields that a plan can change, by their names in the form."""
    fields: dict[str, Any] = {
        "batch_size": request.batch_size,
        "batch_count": request.batch_count,
        "vae_tiled": request.vae.tiled,
        "cond_uncond_apart": not request.batch_cond_uncond,
        "never_oom_vae": request.forge.never_oom_vae,
        "never_oom_unet": request.forge.never_oom_unet,
        "width": request.width,
        "height": request.height,
    }
    fields |= {
        "fp8_weights": request.model.storage_dtype == "fp8",
        "live_preview": request.live_preview,
        "attention": request.attention,
        "upscaler_tile": request.upscaler_tile or 0,
    }
    fields |= {f"controlnet_low_vram:{place}": unit.low_vram for place, unit in enumerate(request.controlnets)}
    if request.host == "forge":
        weights_bytes = max(0, request.device.total_bytes - request.forge.inference_memory_bytes)
        fields["gpu_weights_mb"] = weights_bytes // MIB
    if request.vae.tile_size:
        fields["vae_tile_size"] = request.vae.tile_size
    if request.hires:
        fields |= {"hr_scale": request.hires.scale}
        fields |= {"hr_resize_x": request.hires.width, "hr_resize_y": request.hires.height}
    return fields
