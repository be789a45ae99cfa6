"""Text encoders one by one: what each weighs where it is kept apart from the rest, in another type or on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from lib_vram.errors import VramGuardError
from lib_vram.estimate.flags import compute_dtype, unet_dtype
from lib_vram.estimate.launched import launched
from lib_vram.message import Message, say
from lib_vram.model.inspect import Checkpoint, inspect_file
from lib_vram.physics.families import SHAPES
from lib_vram.physics.quantised import scratch_bytes
from lib_vram.physics.weights import BITS_PER_WEIGHT, storage_type, weights_bytes
from lib_vram.request import EncoderName, Family, Request, TextEncoder, WeightsDtype

Inspect = Callable[[str], Checkpoint]


class Counts(NamedTuple):
    """Weights of one encoder: all, the table of tokens, and its largest layer that is multiplied with."""

    all: int
    tokens: int
    layer: int


ENCODERS: Mapping[str, Counts] = {
    "clip_l": Counts(123_060_480, 49_408 * 768, 768 * 3072),
    "clip_g": Counts(694_659_841, 49_408 * 1280, 1280 * 5120),
    "open_clip_h": Counts(354_032_640, 49_408 * 1024, 1024 * 4096),
    "t5_xxl": Counts(4_762_310_656, 32_128 * 4096, 4096 * 10_240),
    "umt5_xxl": Counts(5_680_910_336, 256_384 * 4096, 4096 * 10_240),
    "qwen3_4b": Counts(4_022_468_096, 151_936 * 2560, 2560 * 9728),
    "qwen3_8b": Counts(7_568_405_504, 151_936 * 4096, 4096 * 12_288),
    "qwen25_vl_7b": Counts(7_747_169_280, 152_064 * 3584, 3584 * 18_944),
    "gemma2_2b": Counts(2_614_341_888, 256_000 * 2304, 2304 * 9216),
}
"""Counted over the published configurations; their sums are those of the families' text encoders."""

NO_LAYERS: Mapping[str, int] = {"clip_g": 32 * 3 * 1280 * 1280, "open_clip_h": 24 * 3 * 1024 * 1024}
"""``in_proj_weight`` of open_clip's ``nn.MultiheadAttention``, in all blocks."""
CLIP_ALONE: Mapping[frozenset[str], Family] = {
    frozenset(("clip_l",)): "sd15", frozenset(("clip_g",)): "sdxl_refiner", frozenset(("clip_l", "clip_g")): "sdxl",
}  # fmt: skip
"""The family that encodes with these alone: what is left on the card when a large encoder is on the CPU."""

_PLAIN = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Encoders:
    """What the text encoders on the card take together. All sizes in bytes."""

    weights_bytes: int
    layer_bytes: int
    notes: tuple[Message, ...] = ()


def encoders_of(request: Request, inspect: Inspect = inspect_file) -> Encoders | None:
    """Return the sizes of ``request``'s text encoders, ``None`` where it says nothing of them one by one.

    Encoders that the request does not name, or that the family does not have, are as the rest of the model says.
    """
    stored_too = request.host == "a1111" and unet_dtype(request) == "fp8"
    if not request.text_encoders and not stored_too:
        return None
    plain: WeightsDtype = "fp32" if compute_dtype(request) == "fp32" else "fp16"
    total, notes = 0, []
    for name in on_card(request):
        wanted = _wanted(request, name)
        size = _file_bytes(wanted, inspect) if wanted else None
        if wanted and wanted.checkpoint and size is None:
            notes.append(say("estimate.encoder_unusable", name=name))
        total += _counted_bytes(name, wanted.dtype if wanted else None, plain, stored_too) if size is None else size
    layer = max((ENCODERS[name].tokens for name in on_card(request)), default=0)
    return Encoders(total, weights_bytes(layer, plain), (*notes, *_cpu_notes(request)))


def encoder_sizes(request: Request, total_bytes: int) -> dict[str, int]:
    """Return how ``total_bytes``, what the encoders on the card take, falls to each of them, in the order of calls."""
    plain: WeightsDtype = "fp32" if compute_dtype(request) == "fp32" else "fp16"
    counted: dict[str, int] = {}
    for name in on_card(request):
        wanted = _wanted(request, name)
        counted[name] = _counted_bytes(name, wanted.dtype if wanted else None, plain, False)
    whole = sum(counted.values())
    return {name: total_bytes * size // whole for name, size in counted.items()}


def on_card(request: Request) -> tuple[str, ...]:
    """Return the names of the text encoders that work on the card."""
    elsewhere = {encoder.name for encoder in request.text_encoders if encoder.device == "cpu"}
    return tuple(item.name for item in SHAPES[request.model.family].encoders if item.name not in elsewhere)


def encoding_family(request: Request) -> Family | None:
    """Return the family whose text encoding runs on the card: another one where only CLIP is left there."""
    left = on_card(request)
    if not left or launched(request).text_on_cpu:
        return None
    if len(left) == len(SHAPES[request.model.family].encoders):
        return request.model.family
    return CLIP_ALONE.get(frozenset(left), request.model.family)


def unpacked_bytes(request: Request) -> int:
    """Return what the largest layer takes while a text encoder's small weights are made ready for a multiplication."""
    dtypes: dict[str, WeightsDtype | None] = {encoder.name: encoder.dtype for encoder in request.text_encoders}
    stored = [(name, dtypes.get(name)) for name in on_card(request)]
    return max(
        (
            scratch_bytes(dtype, ENCODERS[name].layer, compute_dtype(request))
            for name, dtype in stored
            if dtype is not None and dtype not in _PLAIN
        ),
        default=0,
    )


def _wanted(request: Request, name: str) -> TextEncoder | None:
    return next((encoder for encoder in request.text_encoders if encoder.name == name), None)


def _counted_bytes(name: str, dtype: WeightsDtype | None, plain: WeightsDtype, stored_too: bool) -> int:
    """A1111's fp8 storage takes the text encoders' layers as well, and leaves the tables of tokens as they are.

    So it does the projections of open_clip's attention, which are parameters of their own and no layers.
    """
    counts = ENCODERS[name]
    if dtype is None and stored_too:
        whole = counts.tokens + NO_LAYERS.get(name, 0)
        return weights_bytes(counts.all - whole, "fp8") + weights_bytes(whole, plain)
    return weights_bytes(counts.all, dtype or plain)


def _file_bytes(encoder: TextEncoder, inspect: Inspect) -> int | None:
    """Return what the encoder's own file comes to on the card, ``None`` where it cannot be told."""
    if encoder.checkpoint is None:
        return None
    try:
        found = [item for item in inspect(encoder.checkpoint).components if item.name.startswith("text_encoder")]
    except (VramGuardError, OSError):
        return None
    if not found:
        return None
    return sum(_loaded_bytes(item.dtype, item.parameters, item.loaded_bytes, encoder.dtype) for item in found)


def _loaded_bytes(stored: str, parameters: int, loaded_bytes: int, wanted: WeightsDtype | None) -> int:
    small = BITS_PER_WEIGHT.get(stored, Fraction(16)) < 16
    if small and loaded_bytes and wanted in (None, storage_type(stored)):
        return loaded_bytes
    return weights_bytes(parameters, wanted or "fp16")


def _cpu_notes(request: Request) -> tuple[Message, ...]:
    names: list[EncoderName] = [encoder.name for encoder in request.text_encoders if encoder.device == "cpu"]
    return (say("estimate.encoders_on_cpu", names=", ".join(names)),) if names else ()
