"""Who holds the card at one moment: a list of owners that adds up to the card, as far as its parts can be known."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lib_vram.machine.card import Card, Holder
from lib_vram.machine.torch_memory import TorchMemory

WeightsKind = Literal[
    "unet", "text_encoder", "vae", "checkpoint", "controlnet", "lora", "upscaler", "face_restore", "interrogator",
    "model",
]  # fmt: skip
"""What a loaded model is for; ``checkpoint`` is a whole one that is kept beside the one in use."""
OwnerKind = Literal["program", "others", "driver", "weights", "tensors", "cache", "free"]

MOST_PROGRAMS = 5
"""Programs that are named one by one; the rest is one owner."""


@dataclass(frozen=True)
class Weights:
    """One loaded model: the real bytes of its parameters, by where they are now."""

    kind: WeightsKind
    name: str
    """The file or class, for people; ``""`` when the kind says it all."""
    card_bytes: int
    ram_bytes: int


@dataclass(frozen=True)
class Owner:
    """Somebody who holds ``size_bytes`` of the card. ``part`` is a :data:`WeightsKind` for weights."""

    kind: OwnerKind
    size_bytes: int
    name: str = ""
    part: str = ""


@dataclass(frozen=True)
class Holding:
    """What the card, torch and the host said at one moment, and what follows from it. ``None`` is not known."""

    card: Card | None
    torch: TorchMemory | None
    weights: tuple[Weights, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        """Whether the card is a virtual one under a host that computes elsewhere."""
        return self.card is not None and self.card.source == "virtual" and self.torch is None

    @property
    def others_bytes(self) -> int | None:
        """What other programs hold."""
        return self.card.used_by_others_bytes if self.card else None

    @property
    def used_bytes(self) -> int | None:
        """What is in use on the card, by whomever."""
        card, torch = self.card, self.torch
        if card is None or card.free_bytes is None:
            return None
        if card.source == "virtual" and torch is not None:
            used_bytes = (card.used_by_others_bytes or 0) + torch.reserved_bytes + (torch.driver_bytes or 0)
            return min(card.total_bytes, used_bytes)
        return card.total_bytes - card.free_bytes

    @property
    def driver_bytes(self) -> int | None:
        """What the driver holds for this process: its context and kernels."""
        if self.torch is None:
            return None
        if self.torch.driver_bytes is not None:
            return self.torch.driver_bytes
        if self.used_bytes is None or self.others_bytes is None:
            return None
        return max(0, self.used_bytes - self.others_bytes - self.torch.reserved_bytes)

    @property
    def driver_is_measured(self) -> bool:
        """Whether that figure is the driver's own; otherwise a usual one stands in its place."""
        if self.torch is not None and self.torch.driver_bytes is not None:
            return True
        holders = self.card.holders if self.card else ()
        return any(item.pid == os.getpid() and item.used_bytes is not None for item in holders)

    @property
    def weights_bytes(self) -> int:
        """All loaded models on the card, never more than what torch has allocated."""
        total_bytes = sum(item.card_bytes for item in self.weights)
        return min(total_bytes, self.torch.allocated_bytes) if self.torch else total_bytes

    @property
    def tensors_bytes(self) -> int | None:
        """Allocated and no model's: activations, results, and what somebody has kept."""
        return None if self.torch is None else self.torch.allocated_bytes - self.weights_bytes

    @property
    def cache_bytes(self) -> int | None:
        """Reserved, and used by nothing."""
        return None if self.torch is None else self.torch.reserved_bytes - self.torch.allocated_bytes

    @property
    def free_bytes(self) -> int | None:
        """Free on the card."""
        if self.card is None or self.used_bytes is None:
            return None
        return self.card.total_bytes - self.used_bytes


def owners(holding: Holding) -> tuple[Owner, ...]:
    """Return the owners of the card in the order in which they are drawn; nothing that is not known."""
    found = [*_programs(holding)]
    if holding.torch is not None:
        found.append(Owner("driver", holding.driver_bytes or 0))
        found += _weights(holding)
        found.append(Owner("tensors", holding.tensors_bytes or 0))
        found.append(Owner("cache", holding.cache_bytes or 0))
    found = [item for item in found if item.size_bytes > 0]
    if holding.free_bytes is not None:
        found.append(Owner("free", holding.free_bytes))
    return tuple(found)


def _weights(holding: Holding) -> Iterable[Owner]:
    """Yield the models on the card, the largest first; shrunk together where some of them share memory."""
    total_bytes = sum(item.card_bytes for item in holding.weights)
    share = holding.weights_bytes / total_bytes if total_bytes else 0.0
    for item in sorted(holding.weights, key=lambda weights: -weights.card_bytes):
        yield Owner("weights", int(item.card_bytes * share), item.name, item.kind)


def _programs(holding: Holding) -> Iterable[Owner]:
    """Yield the other programs by name, several of one name as one, and what nobody is named for."""
    left_bytes = holding.others_bytes or 0
    by_name: dict[str, int] = {}
    for holder in _others(holding.card.holders if holding.card else ()):
        by_name[holder.name] = by_name.get(holder.name, 0) + (holder.used_bytes or 0)
    named = sorted(by_name.items(), key=lambda item: -item[1])[:MOST_PROGRAMS]
    for name, size_bytes in named:
        size_bytes = min(size_bytes, left_bytes)
        left_bytes -= size_bytes
        yield Owner("program", size_bytes, name)
    yield Owner("others", left_bytes)


def _others(holders: tuple[Holder, ...]) -> Iterable[Holder]:
    return (item for item in holders if item.pid != os.getpid() and item.name and item.used_bytes)
