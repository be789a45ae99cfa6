"""A WebUI as far as a rescue sees it: the hosts' processing classes, their loop and their VAE, without any model.

A latent is known by the noise that it came from: ``(seed, draws)`` for each draw, so that a picture that was begun
again with used-up noise is another picture. ``Host.fails`` says which step raises what, first call first.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from lib_vram.host.patches import Runs
from lib_vram.request import Request

GIB = 1024**3


class OutOfMemoryError(RuntimeError):
    """What torch raises, by its name."""


class Held:
    """A tensor of a step that failed: alive as long as something holds its frame."""


class Noise:
    """The hosts' noise: every seed has its own, drawn on and on."""

    def __init__(self, shape, seeds, subseeds=None, subseed_strength=0.0, seed_resize_from_h=0, seed_resize_from_w=0):
        self.shape, self.seeds, self.subseeds = shape, list(seeds), list(subseeds)
        self.subseed_strength = subseed_strength
        self.seed_resize_from_h, self.seed_resize_from_w = seed_resize_from_h, seed_resize_from_w
        self.drawn = 0

    def next(self):
        self.drawn += 1
        return [(seed, self.drawn) for seed in self.seeds]


@dataclass
class Conds:
    """A batch of encoded prompts."""

    batch: list
    shape: tuple


class Latent:
    """One picture's latent, of the size that its decode sees."""

    def __init__(self, made_of, side=64):
        self.made_of, self.shape = made_of, (1, 4, side, side)


class Batch(list):
    """The latents of a batch, as one tensor has them."""

    @property
    def shape(self):
        return (len(self), *self[0].shape[1:])


def decode_latent_batch(model, batch, target_device=None, check_for_nans=False):
    return [model.decode(latent) for latent in batch]


def create_infotext(p, prompts, seeds, subseeds, index=None, all_negative_prompts=None):
    return f"{prompts[index]}\nNegative prompt: {all_negative_prompts[index]}\nSteps: 1, Seed: {seeds[index]}"


@dataclass
class Processing:
    host: Any
    batch_size: int = 1
    n_iter: int = 1
    seed: int = 100
    enable_hr: bool = False
    disable_extra_networks: bool = False
    scripts: Any = None
    script_args: tuple = ()
    sd_model_name: str = "model"
    side: int = 64
    sd_model: Any = None
    extra_generation_params: dict = field(default_factory=dict)
    extra_network_data: dict = field(default_factory=dict)
    comments: list = field(default_factory=list)
    iteration: int = 0
    is_hr_pass: bool = False
    hr_c: Any = None

    def comment(self, text):
        self.comments.append(text)

    def close(self):
        return None

    def init(self, *arguments):
        return None

    def setup_conds(self):
        self.host.step("text_encode", len(self.prompts))
        self.c = Conds([f"c of {prompt}" for prompt in self.prompts], (len(self.prompts),))
        self.uc = [f"uc of {prompt}" for prompt in self.prompts]


class Txt2Img(Processing):
    def setup_conds(self):
        super().setup_conds()

    def sample(self, conditioning, unconditional_conditioning, seeds, subseeds, subseed_strength, prompts):
        self.host.tell_batch(self, conditioning, unconditional_conditioning, seeds, prompts)
        samples = [(noise,) for noise in self.rng.next()]
        self.host.step("sampling", len(samples))
        if not self.enable_hr:
            return samples
        return self.sample_hr_pass(samples, None, seeds, subseeds, subseed_strength, prompts)

    def sample_hr_pass(self, samples, decoded_samples, seeds, subseeds, subseed_strength, prompts):
        self.is_hr_pass = True
        self.host.next_job()
        self.rng = Noise("hires", self.seeds, subseeds=self.subseeds)
        samples = [(*sample, noise) for sample, noise in zip(samples, self.rng.next(), strict=True)]
        self.host.step("hires_sampling", len(samples))
        self.is_hr_pass = False
        return samples


class Img2Img(Processing):
    def init(self, *arguments):
        self.host.step("vae_encode", self.batch_size)
        self.init_latent = [f"start {index}" for index in range(self.batch_size)]

    def sample(self, conditioning, unconditional_conditioning, seeds, subseeds, subseed_strength, prompts):
        self.host.tell_batch(self, conditioning, unconditional_conditioning, seeds, prompts)
        samples = [(start, noise) for start, noise in zip(self.init_latent, self.rng.next(), strict=True)]
        self.host.step("sampling", len(samples))
        return samples


def process_images_inner(p):
    host = p.host
    count = p.batch_size * p.n_iter
    all_seeds, all_prompts = [p.seed + index for index in range(count)], [f"prompt {index}" for index in range(count)]
    p.all_seeds = all_seeds
    if host.state.job_count == -1:
        host.state.job_count = p.n_iter * (2 if p.enable_hr else 1)
    for script in getattr(p.scripts, "alwayson_scripts", ()):
        host.hook(script, p)
    p.init(all_prompts, all_seeds, all_seeds)
    pictures = []
    for iteration in range(p.n_iter):
        if host.state.interrupted:
            break
        p.iteration = iteration
        part = slice(iteration * p.batch_size, (iteration + 1) * p.batch_size)
        p.prompts, p.negative_prompts = all_prompts[part], all_prompts[part]
        p.seeds, p.subseeds = all_seeds[part], all_seeds[part]
        p.rng = Noise("first", p.seeds, subseeds=p.subseeds)
        p.setup_conds()
        samples = p.sample(
            conditioning=p.c, unconditional_conditioning=p.uc, seeds=p.seeds, subseeds=p.subseeds,
            subseed_strength=0.0, prompts=p.prompts,
        )  # fmt: skip
        decode = sys.modules["modules.processing"].decode_latent_batch
        latents = Batch(Latent(sample, p.side) for sample in samples)
        for sample, picture in zip(samples, decode(host, latents), strict=True):
            pictures.append(picture)
            host.saved.append((sample, p.extra_generation_params.get("VRAM Guard", "")))
        host.next_job()
    return pictures


class Host:
    """The adapter and the WebUI in one; put into ``sys.modules`` by :meth:`install`."""

    def __init__(self, name="a1111", **request):
        self.name = name
        self.options = {}
        self.request = request
        self.runs = Runs()
        self.fails: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, int]] = []
        self.batches: list[tuple[int, int, list, list]] = []
        self.saved: list[tuple[Any, str]] = []
        self.freed: list[str] = []
        self.held: list[weakref.ref] = []
        self.alive_when_freeing: list[int] = []
        self.state = SimpleNamespace(interrupted=False, job_no=0, job_count=-1, sampling_step=0, textinfo=None)

    # the adapter

    def option(self, key, default):
        return self.options.get(key, default)

    def settings(self):
        return SimpleNamespace(language="en")

    def request_from_processing(self, p):
        data = {
            "host": self.name, "device": {"total_bytes": 12 * GIB}, "model": {"family": "sd15"},
            "width": p.side * 8, "height": p.side * 8, "batch_size": p.batch_size, "batch_count": p.n_iter,
        }  # fmt: skip
        return Request.from_dict(data | self.request)

    def hold_option(self, p, key, value):
        self.runs.of(p).of_run.set_item(sys.modules["modules.shared"].opts.data, key, value)

    def empty_caches(self):
        self.alive_when_freeing.append(sum(ref() is not None for ref in self.held))
        self.freed.append("cache")

    def unload_models(self):
        self.freed.append("models")

    # the WebUI

    def step(self, phase, count):
        tensor = Held()
        self.held.append(weakref.ref(tensor))
        self.calls.append((phase, count))
        waiting = self.fails.get(phase, [])
        failure = waiting.pop(0) if waiting else None
        if failure is not None:
            raise failure

    def next_job(self):
        self.state.job_no += 1
        self.state.sampling_step = 0

    def tell_batch(self, p, conditioning, unconditional, seeds, prompts):
        assert len(conditioning.batch) == conditioning.shape[0] == len(unconditional) == len(seeds) == len(prompts)
        assert p.all_seeds[p.iteration * p.batch_size : (p.iteration + 1) * p.batch_size] == seeds
        self.batches.append((p.iteration, p.batch_size, list(seeds), list(conditioning.batch)))

    def hook(self, script, p):
        try:
            script.process(p)
        except Exception as fault:  # noqa: BLE001  the hosts log whatever a hook raises
            self.calls.append((f"logged {type(fault).__name__}", 0))

    def decode(self, latent):
        return sys.modules["modules.sd_samplers_common"].samples_to_images_tensor(latent, 0, None)

    def run(self, kind=Txt2Img, **fields):
        p = kind(self, **fields)
        return p, sys.modules["modules.processing"].process_images_inner(p)

    def install(self, monkeypatch):
        decoder = SimpleNamespace(forward=self._whole)
        self.decoder = decoder
        model = SimpleNamespace(first_stage_model=SimpleNamespace(decoder=decoder))
        modules = {
            "modules": {},
            "modules.processing": {
                "process_images_inner": process_images_inner, "StableDiffusionProcessing": Processing,
                "StableDiffusionProcessingTxt2Img": Txt2Img, "StableDiffusionProcessingImg2Img": Img2Img,
                "decode_latent_batch": decode_latent_batch, "create_infotext": create_infotext,
            },
            "modules.shared": {
                "sd_model": model, "state": self.state, "opts": SimpleNamespace(data={"batch_cond_uncond": True}),
            },
            "modules.sd_models": {
                "model_data": SimpleNamespace(sd_model=model, loaded_sd_models=[model]),
                "reload_model_weights": lambda: self.freed.append("reloaded"),
            },
            "modules.extra_networks": {"activate": lambda p, data: self.step("load", 0)},
            "modules.sd_samplers_common": {"samples_to_images_tensor": self._decoded},
        }  # fmt: skip
        for name, members in modules.items():
            made = ModuleType(name)
            vars(made).update(members)
            monkeypatch.setitem(sys.modules, name, made)
            if "." in name:
                setattr(sys.modules["modules"], name.partition(".")[2], made)
        tiles = ModuleType("lib_vram.host.tiled_decode")
        tiles.supports, tiles.step_aside, tiles.decode = lambda it: True, lambda it: False, self._in_tiles
        monkeypatch.setitem(sys.modules, "lib_vram.host.tiled_decode", tiles)
        import lib_vram.host

        monkeypatch.setattr(lib_vram.host, "tiled_decode", tiles, raising=False)
        return self

    def _decoded(self, sample, approximation=None, model=None):
        return self.decoder.forward(sample)

    def _whole(self, latent):
        self.step("vae_decode", 0)
        return ("whole", latent.made_of)

    def _in_tiles(self, decoder, latent, tile):
        self.step(f"tiles {tile}", 0)
        return (f"tiles {tile}", latent.made_of)
