"""The hosts' processing objects and the order in which they run one generation."""

from __future__ import annotations

import copy
import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Picture:
    """One result: what it was made of."""

    seed: int
    width: int
    height: int
    source: Any = None
    infotext: str = ""


@dataclass
class Record:
    """What the host really did, for tests to look at."""

    unet_batches: list[int] = field(default_factory=list)
    decodes: list[str] = field(default_factory=list)
    encodes: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    models_loaded: int = 0
    options: list[dict[str, Any]] = field(default_factory=list)
    """The host's options as they were at each sampling."""
    weights: list[str] = field(default_factory=list)
    """In what the model's weights were stored at each sampling."""
    idle: list[int] = field(default_factory=list)
    """How many models that the run does not use were on the card at each sampling."""


@dataclass
class Processing:
    """Fields as in both hosts; ``host`` is the fake."""

    host: Any
    prompt: str = ""
    hr_prompt: str = ""
    styles: list = field(default_factory=list)
    seed: int = 1
    batch_size: int = 1
    n_iter: int = 1
    cfg_scale: float | None = 7.0
    width: int = 512
    height: int = 512
    override_settings: dict = field(default_factory=dict)
    override_settings_restore_afterwards: bool = True
    refiner_checkpoint: str | None = None
    refiner_switch_at: float | None = None
    is_api: bool = False
    restore_faces: bool = False
    extra_generation_params: dict = field(default_factory=dict)
    comments: dict = field(default_factory=dict)
    scripts: Any = None
    script_args: Any = None
    iteration: int = 0
    closed: bool = False

    def comment(self, text: str) -> None:
        self.comments[text] = 1

    def close(self) -> None:
        self.closed = True

    def init(self, *arguments: Any) -> None:
        return None

    def sample(self, seeds: list[int]) -> list[Any]:
        self.host.look_around(self)
        self.host.sample(self)
        return [None] * len(seeds)


@dataclass
class Txt2Img(Processing):
    enable_hr: bool = False
    hr_scale: float = 2.0
    hr_resize_x: int = 0
    hr_resize_y: int = 0
    hr_upscaler: str | None = "Latent"
    applied_old_hires_behavior_to: tuple | None = None
    final_size: tuple[int, int] = (0, 0)

    def init(self, *arguments: Any) -> None:
        self.final_size = (self.width, self.height)
        if self.enable_hr and not (self.hr_resize_x or self.hr_resize_y):
            self.final_size = (int(self.width * self.hr_scale), int(self.height * self.hr_scale))
        elif self.enable_hr:
            self.final_size = (self.hr_resize_x, self.hr_resize_y)


@dataclass
class Img2Img(Processing):
    init_images: list = field(default_factory=list)
    init_latent: Any = None
    image_conditioning: Any = None
    overlay_images: list | None = None
    color_corrections: list | None = None

    def init(self, *arguments: Any) -> None:
        images = self.init_images
        if len(images) == 1:
            latents = images * self.batch_size
        elif len(images) <= self.batch_size:
            self.batch_size = len(images)
            latents = list(images)
        else:
            raise RuntimeError(f"bad number of images passed: {len(images)}; expecting {self.batch_size} or less")
        self.host.encode(self)
        self.init_latent, self.overlay_images = latents, [f"overlay of {image}" for image in latents]

    def sample(self, seeds: list[int]) -> list[Any]:
        super().sample(seeds)
        assert len(self.init_latent) == self.batch_size
        return list(self.init_latent)


def quote(text: Any) -> str:
    """The hosts' rule for values of an infotext."""
    text = str(text)
    return json.dumps(text, ensure_ascii=False) if "," in text or "\n" in text or ":" in text else text


def process_images(p: Processing) -> list[Picture]:
    """The order of events in both hosts."""
    host = p.host
    if p.scripts is not None:
        p.scripts.run_hook("before_process", p)
    stored = {key: host.opts.data[key] for key in p.override_settings if key in host.opts.data}
    try:
        host.opts.data.update(p.override_settings)
        host.load_model()
        return host.modules["modules.processing"].process_images_inner(p)
    finally:
        if p.override_settings_restore_afterwards:
            host.opts.data.update(stored)


def process_images_inner(p: Processing) -> list[Picture]:
    """Everything from the settled fields to the pictures."""
    p.host.settle(p)
    all_seeds = [p.seed + index for index in range(p.batch_size * p.n_iter)]
    if p.scripts is not None:
        p.scripts.run_hook("process", p)
    p.init(all_seeds)
    pictures = []
    for iteration in range(p.n_iter):
        if p.host.is_interrupted:
            break
        p.iteration = iteration
        if p.scripts is not None:
            p.scripts.run_hook("before_process_batch", p)
            p.scripts.run_hook("process_batch", p)
        seeds = all_seeds[iteration * p.batch_size : (iteration + 1) * p.batch_size]
        for seed, source in zip(seeds, p.sample(seeds), strict=True):
            p.host.decode(p)
            if p.scripts is not None:
                p.scripts.run_hook("postprocess_image", p)
            params = ", ".join(f"{key}: {quote(value)}" for key, value in p.extra_generation_params.items())
            width, height = getattr(p, "final_size", (p.width, p.height))
            pictures.append(
                Picture(seed, width, height, source, f"Steps: 1, Seed: {seed}, Size: {width}x{height}, {params}")
            )
    if p.scripts is not None:
        p.scripts.run_hook("postprocess", p, pictures)
    return pictures


def page_run(p: Processing) -> list[Picture]:
    """A run as the page starts it."""
    with closing(p):
        return process_images(p)


def api_run(p: Processing) -> tuple[int, Any]:
    """A run as the API starts it: status and pictures, or status and error."""
    p.is_api = True
    try:
        with closing(p):
            return 200, process_images(p)
    except Exception as fault:
        return 500, {"error": type(fault).__name__, "errors": str(fault)}


def grid_cells(p: Processing, changes: list[dict]) -> list[list[Picture]]:
    """A grid script: shallow copies of one processing object, each run by itself."""
    cells = []
    for change in changes:
        cell = copy.copy(p)
        for name, value in change.items():
            setattr(cell, name, value)
        cells.append(process_images(cell))
    return cells
