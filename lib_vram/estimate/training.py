"""What training in AUTOMATIC1111's Train tab needs: textual inversion and hypernetworks of SD 1.5 and SD 2.1.

A backward pass keeps what the forward pass computed. Without checkpointing that is every block of the forward trace;
with it (the Train tab always checkpoints residual and transformer blocks) it is less, by how much a trace without the
blocks' borders cannot say. So the answer is an interval without a best figure. It is for attention that keeps no
score matrix (SDPA, xFormers); pictures that the Train tab makes in between are not in it.

Checked against InvokeAI issue 3008 (SD 2.1, 512x512, textual inversion under autocast without checkpointing, Tesla T4):
7835 MiB at batch 1 and 13709 MiB at batch 4 are 1958 MiB a picture; the traces' kept blocks are 1967 MiB a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from lib_vram.errors import BadInput
from lib_vram.physics.component import Component
from lib_vram.physics.families import SHAPES
from lib_vram.physics.memory import component_memory, component_trace
from lib_vram.physics.program import GIVE_BACK

Method = Literal["textual_inversion", "hypernetwork"]

FAMILIES = ("sd15", "sd21")
"""What the Train tab can train: it knows no other family's loss."""
CONTEXT_WIDTH = {"sd15": 768, "sd21": 1024}
"""Of the text encoder's result: the size that a hypernetwork has for cross attention."""
WIDTHS = (320, 640, 1280)
"""Of the denoiser's transformer blocks, ticked in the Train tab from the start like the context's."""
BLOCKS = ((320, 1, 5), (640, 2, 5), (1280, 4, 5), (1280, 8, 1))
"""Of both families' denoisers: width, how much coarser than the latent, how many transformer blocks."""
FP32_BYTES = 4
OPTIMISER_COPIES = 4
"""AdamW in fp32: the weights, their gradients, and two moments."""
VECTORS = 75
"""The most that an embedding of the Train tab can have."""


@dataclass(frozen=True)
class TrainingMemory:
    """What PyTorch holds while training, from ``low_bytes`` to ``high_bytes``; the driver's own part comes on top."""

    low_bytes: int
    high_bytes: int


@lru_cache(maxsize=64)
def training_memory(method: Method, family: str, width: int, height: int, batch: int = 1) -> TrainingMemory:
    """Return what a training step takes. ``width`` and ``height`` in pixels; ``batch`` pictures a step.

    The low end has VAE (and for hypernetworks the text encoder) in RAM, as the setting for it does, and nothing
    kept beyond what the forward pass itself needs. The high end has all of the model on the card and keeps all.

    Raises:
        BadInput: the Train tab cannot train ``family``.
    """
    if family not in FAMILIES:
        raise BadInput("family", got=family, takes=", ".join(FAMILIES))
    denoise = _component(family, "denoise", width, height, batch)
    text = _component(family, "text_encode", width, height, batch)
    vae = _component(family, "vae_encode", width, height, batch)
    unet, words, pictures = (component_memory(item).weights_bytes for item in (denoise, text, vae))
    trained = trained_bytes(method, family)
    floor_bytes = component_trace(denoise).floor_bytes
    low = unet + trained + floor_bytes + (words if method == "textual_inversion" else 0)
    high = unet + words + pictures + trained + kept_bytes(denoise) + floor_bytes
    high += kept_bytes(text) if method == "textual_inversion" else _hypernetwork_kept(width, height, batch)
    return TrainingMemory(low, high)


def kept_bytes(component: Component) -> int:
    """Return what a backward pass without checkpointing keeps of ``component``'s forward pass: every block it takes.

    Blocks that are taken and given back at once are workspaces, which no backward pass needs.
    """
    trace = component_trace(component)
    return sum(trace.sizes[size] for slot, size in trace.operations if size != GIVE_BACK and slot >= 0)


def trained_bytes(method: Method, family: str) -> int:
    """Return weights, gradients and optimiser state of what is trained, at the Train tab's own settings."""
    context = CONTEXT_WIDTH[family]
    if method == "textual_inversion":
        parameters = VECTORS * context
    else:  # two small networks a size, for keys and for values, each dim -> 2 dim -> dim
        parameters = sum(2 * (4 * dim * dim + 3 * dim) for dim in (context, *WIDTHS))
    return OPTIMISER_COPIES * FP32_BYTES * parameters


def _hypernetwork_kept(width: int, height: int, batch: int) -> int:
    """Return what the small networks keep in self attention: input, hidden layer and result, twice."""
    pixels = SHAPES["sd15"].latent_pixels
    kept = 0
    for dim, coarser, blocks in BLOCKS:
        tokens = -(-width // (pixels * coarser)) * -(-height // (pixels * coarser))
        kept += blocks * tokens * dim * 2 * (1 + 2 + 1)
    return batch * kept * FP32_BYTES


def _component(family: str, part: str, width: int, height: int, batch: int) -> Component:
    return Component(family, part, width, height, batch=batch, cfg=False, host="a1111")  # type: ignore[arg-type]


@dataclass(frozen=True)
class VideoMemory:
    """What a video takes beside the weights: a step of sampling, and the decoding of all frames. In bytes."""

    step_low_bytes: int
    step_high_bytes: int
    decode_low_bytes: int
    decode_high_bytes: int


@lru_cache(maxsize=64)
def video_memory(family: str, width: int, height: int, frames: int) -> VideoMemory:
    """Return what ``frames`` pictures of ``width`` x ``height`` pixels take in one run of a video family.

    Raises:
        NotReady: there is no profile of this family yet.
        BadInput: ``family`` makes pictures only.
    """
    step, decode = (
        component_memory(
            Component(family, part, width, height, frames=frames, dtype="bf16", cfg=False, host="neo")  # type: ignore[arg-type]
        )
        for part in ("denoise", "vae_decode")
    )
    return VideoMemory(step.low_bytes, step.high_bytes, decode.low_bytes, decode.high_bytes)
