"""A host to look at, whose card and allocator a test sets."""

from __future__ import annotations

import os

from lib_vram.live.picture import Weights
from lib_vram.machine.card import Card, Holder
from lib_vram.machine.torch_memory import Snapshot, TorchMemory
from lib_vram.units import GIB, MIB

OWN = os.getpid()


def card(**changes):
    """Return a card of 12 GiB: 2 held by others, 8 by this process, 2 free."""
    holders = (
        Holder(OWN, "python launch.py", 8 * GIB), Holder(41, "firefox", 1 * GIB), Holder(42, "firefox", 512 * MIB),
    )  # fmt: skip
    fields = {
        "name": "RTX", "total_bytes": 12 * GIB, "free_bytes": 2 * GIB, "used_by_others_bytes": 2 * GIB,
        "source": "nvml", "holders": holders,
    }  # fmt: skip
    return Card(**(fields | changes))


TORCH = TorchMemory(6 * GIB, 7 * GIB, highest_bytes=7 * GIB, changes=5)
WEIGHTS = (
    Weights("vae", "", 256 * MIB, 0), Weights("unet", "model.safetensors", 4 * GIB, 0),
    Weights("text_encoder", "", 0, GIB),
)  # fmt: skip


class Host:
    """Answers with what it is given and counts the questions."""

    def __init__(self):
        self.found, self.memory, self.weights, self.pieces = card(), TORCH, WEIGHTS, Snapshot((((GIB, False),),))
        self.busy = False
        self.asked = []

    def card(self):
        self.asked.append("card")
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def torch_memory(self):
        return self.memory

    def snapshot(self):
        self.asked.append("snapshot")
        return self.pieces

    def loaded_weights(self):
        self.asked.append("weights")
        return self.weights

    def is_busy(self):
        return self.busy


class Clock:
    """Time that a test moves."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now
