"""What A1111 and Forge share: reading the page, the processing object and the options; writing a plan back."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from lib_vram.errors import NotReady
from lib_vram.guard.fail_open import fail_open
from lib_vram.host import asked as asking
from lib_vram.host import (
    fields,
    freeing,
    img_batches,
    levers_idle,
    levers_preview,
    levers_upscaler,
    loaded_text,
    networks,
    owners,
    units,
)
from lib_vram.host.asked import Asked
from lib_vram.host.base import FieldWrite, GuardMode, Settings
from lib_vram.host.failures import WebuiErrors
from lib_vram.host.headers import inspect_file
from lib_vram.host.levers import cheaper_preview, levers_of
from lib_vram.host.patches import Patches, Run, Runs
from lib_vram.host.unet_patches import patches_of
from lib_vram.machine.card import Card
from lib_vram.machine.cards import current_card
from lib_vram.message import language_of
from lib_vram.physics.families import LOADED
from lib_vram.plan.result import Plan
from lib_vram.request import Hires, HostName, Mode, Request
from lib_vram.units import MIB

MODE_KEY = "vram_guard_mode"
REFUSE_KEY = "vram_guard_refuse_api"
KEEP_KEY = "vram_guard_keep"
CHECKPOINT = "sd_model_checkpoint"
"""The hosts' option for the selected checkpoint."""
FREE_BETWEEN_KEY = "vram_guard_free_between"
MODES: tuple[GuardMode, ...] = ("off", "show", "ask", "fix")

WHAT_IS_ASKED = (
    "width", "height", "batch_size", "n_iter", "enable_hr", "hr_scale", "hr_resize_x", "hr_resize_y", "prompt",
    "override_settings",
)  # fmt: skip
"""Fields of a processing object by which a copy asks for another generation than its original."""

GROWING_HOSTS = frozenset(("forge", "neo"))
"""Hosts to which architectures are added that have no name here."""

_FORMS_REMEMBERED = 64

_of_run: ContextVar[Mapping[str, Any]] = ContextVar("options_of_run", default=MappingProxyType({}))
"""Options that the run at hand sets for itself, while its request is made."""


class WebUI(owners.LookedAt):
    """A host of the A1111 line. Subclasses say how theirs keeps its memory."""

    name: HostName
    title: str
    own_controls: frozenset[str] = frozenset({"apart", "unload_idle", "live_preview", "upscaler_tile"})
    """Names of the run's argument that our own accordion shows: for the others the host has a control of its own."""
    cheap_preview = "Approx cheap"
    """The host's live preview that needs no model."""
    deaf_options: frozenset[str] = frozenset({"fp8_storage", "cross_attention_optimization"})
    """Options that count when they are set in the settings, but not when a run overrides them."""
    memory_flags: frozenset[str] = frozenset()
    """Command line flags that decide about memory, without their dashes."""

    def __init__(self) -> None:
        self.runs = Runs(WebuiErrors().job)
        self.on_failure: Callable[[str, Any], object] | None = None
        self._scaled: OrderedDict[Request, tuple[int, int]] = OrderedDict()
        self.meanwhile: dict[str, Any] = {}
        """What the user's settings say of options that a run has otherwise at the moment."""
        self._held: dict[str, Any] = {}
        """How the run has them."""
        self._saving = Patches()

    def start(self) -> None:
        """Put in place what lasts as long as the extension is loaded: nothing on most hosts."""

    def _failed(self, text: str, p: Any) -> None:
        if self.on_failure is not None:
            self.on_failure(text, p)

    # what the host is

    def version(self) -> str:
        """Return the host's own version; ``""`` when it cannot be had."""
        raise AttributeError(f"{type(self).__name__} does not say its version")

    def settings(self) -> Settings:
        """Return the user's choices from the host's settings page."""
        mode = self.option(MODE_KEY, "ask")
        return Settings(
            mode=mode if mode in MODES else "ask",
            refuse_api=bool(self.option(REFUSE_KEY, False)),
            language=language_of(self.option("localization", None)),
            keep=_names(self.option(KEEP_KEY, ())),
            free_between=_names(self.option(FREE_BETWEEN_KEY, ())),
        )

    def card(self) -> Card | None:
        """Return the card that the host computes on, ``None`` when there is none."""
        return current_card()

    def is_open_to_others(self) -> bool:
        """Whether other machines can reach the page and the user has not allowed changes from there."""
        from modules import shared

        return bool(getattr(shared.cmd_opts, "disable_extension_access", False))

    def free(self, level: freeing.Level) -> freeing.Freed:
        """Give memory back in the host's own way. Raises ``Busy`` while a generation is at work."""
        return freeing.free(level, self.card, self.unload_models, self.empty_caches)

    def make_room(self, level: freeing.Level) -> None:
        """Free as :meth:`free` does, from within the run that is about to begin."""
        freeing.make_room(level, self.unload_models, self.empty_caches)

    def switches_checkpoint(self, request: Request) -> bool:
        """Whether ``request`` runs another checkpoint than the one in memory."""
        path = request.model.checkpoint
        return path is not None and self.loaded_model() is not None and not self.is_loaded(path)

    def unload_models(self) -> None:
        """Take the models off the card such that the next run finds them again."""
        raise AttributeError(f"{type(self).__name__} does not unload its models")

    def empty_caches(self) -> None:
        """Give PyTorch's cache back to the driver."""
        from modules import devices

        devices.torch_gc()

    def restart(self, how: freeing.How) -> freeing.Restarting:
        """Reload the page or restart the process, where this launcher can. Raises ``Busy`` during a generation."""
        return freeing.restart(how)

    def option(self, key: str, default: Any) -> Any:
        """Return an option of the host as the user has it, ``default`` where this host has no such option."""
        from modules import shared

        if key in self.meanwhile:
            return self.meanwhile[key]
        if key in _of_run.get():
            return _of_run.get()[key]
        options = shared.opts
        if key in options.data or key in getattr(options, "data_labels", {}):
            return getattr(options, key)
        return default

    # requests

    def request_from_form(self, tab: Mode, form: Mapping[str, Any]) -> Request:
        """Return the request that the page's fields describe. Reads only; never loads a model.

        Raises:
            BadInput: a field is not usable; ``NotReady`` without a card or a known model family.
        """
        want = self.asked_by_form(tab, form)
        request = self._request(want)
        if want.image_size:
            self._scaled[request] = want.image_size
            while len(self._scaled) > _FORMS_REMEMBERED:
                self._scaled.popitem(last=False)
        return request

    def request_from_processing(self, p: Any) -> Request:
        """Return the request that ``p`` describes, in ``before_process``. Raises as :meth:`request_from_form`.

        Options that the run will have otherwise than the settings (``override_settings``) count as the run has them.
        """
        before = _of_run.set(self.overridden(p))
        try:
            return self._request(self.asked(p))
        finally:
            _of_run.reset(before)

    def overridden(self, p: Any) -> dict[str, Any]:
        """Return the options that ``p`` has the host set for its run, those that take effect in it.

        Its checkpoint is not among them: :meth:`asked` says it.
        """
        overrides = getattr(p, "override_settings", None) or {}
        left_out = self.deaf_options | {CHECKPOINT}
        return {key: value for key, value in overrides.items() if key not in left_out}

    def asked_by_form(self, tab: Mode, form: Mapping[str, Any]) -> Asked:
        """Return what the page's fields ask for. Raises as :meth:`request_from_form`."""
        return asking.from_form(tab, form)

    def asked(self, p: Any) -> Asked:
        """Return what ``p`` asks for."""
        asked = asking.from_processing(p, units.own_argument(p), units.controlnets(p))
        patches = patches_of(p)
        width, height = patches.size or (asked.width, asked.height)
        known = self.knows_checkpoint(asked.checkpoint)
        return dataclasses.replace(
            asked, width=width, height=height, detailer=units.detailer(p), patches=patches,
            checkpoint=asked.checkpoint if known else None,
        )  # fmt: skip

    @staticmethod
    def knows_checkpoint(name: str | None) -> bool:
        """Whether the host finds the checkpoint ``name`` of an override: it leaves out one that it does not know."""
        aliases = getattr(sys.modules.get("modules.sd_models"), "checkpoint_aliases", None)
        return name is None or aliases is None or name in aliases

    def _request(self, want: Asked) -> Request:
        card = self.card()
        if card is None:
            raise NotReady("device", got="no GPU", takes="a card: without one there is nothing to compute")
        data = self._common(want, card) | self.host_part(want, card)
        return Request.from_dict({name: value for name, value in data.items() if value is not None})

    def _common(self, want: Asked, card: Card) -> dict[str, Any]:
        path = self.checkpoint_path(want.checkpoint)
        family = self.family_of(path)
        width, height, hires = self._sizes(want)
        weights_dtype = self.weights_dtype(path, card)
        in_fp8 = want.fp8_weights and self.can_store_fp8(weights_dtype)
        return {
            "host": self.name,
            "host_args": self.host_arguments(),
            "alloc_conf": _alloc_conf(),
            "device": {
                "name": card.name,
                "total_bytes": card.total_bytes,
                "used_by_others_bytes": card.used_by_others_bytes or 0,
            },
            "system": _system(),
            "model": {
                "family": family, "checkpoint": path, "weights_dtype": weights_dtype,
                "storage_dtype": "fp8" if in_fp8 else None, "variant": self._variant(path),
                **(loaded_text.held(self.loaded_model()) if family == LOADED else {}),
            },
            "attention": want.attention or self.attention(card),
            "live_preview": cheaper_preview(want.live_preview, levers_preview.live_preview(self)),
            "mode": want.mode, "width": width, "height": height,
            "batch_size": want.batch_size, "batch_count": want.batch_count, "cfg_scale": want.cfg_scale,
            "hires": vars(hires) if hires else None,
            "hires_model": self._hires_model(want, path, card) if hires else None,
            "start_picture": fields.picture(want.start_picture) if want.start_picture else None,
            "reference_images": [fields.picture(size) for size in self.references(want, family, path)],
            "controlnets": [fields.control_unit(unit, family, weights_dtype) for unit in want.controlnets],
            **fields.patches(want.patches),
            "detailer": dataclasses.asdict(want.detailer) if want.detailer else None,
            "restore_faces": self._face_restorer(want),
            "token_merging_ratio": self._token_merging_ratio(want.mode),
            "hypertile": self._hypertile(),
            "refiner": self._refiner(want),
            "loras": [{"bytes": lora.bytes} for lora in networks.loras(want.prompts, want.styles)],
            "upscaler_tile": self._upscaler_tile(want, hires),
            "idle_models": [] if want.unload_idle else [
                {"kind": idle.kind, "bytes": idle.bytes} for idle in self.idle_models(want)
            ],
        }  # fmt: skip

    def _face_restorer(self, want: Asked) -> str | None:
        """Return the face restorer of the settings where this run, or every run, restores faces."""
        if not (want.restores_faces or self.option("face_restoration", False)):
            return None
        name = str(self.option("face_restoration_model", "CodeFormer")).lower()
        return name if name in FACE_RESTORERS else None

    def _token_merging_ratio(self, mode: Mode) -> float:
        """Return the least by which the settings merge tokens in any pass: the others then need no more."""
        ratio = self.option("token_merging_ratio", 0.0) or 0.0
        other = self.option("token_merging_ratio_img2img" if mode == "img2img" else "token_merging_ratio_hr", 0.0)
        return float(min(ratio, other or ratio))

    def _hypertile(self) -> dict[str, Any] | None:
        """Return HyperTile's settings in A1111, where it is on for every pass."""
        unet, vae = (bool(self.option(f"hypertile_enable_{part}", False)) for part in ("unet", "vae"))
        if not (unet or vae):
            return None
        names = ("max_tile_unet", "max_tile_vae", "swap_size_unet", "max_depth_unet")
        tile, vae_tile, swap, depth = (
            int(self.option(f"hypertile_{name}", default)) for name, default in zip(names, (256, 128, 3, 3))
        )
        return {"unet": unet, "vae": vae, "unet_tile_size": tile, "vae_tile_size": vae_tile, "swap_size": swap,
                "depth": depth}  # fmt: skip

    def _upscaler_tile(self, want: Asked, hires: Hires | None) -> int | None:
        setting = levers_upscaler.tile_in_settings(self, hires.upscaler) if hires else None
        if setting is None or not want.upscaler_tile:
            return setting
        return min(setting or want.upscaler_tile, want.upscaler_tile)

    def can_store_fp8(self, weights_dtype: str) -> bool:
        """Whether this host can store weights of that type in fp8 for one run."""
        return False

    def idle_models(self, want: Asked) -> list[levers_idle.Idle]:
        """Return the models that the host keeps on the card and that ``want`` does not use."""
        return list(levers_idle.of_all_hosts(want))

    def host_part(self, want: Asked, card: Card) -> dict[str, Any]:
        """Return the fields of a request that this host decides in its own way."""
        raise AttributeError(f"{type(self).__name__} has no fields of its own")

    def weights_dtype(self, path: str | None, card: Card) -> str:
        """Return the type in which this host keeps the weights."""
        raise AttributeError(f"{type(self).__name__} does not say its weights' type")

    def attention(self, card: Card) -> str:
        """Return the attention that this host computes with."""
        raise AttributeError(f"{type(self).__name__} does not say its attention")

    def _sizes(self, want: Asked) -> tuple[int, int, Hires | None]:
        """Return first-pass size and second pass; an old option turns width and height into the final size."""
        if want.hires is None or not self.option("use_old_hires_fix_width_height", False):
            return want.width, want.height, want.hires
        scale = (512 * 512 / max(1, want.width * want.height)) ** 0.5
        first = (math.ceil(scale * want.width / 64) * 64, math.ceil(scale * want.height / 64) * 64)
        return *first, Hires(want.hires.scale, want.width, want.height, want.hires.upscaler)

    def _refiner(self, want: Asked) -> dict[str, Any] | None:
        if want.refiner is None or want.refiner_switch_at >= 1:
            return None
        path = self.checkpoint_path(want.refiner)
        family = inspect_file(path).family if path else None
        refined = "first" if self.option("hires_fix_refiner_pass", "second pass") == "first pass" else "second"
        return {
            "family": family or "sdxl_refiner", "switch_at": want.refiner_switch_at, "refined_pass": refined,
            "checkpoint": path if family else None,
        }  # fmt: skip

    def _hires_model(self, want: Asked, first: str | None, card: Card) -> dict[str, Any] | None:
        """Return the checkpoint of the second pass, ``None`` for the first one's or one of no known family."""
        path = self.checkpoint_path(want.hr_checkpoint) if want.hr_checkpoint else first
        family = inspect_file(path).family if path and path != first else None
        if family is None:
            return None
        weights_dtype = self.weights_dtype(path, card)
        return {"family": family, "checkpoint": path, "weights_dtype": weights_dtype, "variant": self._variant(path)}

    @staticmethod
    def _variant(path: str | None) -> str:
        return fields.variant(inspect_file(path) if path else None)

    def references(self, want: Asked, family: str, path: str | None) -> tuple[tuple[int, int], ...]:
        """Return the sizes of the pictures whose latents go through the model at ``path`` beside that of the run."""
        return ()

    def launch_arguments(self) -> tuple[str, ...]:
        """Return what the host was started with: it adds ``COMMANDLINE_ARGS`` to ``sys.argv`` itself."""
        return tuple(sys.argv[1:])

    def host_arguments(self) -> list[str]:
        """Return the host's command line flags that decide about memory."""
        return [flag for flag in sys.argv[1:] if flag.split("=")[0].lstrip("-") in self.memory_flags]

    def managed_idle(self, memory: Any, want: Asked) -> list[levers_idle.Idle]:
        """Return what a memory manager (its module) keeps beside the model in use, if ``want`` runs with that model.

        Another checkpoint is loaded after everything has been sent away.
        """
        if not self.is_loaded(self.checkpoint_path(want.checkpoint)):
            return []
        return list(levers_idle.managed(memory, self.loaded_model(), want))

    # the checkpoint

    def checkpoint_path(self, name: str | None) -> str | None:
        """Return the file of the checkpoint called ``name``, of the selected one when ``None``; nothing is loaded."""
        from modules import sd_models

        info = sd_models.get_closet_checkpoint_match(name or self.option(CHECKPOINT, None) or "")
        info = info or next(iter(sd_models.checkpoints_list.values()), None)
        return os.path.abspath(info.filename) if info is not None else None

    def family_of(self, path: str | None) -> str:
        """Return the model family in the file's header, else that of the loaded model if it is this file's.

        In hosts that gain architectures, a loaded model of no known family is ``loaded``: its classes can be traced.

        Raises:
            NotReady: neither says.
        """
        family = inspect_file(path).family if path else None
        family = family or self._loaded_family(path)
        if family is None and self.name in GROWING_HOSTS and self.is_loaded(path):
            return LOADED
        if family is None:
            raise NotReady("model.family", got=os.path.basename(path or "") or "no checkpoint", takes="a known model")
        return family

    def loaded_model(self) -> Any | None:
        """Return the model in memory, ``None`` when none is; the host's own ``shared.sd_model`` would load one."""
        from modules import sd_models

        model = sd_models.model_data.sd_model
        return model if getattr(model, "sd_checkpoint_info", None) is not None else None

    def is_loaded(self, path: str | None) -> bool:
        """Return whether the model in memory is that of the file ``path``."""
        model = self.loaded_model()
        return model is not None and path is not None and os.path.abspath(model.sd_checkpoint_info.filename) == path

    def _loaded_family(self, path: str | None) -> str | None:
        model = self.loaded_model()
        if not self.is_loaded(path):
            return None
        flags = {"is_sdxl": "sdxl", "is_sd2": "sd21", "is_sd1": "sd15"}
        return next((family for flag, family in flags.items() if getattr(model, flag, False)), None)

    # writing a plan

    def field_writes(self, plan: Plan, original: Request) -> tuple[FieldWrite, ...]:
        """Return what the page must change for ``plan``, in the order of the fields on the page."""
        changed = plan.request
        pairs = [*self._size_pairs(original, changed), *_batch_pairs(original, changed)]
        pairs += self._hires_pairs(original, changed)
        pairs += self.lever_pairs(original, changed)
        return tuple(FieldWrite(field, after, before) for field, before, after in pairs if before != after)

    def lever_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return (field, before, after) of this host's memory switches."""
        before, after = not original.batch_cond_uncond, not changed.batch_cond_uncond
        return [("cond_uncond_apart", before, after), *self._own_pairs(original, changed)]

    @staticmethod
    def reserve_pair(original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return our own control for the memory that stays free: 0 leaves it to the host."""
        before, after = (request.forge.inference_memory_bytes for request in (original, changed))
        return [("reserve_mb", 0, -(-after // MIB))] if before != after else []

    def _own_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        """Return the controls of our accordion that say ``""``, 0 or off where the settings decide."""
        pairs: list[tuple[str, Any, Any]] = [
            ("unload_idle", False, bool(original.idle_models) and not changed.idle_models),
            ("fp8_weights", *(request.model.storage_dtype == "fp8" for request in (original, changed))),
        ]
        for name in ("live_preview", "attention", "upscaler_tile"):
            before, after = getattr(original, name), getattr(changed, name)
            if before != after:
                pairs.append((name, "" if isinstance(after, str) else 0, after))
        for place, (unit, then) in enumerate(zip(original.controlnets, changed.controlnets, strict=False)):
            pairs.append((f"controlnet_low_vram:{place}", unit.low_vram, then.low_vram))
        return pairs

    def _size_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        image = self._scaled.get(original)
        if image is None:
            return [("width", original.width, changed.width), ("height", original.height, changed.height)]
        before = min(original.width / image[0], original.height / image[1])
        after = min(changed.width / image[0], changed.height / image[1])
        if original.width == changed.width and original.height == changed.height:
            return []
        return [("resize_scale", round(before, 4), int(after * 100) / 100)]

    def _hires_pairs(self, original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
        before, after = original.hires, changed.hires
        if before is None or before == after:
            return []
        if after is None:
            return [("enable_hr", True, False)]
        if self.option("use_old_hires_fix_width_height", False):
            return [("width", before.width, after.width), ("height", before.height, after.height)]
        return [
            ("hr_scale", before.scale, after.scale),
            ("hr_resize_x", before.width, after.width),
            ("hr_resize_y", before.height, after.height),
        ]

    def apply(self, p: Any, plan: Plan, original: Request) -> None:
        """Write ``plan`` into ``p``. The fields stay with ``p`` until it runs again."""
        changed, changes = plan.request, self.runs.of(p).of_fields
        for name, before, after in (
            ("batch_size", original.batch_size, changed.batch_size),
            ("n_iter", original.batch_count, changed.batch_count),
            ("width", original.width, changed.width),
            ("height", original.height, changed.height),
        ):
            if before != after:
                changes.set_field(p, name, after)
        if changed.hires != original.hires:
            self._apply_hires(p, changed)
        images = getattr(p, "init_images", None) or []
        if 1 < changed.batch_size < len(images) or changed.batch_size == 1 < len(images):
            img_batches.share_out(p, self.runs.of(p))

    def _apply_hires(self, p: Any, changed: Request) -> None:
        changes, hires = self.runs.of(p).of_fields, changed.hires
        if hires is None:
            changes.set_field(p, "enable_hr", False)
            return
        changes.set_field(p, "hr_scale", hires.scale)
        changes.set_field(p, "hr_resize_x", hires.width)
        changes.set_field(p, "hr_resize_y", hires.height)
        if self.option("use_old_hires_fix_width_height", False):
            # The host would take width and height for the final size; this tells it that it already has.
            changes.set_field(p, "width", changed.width)
            changes.set_field(p, "height", changed.height)
            changes.set_field(p, "applied_old_hires_behavior_to", (changed.width, changed.height))

    def prepare_run(self, p: Any, request: Request | None) -> None:
        """Switch on, for this run, what ``request`` asks of the levers that all hosts have."""
        want = self.asked(p)
        levers = levers_of(request, want)
        levers_preview.show_less(self, p, levers.live_preview)
        hires = want.hires.upscaler if want.hires else ""
        if levers.upscaler_tile != levers_upscaler.tile_in_settings(self, hires):
            levers_upscaler.tile_smaller(self, p, levers.upscaler_tile)
        if levers.unload_idle:
            self._send_away(self.idle_models(want))

    def _send_away(self, idle_models: list[levers_idle.Idle]) -> None:
        for idle in idle_models:
            idle.send_away()
        if idle_models:
            self.empty_caches()

    def override(self, p: Any, key: str, value: Any) -> None:
        """Set an option of the host for the run of ``p`` alone.

        The host applies and restores ``override_settings`` itself, but restores only options that are in its
        settings file: one that is not would keep our value for good, so it is written down with its own first.
        With frozen settings the host ends a run that has any of them.
        """
        from modules import shared

        run, data = self.runs.of(p), shared.opts.data
        data.setdefault(key, getattr(shared.opts, key))
        self._remember(run, key, value)
        run.of_run.set_item(p.override_settings if self.applies_overrides(p) else data, key, value)

    @staticmethod
    def applies_overrides(p: Any) -> bool:
        """Whether the host sets the overrides of the run of ``p`` and takes them back; not with frozen settings."""
        from modules import shared

        return bool(p.override_settings_restore_afterwards) and not _is_frozen(getattr(shared, "cmd_opts", None))

    def hold_option(self, p: Any, key: str, value: Any) -> None:
        """Set an option for the run of ``p`` at once: for options that count before the host looks at overrides.

        An override of the same option is left out of the run: the host would take our value for the user's, and set
        it again when the run is over.
        """
        from modules import shared

        run = self.runs.of(p)
        self._remember(run, key, value)
        overrides = getattr(p, "override_settings", None) or {}
        if key in overrides:
            run.of_run.call_when_undone(functools.partial(overrides.__setitem__, key, overrides.pop(key)))
        run.of_run.set_item(shared.opts.data, key, value)

    def _remember(self, run: Run, key: str, value: Any) -> None:
        from modules import shared

        run.of_run.call_when_undone(self._save_as_before)
        if not self._held:
            kind = type(shared.opts)
            save = vars(kind).get("save")
            if callable(save):
                self._saving.set_attribute(kind, "save", _saving_users(save, self.meanwhile, self._held))
        run.of_run.set_item(self.meanwhile, key, self.option(key, getattr(shared.opts, key)))
        run.of_run.set_item(self._held, key, value)

    def _save_as_before(self) -> None:
        if not self._held:
            self._saving.undo()

    def before_sampling(self, p: Any, latent: Any) -> None:
        """Do what must be done anew before each sampling; most hosts need nothing here."""

    def joins(self, p: Any) -> bool:
        """Whether ``p`` is an unchanged copy of an object whose run is going on; then it is made independent of that.

        ADetailer calls the hooks of all scripts on such copies, between the pictures of a batch.
        """
        outer = self.runs.outer_of(p)
        joins = outer is not None and all(
            getattr(outer.p(), name, None) == getattr(p, name, None) for name in WHAT_IS_ASKED
        )
        self.runs.release(p)
        return joins

    def end_run(self, p: Any) -> None:
        """Undo what was switched on for the run of ``p``; its fields stay as they ran."""
        self.runs.finish(p)

    def restore(self, p: Any = None) -> None:
        """Undo what was changed for the run of ``p``, for every run when ``None``."""
        if p is None:
            self.runs.end_all()
        else:
            self.runs.end_left_over()
            self.runs.end(p)
            self.runs.of(p)  # every run has one, so that copies made in the middle of it are known


def _is_frozen(flags: Any) -> bool:
    """Whether the host was started so that settings, or some of them, cannot be changed."""
    if getattr(flags, "freeze_settings", False):
        return True
    return any(
        getattr(flags, f"freeze_{name}", None) is not None for name in ("settings_in_sections", "specific_settings")
    )


def _saving_users(save: Callable[..., Any], users: Mapping[str, Any], held: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the host's ``Options.save`` that writes the ``users`` values of options that a run ``held`` otherwise."""

    @functools.wraps(save)
    def save_users(options: Any, *arguments: Any, **named: Any) -> Any:
        return save(_as_the_user_has_them(options, users, held), *arguments, **named)

    return save_users


@fail_open(instead=lambda fault, options, *_: options)
def _as_the_user_has_them(options: Any, users: Mapping[str, Any], held: Mapping[str, Any]) -> Any:
    """Return ``options``, as a copy where the run at work has some otherwise; what was set meanwhile stays."""
    data = options.data
    back = {key: users[key] for key, value in held.items() if key in users and data.get(key) == value}
    if not back:
        return options
    twin = object.__new__(type(options))
    vars(twin).update(vars(options), data={**data, **back})
    return twin


def _names(value: Any) -> tuple[str, ...]:
    """Return the names in an option that is a list; a settings file can hold anything."""
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, (list, tuple)) else ()


def _batch_pairs(original: Request, changed: Request) -> list[tuple[str, Any, Any]]:
    return [
        ("batch_size", original.batch_size, changed.batch_size),
        ("batch_count", original.batch_count, changed.batch_count),
    ]


def _alloc_conf() -> str:
    """Return the allocator's settings: the newer name first, as torch itself reads them."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


FACE_RESTORERS = ("gfpgan", "codeformer")
"""Those that come with the hosts; of others nothing is known."""
PLATFORMS = {"linux": "linux", "win32": "windows", "darwin": "macos"}
"""``sys.platform``, and what a request calls it."""


def _system() -> dict[str, Any]:
    """Return the operating system, and the machine's RAM where psutil is there to ask (both hosts install it)."""
    system: dict[str, Any] = {"platform": PLATFORMS.get(sys.platform)}
    try:
        import psutil
    except ImportError:
        return system
    memory = psutil.virtual_memory()
    return {**system, "ram_total_bytes": memory.total, "ram_free_bytes": memory.available}


def dtype_name(dtype: Any, default: str) -> str:
    """Return the contract's name of a torch type, ``default`` for types it does not know."""
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
    return names.get(str(dtype).removeprefix("torch."), default)


def stands_in(card: Card) -> bool:
    """Whether the card is a virtual one on a machine whose host computes on the CPU.

    What the host then reports about types and attention is about the CPU, not about that card.
    """
    torch = sys.modules.get("torch")
    return card.source == "virtual" and not (torch is not None and torch.cuda.is_available())
