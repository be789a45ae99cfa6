"""Several generations in one life of the WebUI: what earlier ones leave behind in the allocator, and what that does.

In :func:`lib_vram.estimate.simulate.simulate` models are taken off the card as a whole, and a generation finds an
allocator that is as new. Here they are blocks in the allocator like everything else. What is loaded while a segment
is in use lies in it, so that the segment stays when the cache is given back: free memory in pieces, and a generation
that fits alone may fail after another one. *Free memory* unloads the models and with them the pieces; a restart does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from lib_vram.errors import BadInput, DeviceOutOfMemory
from lib_vram.estimate.estimator import Measured
from lib_vram.estimate.flags import conf_of
from lib_vram.estimate.physics import COMPUTED, Physics, trace_of
from lib_vram.estimate.residency import CONTEXT_BYTES, available_bytes
from lib_vram.estimate.result import PhaseName
from lib_vram.estimate.simulate import Simulation, Trace, error_text, known_work
from lib_vram.physics.allocator import AllocatorConf, Block, CachingAllocator
from lib_vram.request import Request

MODELS = frozenset(
    ("unet", "text_encoders", "vae", "controlnet", "image_encoder", "idle", "idle_models", "upscaler", "face_restore",
     "adapter", "detector", "preprocessor")
)  # fmt: skip
"""What is made of many blocks; the rest that is held are single ones."""
WEIGHT_BLOCKS = (29_491_200, 6_553_600, 1_638_400, 13_107_200, 3_276_800, 3_276_800, 1_638_400, 6_553_600)
"""Bytes of a model's blocks in turn. SDXL's UNet in half precision is made of such: convolutions and linear layers of
its three widths. The order of other models differs, and with it where exactly pieces are left."""


@dataclass(frozen=True)
class Life:
    """How each of several generations ended, one after the other in one process."""

    runs: tuple[Simulation, ...]
    fits_alone: bool
    """Whether the last one completes in a process that has just begun."""

    @property
    def in_pieces(self) -> bool:
        """Whether the last one fails only because of what the earlier ones left: freeing memory would help."""
        return self.fits_alone and self.runs[-1].outcome == "out_of_memory"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: that of the last generation, with all of them."""
        runs = [run.to_dict() for run in self.runs]
        return {**runs[-1], "runs": runs, "fits_alone": self.fits_alone, "in_pieces": self.in_pieces}


def simulate_life(requests: Sequence[Request], physics: Physics = COMPUTED, trace: Trace = trace_of) -> Life:
    """Return how ``requests`` end on one card, run in their order by one process; an error leaves it running.

    The allocator's setting is that of the first: it counts from the start of the process.

    Raises:
        BadInput: there is none, or they are not for the same host.
        NotReady: something in them cannot be computed yet.
    """
    if not requests:
        raise BadInput("REQUEST", got="no requests", takes="one or more")
    if len({request.host for request in requests}) > 1:
        raise BadInput("host", got=requests[-1].host, takes=f"{requests[0].host}, the host of the first request")
    process = _Process(requests[0])
    runs = tuple(process.run(request, known_work(request, physics), trace) for request in requests)
    last = requests[-1]
    alone = _Process(requests[0]).run(last, known_work(last, physics), trace)
    return Life(runs, alone.outcome == "completed")


class _Process:
    """One process' allocator, and the blocks of what is on the device."""

    def __init__(self, first: Request) -> None:
        self._allocator = CachingAllocator(None, AllocatorConf.parse(conf_of(first)))
        self._held: dict[str, list[Block]] = {}
        self._sizes: dict[str, int] = {}

    def run(self, request: Request, items: Iterable[Measured], trace: Trace) -> Simulation:
        allocator = self._allocator
        allocator.limit_bytes = available_bytes(request) - CONTEXT_BYTES
        allocator.peak_allocated_bytes = allocator.allocated_bytes
        phase: PhaseName | None = None
        try:
            for item in items:
                phase = item.placed.work.phase
                self._hold(dict(item.placed.resident))
                self._replay(item, trace)
                allocator.empty_cache()
        except DeviceOutOfMemory as error:
            self._drop(name for name in tuple(self._held) if name not in MODELS)
            peak_bytes = CONTEXT_BYTES + allocator.peak_allocated_bytes
            return Simulation("out_of_memory", phase, peak_bytes, error_text(request, error))
        self._drop(name for name in tuple(self._held) if name not in MODELS)
        allocator.empty_cache()
        return Simulation("completed", None, CONTEXT_BYTES + allocator.peak_allocated_bytes, "")

    def _replay(self, item: Measured, trace: Trace) -> None:
        """Run a piece of work; what it had taken when it failed is given back, as an error's frames are let go."""
        before = self._allocator.copy()
        try:
            trace(item.placed.component).replay(self._allocator)
        except DeviceOutOfMemory:
            before.peak_allocated_bytes = self._allocator.peak_allocated_bytes
            before.empty_cache()
            self._allocator = before
            raise

    def _hold(self, wanted: dict[str, int]) -> None:
        """Have exactly ``wanted`` on the device: first what goes, then what comes, in its host's order."""
        wanted.pop("context", None)
        self._drop(name for name in tuple(self._held) if self._sizes[name] != wanted.get(name))
        for name, size in wanted.items():
            if name not in self._held:
                self._sizes[name], blocks = size, self._held.setdefault(name, [])
                blocks.extend(self._allocator.malloc(part) for part in _blocks(name, size))

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            for block in self._held.pop(name):
                self._allocator.free(block)


def _blocks(name: str, size_bytes: int) -> Iterator[int]:
    """Yield the bytes of the blocks that something on the device is made of."""
    left = size_bytes
    for block in cycle(WEIGHT_BLOCKS) if name in MODELS else (size_bytes,):
        if left <= 0:
            return
        yield min(block, left)
        left -= block
