"""What every host answers: the one interface behind which the WebUIs differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lib_vram.host.freeing import Freed, How, Level, Restarting
from lib_vram.live.picture import Weights
from lib_vram.machine.card import Card
from lib_vram.machine.torch_memory import Snapshot, TorchMemory
from lib_vram.plan.result import Plan
from lib_vram.request import HostName, Mode, Request

GuardMode = Literal["off", "show", "ask", "fix"]


@dataclass(frozen=True)
class Settings:
    """The user's choices in the host's settings page."""

    mode: GuardMode = "ask"
    refuse_api: bool = False
    """Whether an API call that will not fit is refused with an error instead of run with a warning."""
    language: str = "en"
    keep: tuple[str, ...] = ()
    """What a plan never changes: names of ``lib_vram.plan.preferences.KEPT``."""
    free_between: tuple[str, ...] = ()
    """When memory is freed between two generations: names of ``lib_vram.guard.between.CHOICES``."""


@dataclass(frozen=True)
class FieldWrite:
    """One field of the page that a fix writes. ``field`` is a logical name that the page's script knows."""

    field: str
    value: Any
    previous: Any


class Host(Protocol):
    """A WebUI, or the Lab standing in for one. Nothing outside ``lib_vram/host`` asks which it is."""

    name: HostName
    title: str
    own_controls: frozenset[str]
    """Names of the run's argument that our own accordion shows; for the others the host has a control of its own."""
    on_failure: Callable[[str, Any], object] | None
    """Hears the text of a failed run, and its processing object, on hosts that keep no record of their own."""

    def start(self) -> None:
        """Put in place what lasts as long as the extension is loaded; :meth:`restore` without a run takes it away."""

    def version(self) -> str:
        """Return the host's own version, for people; ``""`` when it cannot be had."""

    def settings(self) -> Settings:
        """Return the user's choices as they are now."""

    def card(self) -> Card | None:
        """Return the card that the host computes on as it is now, ``None`` when there is none."""

    def launch_arguments(self) -> tuple[str, ...]:
        """Return all that the host was started with, as its own parser got it; passwords and keys included."""

    def request_from_form(self, tab: Mode, form: Mapping[str, Any]) -> Request:
        """Return the request that the page's fields describe, with the host's state for the rest.

        Raises:
            BadInput: a field is not usable; ``NotReady`` when the loaded model's family is not known.
        """

    def request_from_processing(self, p: Any) -> Request:
        """Return the request that the host's processing object ``p`` describes, in ``before_process``."""

    def field_writes(self, plan: Plan, original: Request) -> tuple[FieldWrite, ...]:
        """Return what the page must change for ``plan``, in order."""

    def apply(self, p: Any, plan: Plan, original: Request) -> None:
        """Write ``plan`` into ``p`` in ``before_process``; what outlives the run is restored by :meth:`restore`."""

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on, for this run, what ``request`` asks of our own levers (tiled VAE, cond and uncond apart).

        ``None`` when nothing could be computed: then what the run's own argument asks for.
        """

    def before_sampling(self, p: Any, latent: Any) -> None:
        """Do what the run of ``p`` needs anew before each of its samplings, which begins with ``latent``."""

    def joins(self, p: Any) -> bool:
        """Whether ``p`` is a copy that another script made of a processing object whose run is going on.

        Nothing is decided about such a copy: what was decided about the run holds. Copies that ask for another
        generation are runs of their own.
        """

    def end_run(self, p: Any) -> None:
        """Undo what was switched on for the run of ``p``; what was written into ``p`` stays for other scripts."""

    def restore(self, p: Any = None) -> None:
        """Undo what :meth:`apply` and :meth:`prepare_run` changed for the run of ``p``, ``None``: for every run.

        Safe to call at any time. A run inside another (a detailer's) must not lose the outer one's changes.
        """

    def torch_memory(self) -> TorchMemory | None:
        """Return what the host's allocator holds on the card, ``None`` when it computes on none."""

    def snapshot(self) -> Snapshot | None:
        """Return the allocator's pieces, ``None`` where they cannot be had."""

    def loaded_weights(self) -> tuple[Weights, ...]:
        """Return the loaded models with their real bytes on the card and in RAM; loads and moves nothing."""

    def is_busy(self) -> bool:
        """Whether a generation is at work."""

    def folders(self) -> Mapping[str, str]:
        """Return the folders whose disks matter, by what they are for: ``models``, ``temp``."""

    def is_open_to_others(self) -> bool:
        """Whether the page can be reached from other machines without the user having allowed changes."""

    def free(self, level: Level) -> Freed:
        """Give memory back: what is only kept in reserve (``cache``), or what the host can load again (``models``).

        Raises:
            Busy: a generation is at work.
        """

    def make_room(self, level: Level) -> None:
        """Free as :meth:`free` does, from within the run that is about to begin and holds the host's queue."""

    def switches_checkpoint(self, request: Request) -> bool:
        """Whether ``request`` runs another checkpoint than the one in memory."""

    def restart(self, how: How) -> Restarting:
        """Reload the page's server or start the whole process anew; otherwise say how to do it by hand.

        Raises:
            Busy: a generation is at work.
        """
