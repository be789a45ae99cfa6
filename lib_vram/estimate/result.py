"""The result of an estimate: plain, frozen nouns with their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lib_vram.message import Message, render, sentence

if TYPE_CHECKING:
    from lib_vram.physics.component import Source

PhaseName = Literal[
    "load", "text_encode", "controlnet_preprocess", "vae_encode", "sampling", "hires_upscale",
    "hires_sampling", "refiner_sampling", "vae_decode", "detailer", "face_restore",
]  # fmt: skip
Verdict = Literal["fits", "tight", "wont_fit", "unknown"]


def phase_name(name: PhaseName, language: str) -> str:
    """Return what people call the phase ``name`` in ``language``: ``VAE decode``."""
    return sentence(f"phase.{name}", language)


@dataclass(frozen=True)
class PhaseEstimate:
    """Memory of one phase of a generation. All sizes in bytes.

    The three numbers are activations alone; ``resident_bytes`` comes on top of each.
    """

    name: PhaseName
    resident_bytes: int
    floor_bytes: int
    minimum_bytes: int
    comfortable_bytes: int
    low_bytes: int
    high_bytes: int
    source: Source
    resident_parts: tuple[tuple[str, int], ...] = ()
    """What ``resident_bytes`` is made of, for the picture: (``"unet"``, bytes), largest first."""

    @property
    def needs_bytes(self) -> int:
        """The smallest amount of free memory with which this phase still runs."""
        return self.resident_bytes + self.minimum_bytes

    @property
    def peak_bytes(self) -> int:
        """The peak of allocated memory: what is resident and the activations' floor."""
        return self.resident_bytes + self.floor_bytes

    @property
    def wants_bytes(self) -> int:
        """What the phase takes when nothing limits it."""
        return self.resident_bytes + self.comfortable_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the contract's JSON form."""
        return {
            "name": self.name,
            "resident_bytes": self.resident_bytes,
            "floor_bytes": self.floor_bytes,
            "minimum_bytes": self.minimum_bytes,
            "comfortable_bytes": self.comfortable_bytes,
            "peak_bytes": self.peak_bytes,
            "source": self.source,
        }


@dataclass(frozen=True)
class Estimate:
    """Whether a generation fits, which phase binds, and by how much. All sizes in bytes.

    ``available_bytes`` is the card less what other programs hold. ``peak_bytes`` belongs to the
    binding phase: the one with the least room. ``low_bytes`` to ``high_bytes`` is its interval.
    """

    verdict: Verdict
    available_bytes: int
    binding_phase: PhaseName | None = None
    peak_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0
    phases: tuple[PhaseEstimate, ...] = ()
    notes: tuple[Message, ...] = ()

    @property
    def binding(self) -> PhaseEstimate | None:
        """The phase with the least room, ``None`` when nothing is known."""
        return next((phase for phase in self.phases if phase.name == self.binding_phase), None)

    @property
    def missing_bytes(self) -> int:
        """How much more memory the binding phase would need to run at all; 0 when it runs."""
        return max(0, self.binding.needs_bytes - self.available_bytes) if self.binding else 0

    def to_dict(self, language: str = "en") -> dict[str, Any]:
        """Return the contract's JSON form, with the notes as sentences in ``language``."""
        return {
            "verdict": self.verdict,
            "binding_phase": self.binding_phase,
            "available_bytes": self.available_bytes,
            "peak_bytes": self.peak_bytes,
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "phases": [phase.to_dict() for phase in self.phases],
            "notes": [render(note, language) for note in self.notes],
        }
