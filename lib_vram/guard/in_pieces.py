"""Whether what fits would fail all the same, because this WebUI's memory is in pieces; asked while it is at rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lib_vram.errors import NotReady
from lib_vram.estimate.estimator import Measured, measure
from lib_vram.estimate.physics import trace_of
from lib_vram.estimate.residency import CONTEXT_BYTES
from lib_vram.estimate.result import Estimate
from lib_vram.live.fragmentation import Step, shortage
from lib_vram.live.pieces import Pieces
from lib_vram.live.watch import Watch
from lib_vram.machine.torch_memory import Snapshot
from lib_vram.message import Message, say
from lib_vram.physics.alloc_conf import AllocatorConf
from lib_vram.request import Request

NOTE = "live.in_pieces"
MODELS = frozenset(
    ("unet", "text_encoder", "text_encoder_2", "text_encoders", "vae", "controlnet", "lora", "refiner", "block")
)
"""Parts of what is resident that are models; the rest is made during the run."""
SWAPS = "swap"
"""The part of a host that moves a model layer by layer: what it then has on the card is not known before."""


class InPieces:
    """Answers from memory while neither the request nor the allocator has changed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._snapshot: Snapshot | None = None
        self._answers: dict[Request, Message | None] = {}

    def noted(self, result: Estimate, request: Request) -> Estimate:
        """Return ``result``; where it fits and would fail in pieces, as tight and with that as its first note."""
        if result.verdict not in ("fits", "tight"):
            return result
        note = self._note(request)
        return result if note is None else dataclasses.replace(result, verdict="tight", notes=(note, *result.notes))

    def _note(self, request: Request) -> Message | None:
        if self._watch.is_running:
            return None
        snapshot = self._watch.pieces()
        if snapshot is None or not Pieces.of(snapshot).matters:
            return None
        if snapshot is not self._snapshot or len(self._answers) > 256:
            self._snapshot, self._answers = snapshot, {}
        if request not in self._answers:
            self._answers[request] = self._look(request, snapshot)
        return self._answers[request]

    def _look(self, request: Request, snapshot: Snapshot) -> Message | None:
        holding = self._watch.now()
        if holding.torch is None or holding.free_bytes is None:
            return None
        limit_bytes = holding.torch.reserved_bytes + holding.free_bytes
        found = shortage(snapshot, steps_of(request), limit_bytes, AllocatorConf.parse(request.alloc_conf))
        if found is None:
            return None
        return say(NOTE, free_bytes=found.free_bytes, largest_bytes=found.largest_bytes)


def steps_of(request: Request) -> Iterator[Step]:
    """Yield what ``request`` does, as far as all of its models stay on the card meanwhile."""
    for item in measure(request)[0]:
        sizes = dict(item.placed.resident)
        if SWAPS in sizes:
            continue
        try:
            trace = trace_of(item.placed.component)
        except NotReady:
            continue
        models_bytes = sum(size for name, size in item.placed.resident if name in MODELS)
        yield Step(models_bytes, _kept_bytes(item, models_bytes), trace)


def _kept_bytes(item: Measured, models_bytes: int) -> int:
    """Return what else is resident and made during the run: pictures, latents, a preview."""
    return max(0, item.placed.resident_bytes - CONTEXT_BYTES - models_bytes)
