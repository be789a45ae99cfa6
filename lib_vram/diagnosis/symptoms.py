"""The symptom table: what people see, why it happens, and what helps. To add a row or a cure, add a line.

Words are in the catalogue's area ``symptoms``: ``<row>_title``, ``<row>_cause`` and ``cure_<name>``. A cure that hosts
name differently has ``cure_<name>_<host>`` beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lib_vram.message import Message, say, sentence

Action = Literal["fix", "batch_one", "tiled_vae", "native_size", "free", "unload", "restart"]
"""What a button of the page can do by itself."""

SETTINGS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "attention": (("cross_attention_optimization", frozenset({"a1111"})),),
    "fixed_vae": (("sd_vae", frozenset({"a1111", "reforge", "classic"})),),
    "group_by_model": (("sd_checkpoints_limit", frozenset({"a1111", "reforge"})),),
    "offload": (("gpu_weights_mb", frozenset({"forge"})),),
    "quantised": (("fp8_storage", frozenset({"a1111"})),),
    "smaller_upscaler": (("ESRGAN_tile", frozenset({"a1111", "forge", "reforge", "classic", "neo"})),),
    "train_a1111": (("unload_models_when_training", frozenset({"a1111"})),),
    "upcast": (("upcast_attn", frozenset({"a1111"})),),
    "upscale_tiled": (("ESRGAN_tile", frozenset({"a1111", "forge", "reforge", "classic", "neo"})),),
    "vae_full_precision": (("auto_vae_precision", frozenset({"a1111"})),),
    "weights_slider": (("gpu_weights_mb", frozenset({"forge"})),),
}
"""The setting that a cure is about, by the hosts on which it does something: an option of the settings page by its
key, or a field of the page by the name that the page's script has for it. Forge keeps many options without effect."""


@dataclass(frozen=True)
class Cure:
    """One instruction; ``action`` is the button that does it, where one can."""

    name: str
    action: Action | None = None

    def message(self, host: str | None = None) -> Message:
        """Return the instruction with the names that ``host`` uses."""
        special = f"symptoms.cure_{self.name}_{host}"
        return say(special if host and sentence(special) != special else f"symptoms.cure_{self.name}")

    def setting(self, host: str) -> str | None:
        """Return the setting to open for this cure on ``host``, ``None`` where there is none."""
        return next((name for name, hosts in SETTINGS.get(self.name, ()) if host in hosts), None)


@dataclass(frozen=True)
class Symptom:
    """One row of the table."""

    name: str
    cures: tuple[Cure, ...]
    is_memory: bool = True
    """Whether GPU memory is at fault; the other rows are what only looks like it."""

    @property
    def title(self) -> Message:
        """What a person sees."""
        return say(f"symptoms.{self.key}_title")

    @property
    def cause(self) -> Message:
        """Why it happens."""
        return say(f"symptoms.{self.key}_cause")

    @property
    def key(self) -> str:
        """The name as the catalogue's keys have it."""
        return self.name.replace("-", "_")


FIX = Cure("fix", "fix")
BATCH_ONE = Cure("batch_one", "batch_one")
NATIVE_SIZE = Cure("native_size", "native_size")
TILED_VAE = Cure("tiled_vae", "tiled_vae")
ATTENTION = Cure("attention")
HALF = Cure("half_precision")
QUANTISED = Cure("quantised")
OFFLOAD = Cure("offload")
FREE = Cure("free", "free")
RESTART = Cure("restart", "restart")
CLOSE_PROGRAMS = Cure("close_programs")

SYMPTOMS: tuple[Symptom, ...] = (
    Symptom("load-fails", (HALF, QUANTISED, OFFLOAD, Cure("lighter_model"), CLOSE_PROGRAMS)),
    Symptom("sampling-start", (FIX, NATIVE_SIZE, BATCH_ONE, ATTENTION, OFFLOAD)),
    Symptom("fails-at-end", (TILED_VAE, Cure("vae_half"), FIX)),
    Symptom("large-sizes", (NATIVE_SIZE, ATTENTION, Cure("upscale_tiled"), FIX)),
    Symptom("batch", (BATCH_ONE, Cure("count_instead"))),
    Symptom("upscaling", (Cure("hires_lower", "fix"), Cure("upscale_tiled"), TILED_VAE, Cure("smaller_upscaler"))),
    Symptom("extras", (Cure("extras_off"), Cure("low_vram_unit"), Cure("steps_apart"), OFFLOAD)),
    Symptom("worked-then-failed", (FREE, RESTART, Cure("group_by_model"), Cure("expandable_segments"))),
    Symptom("changed", (Cure("compare_last"), FIX, Cure("undo_change"))),
    Symptom("others-compete", (CLOSE_PROGRAMS, Cure("browser_acceleration"), Cure("second_instance"), FIX)),
    Symptom("held-while-idle", (Cure("end_leftover"), Cure("browser_acceleration"), FREE)),
    Symptom("one-block", (NATIVE_SIZE, ATTENTION, Cure("raise_cap"), TILED_VAE)),
    Symptom("driver-refused", (RESTART, Cure("update_driver"), Cure("reboot"), Cure("overclock_off"))),
    Symptom("video", (Cure("fewer_frames"), Cure("smaller_clip"), QUANTISED, Cure("cloud"))),
    Symptom("training", (Cure("train_resolution"), Cure("train_accumulate"), Cure("train_checkpointing"),
                         Cure("train_optimiser"), Cure("train_a1111"), Cure("cloud"))),
    Symptom("went-on", (TILED_VAE, FIX), is_memory=True),
    Symptom("card-too-small", (QUANTISED, Cure("lighter_model"), Cure("accept_slow"), Cure("cloud"))),
    Symptom("slow", (Cure("sysmem_policy"), FIX, Cure("weights_slider"), Cure("ram_free")), is_memory=False),
    Symptom("host-memory", (Cure("ram_free"), Cure("page_file"), Cure("offload_less"), Cure("smaller_file")),
            is_memory=False),
    Symptom("disk-full", (Cure("disk_space"), Cure("move_cache")), is_memory=False),
    Symptom("corrupt-file", (Cure("download_again"), Cure("inspect_file"), Cure("other_file")), is_memory=False),
    Symptom("black-or-nan", (Cure("vae_full_precision"), Cure("fixed_vae"), Cure("upcast"), Cure("other_checkpoint")),
            is_memory=False),
    Symptom("wrong-build", (Cure("update_driver"), Cure("matching_torch"), Cure("right_device")), is_memory=False),
    Symptom("device-fault", (Cure("overclock_off"), Cure("cool"), Cure("power"), Cure("update_driver"), Cure("reboot")),
            is_memory=False),
)  # fmt: skip

BY_NAME = {item.name: item for item in SYMPTOMS}


def cures(symptom: str | None) -> tuple[Cure, ...]:
    """Return the cures of a row, in the order in which to try them; empty for no row."""
    return BY_NAME[symptom].cures if symptom in BY_NAME else ()
