"""Keeps a run's latents on disk over a risky decode, and decodes later what a killed process has left behind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lib_vram.errors import BadInput, HostFault
from lib_vram.estimate.result import Estimate
from lib_vram.guard.fail_open import fail_open
from lib_vram.guard.kept_latents import Kept, KeptLatents, metadata_of, tensor_name
from lib_vram.host import freeing
from lib_vram.host.patches import Patches
from lib_vram.host.rescue import Rescuer, Step, Work
from lib_vram.host.rescue_decode import HOSTS_LEAST_SIDE, LATENT_FACTOR, can_tile, in_tiles
from lib_vram.host.rescue_keys import KEEP_LATENTS_KEY
from lib_vram.message import Message, say

RECOVER_TILE = 512
"""Side in pixels of our own tiles when latents are decoded later: what was too much must not be too much again."""


@dataclass
class _Batches:
    """What is on disk of one run: the file's name and which of the run's batches it holds."""

    is_risky: bool | None = None
    size: int = 0
    names: dict[str, int] = field(default_factory=dict)


class Keeper:
    """Writes latents before a decode that may fail, and deletes them once the host has saved the pictures.

    ``warned`` says whether this machine's last session ended in a decode.
    """

    def __init__(self, rescuer: Rescuer, latents: KeptLatents, warned: Callable[[], bool] = lambda: False) -> None:
        self.rescuer = rescuer
        self.latents = latents
        self.warned = warned
        self._of_work: dict[int, _Batches] = {}

    def wrap(self, wrap: Callable[[Any, str, Callable[[Step], Step]], None]) -> None:
        """Wrap, through ``wrap``, where every host decodes the pictures of a batch."""
        from modules import processing

        wrap(processing, "decode_latent_batch", self._keeping)

    def _keeping(self, original: Step) -> Step:
        @functools.wraps(original)
        def decode_latent_batch(*arguments: Any, **named: Any) -> Any:
            self._keep(arguments[1] if len(arguments) > 1 else named.get("batch"))
            return original(*arguments, **named)

        return decode_latent_batch

    @fail_open(instead=lambda *_: None)
    def _keep(self, batch: Any) -> None:
        work = self.rescuer.at_work()
        if work is None or not _is_last_decode(work.p) or not self._is_on():
            return
        batches = self._of_work.setdefault(id(work), _Batches(size=max(1, int(work.p.batch_size))))
        if batches.is_risky is None:
            batches.is_risky = self._is_risky(work)
        if not batches.is_risky:
            return
        number = work.p.iteration * work.p.batch_size // batches.size
        self._drop(batches, lambda of: of < number)
        name = self.latents.new_id()
        self.latents.write(name, functools.partial(_write, batch, _metadata(self.rescuer.host, work.p, batch)))
        batches.names[name] = number

    def _is_on(self) -> bool:
        return bool(self.rescuer.host.option(KEEP_LATENTS_KEY, True))

    def _is_risky(self, work: Work) -> bool:
        """Whether the decode is tight, will not fit or cannot be computed, or has failed on this machine lately."""
        if "vae_decode" in self.rescuer.ran_out_in or self.warned():
            return True
        request = self.rescuer.request_of(work)
        if request is None:
            return True
        from lib_vram.estimate.estimator import estimate

        return is_risky(estimate(request))

    @fail_open(instead=lambda *_, **__: None)
    def ended(self, work: Work, *, well: bool) -> None:
        """Delete what the run of ``work`` has on disk when its pictures are saved; otherwise leave it for *Recover*."""
        batches = self._of_work.pop(id(work), None)
        if batches is None:
            return
        if well:
            self._drop(batches, lambda of: True)
        for name in batches.names:
            self.latents.let_go(name)

    def _drop(self, batches: _Batches, which: Callable[[int], bool]) -> None:
        for name in [name for name, of in batches.names.items() if which(of)]:
            self.latents.drop(name)
            del batches.names[name]


def is_risky(expected: Estimate) -> bool:
    """Whether the decode may fail: its comfortable need is not there, or is not known."""
    decode = next((phase for phase in expected.phases if phase.name == "vae_decode"), None)
    return decode is None or decode.wants_bytes > expected.available_bytes


def _is_last_decode(p: Any) -> bool:
    """Whether what is decoded now becomes the pictures: a second pass decodes the first's latents in between."""
    return not getattr(p, "enable_hr", False) or bool(getattr(p, "is_hr_pass", False))


def _metadata(host: Any, p: Any, batch: Any) -> dict[str, str]:
    from modules import processing

    return metadata_of(
        host=host.name, model=str(p.sd_model_name), mode="img2img" if hasattr(p, "init_images") else "txt2img",
        width=int(batch.shape[-1]) * LATENT_FACTOR, height=int(batch.shape[-2]) * LATENT_FACTOR,
        infotexts=[
            processing.create_infotext(
                p, p.prompts, p.seeds, p.subseeds, index=index, all_negative_prompts=p.negative_prompts
            )
            for index in range(len(batch))
        ],
        seeds=[int(seed) for seed in p.seeds],
    )  # fmt: skip


def _write(batch: Any, metadata: dict[str, str], path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {tensor_name(index): latent.detach().to("cpu").contiguous() for index, latent in enumerate(batch.clone())}
    save_file(tensors, str(path), metadata=metadata)


# later


class CannotRecover(HostFault):
    """The latents cannot be decoded as things are; ``reason`` says why, for people."""

    def __init__(self, reason: Message) -> None:
        self.reason = reason
        super().__init__(str(reason))


@dataclass(frozen=True)
class Recovered:
    """The pictures that were saved: their files, as the host names them, and their infotexts."""

    files: tuple[str, ...]
    infotexts: tuple[str, ...]


def recover(host: Any, latents: KeptLatents, name: Any) -> Recovered:
    """Decode the latents called ``name`` with the loaded model, in tiles, save the pictures and delete the latents.

    Raises:
        BadInput: there are no such latents.
        Busy: a generation is at work.
        CannotRecover: another checkpoint is loaded.
    """
    found = latents.find(name)
    with freeing.queue():
        pictures = _pictures(host, _model_for(found), found, latents.path(name))
        files = tuple(_save(picture, found, index) for index, picture in enumerate(pictures))
    latents.drop(name)
    return Recovered(files, found.infotexts)


def _model_for(found: Kept) -> Any:
    """Return the loaded model, loading the selected checkpoint if none is; it must be the one that made the latents."""
    from modules import sd_models, shared

    reload_model = getattr(sd_models, "forge_model_reload", None)
    if reload_model is not None:
        reload_model()
    model = shared.sd_model
    loaded = str(getattr(getattr(model, "sd_checkpoint_info", None), "name_for_extra", ""))
    if loaded != found.model:
        raise CannotRecover(say("rescue.recover_other_model", model=found.model, loaded=loaded or "-"))
    return model


def _pictures(host: Any, model: Any, found: Kept, path: Path) -> Iterator[Any]:
    import torch
    from safetensors.torch import load_file

    kept = load_file(str(path))
    if any(tensor_name(index) not in kept for index in range(found.count)):
        raise BadInput("id", got=found.id, takes="latents that are whole")
    for index in range(found.count):
        with torch.no_grad(), _tiled(host, model, kept[tensor_name(index)]):
            yield _picture(model, kept[tensor_name(index)])


@contextmanager
def _tiled(host: Any, model: Any, latent: Any) -> Iterator[None]:
    """Within the block the host decodes in tiles: ours on A1111, its own elsewhere."""
    if host.name == "a1111":
        decoder = model.first_stage_model.decoder
        with in_tiles(decoder, RECOVER_TILE if can_tile(decoder) else None):
            yield
        return
    patches = Patches()
    manager = _memory_manager()
    if manager is not None and min(latent.shape[-2:]) >= HOSTS_LEAST_SIDE:
        patches.set_attribute(manager, "VAE_ALWAYS_TILED", True)
    try:
        yield
    finally:
        patches.undo()


def _memory_manager() -> Any:
    import sys

    names = ("backend.memory_management", "ldm_patched.modules.model_management")
    return next((sys.modules[name] for name in names if name in sys.modules), None)


def _picture(model: Any, latent: Any) -> Any:
    from modules import devices, sd_samplers_common
    from PIL import Image

    decoded = sd_samplers_common.decode_first_stage(model, latent[None].to(devices.device))[0]
    levels = ((decoded.float().cpu() + 1.0) / 2.0).clamp(0.0, 1.0) * 255.0
    return Image.fromarray(levels.movedim(0, 2).numpy().astype("uint8"))


def _save(picture: Any, found: Kept, index: int) -> str:
    """Save as the host saves a generation's picture, in the folder of its settings."""
    from modules import images, shared

    opts = shared.opts
    folder = opts.outdir_samples or (
        opts.outdir_img2img_samples if found.mode == "img2img" else opts.outdir_txt2img_samples
    )
    prompt = found.infotexts[index].split("\n")[0]
    saved = images.save_image(
        picture, folder, "", found.seeds[index], prompt, opts.samples_format, info=found.infotexts[index]
    )
    return str(saved[0])
