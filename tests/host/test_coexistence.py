"""Other extensions in the same process, as their own code behaves, on every host: no double patch, no lost undo."""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard import guard as guard_module
from lib_vram.message import say
from lib_vram.plan.result import Plan, Step
from tests.fakehost.processing import Img2Img, page_run, process_images
from tests.fakehost.webui import Script

GIB = 1024**3
PHASE = PhaseEstimate("vae_decode", 2 * GIB, 6 * GIB, 7 * GIB, 8 * GIB, 6 * GIB, 8 * GIB, "profile")
EVERYTHING = {"mode": "off", "tiled": True, "apart": True}


@pytest.fixture
def too_large(monkeypatch):
    """Only a batch of one with its halves apart fits; the list tells how often an estimate was asked for."""
    asked = []

    def estimate_of(request):
        asked.append(request)
        fits = request.batch_size == 1 and not request.batch_cond_uncond
        return Estimate("fits" if fits else "wont_fit", 7 * GIB, "vae_decode", 8 * GIB, 0, 0, (PHASE,))

    def plan_of(request, preferences=None):
        changed = request.replace(batch_size=1, batch_count=request.images, batch_cond_uncond=False)
        step = Step("batch_to_count", "batch_size", request.batch_size, 1, GIB, "time", say("test.step"))
        return Plan(True, (step,), changed, estimate_of(changed))

    monkeypatch.setattr(guard_module, "estimate", estimate_of)
    monkeypatch.setattr(guard_module, "make_plan", plan_of)
    return asked


class Detailer(Script):
    """ADetailer: calls everybody's hooks on shallow copies between pictures, and runs generations inside."""

    def __init__(self, *, with_our_hooks):
        self.with_our_hooks = with_our_hooks
        self.inner_options = []

    def title(self):
        return "ADetailer"

    def postprocess_image(self, p, *arguments):
        if getattr(p, "inner", False):
            return
        p.scripts.run_hook("postprocess", copy.copy(p), [])
        self._detail(p)
        again = copy.copy(p)
        p.scripts.run_hook("before_process", again)
        p.scripts.run_hook("process", again)

    def _detail(self, p):
        inner = Img2Img(p.host, init_images=["face"], width=512, height=512)
        inner.scripts, inner.script_args, inner.inner = copy.copy(p.scripts), p.script_args, True
        if not self.with_our_hooks:
            inner.scripts.alwayson_scripts = []
        inner = copy.copy(inner)
        process_images(inner)
        inner.close()


def watched(fake):
    """What we may patch on any host, as it is now."""
    names = {
        "modules.sd_samplers_common": "samples_to_images_tensor",
        "backend.sampling.sampling_function": "calc_cond_uncond_batch",
        "backend.memory_management": "VAE_ALWAYS_TILED",
        "modules.processing": "process_images",
    }
    found = {name: vars(fake.modules[name]).get(member) for name, member in names.items() if name in fake.modules}
    found = {name: inspect.unwrap(it) if callable(it) else it for name, it in found.items()}  # what lasts is rewrapped
    return found, {key: fake.opts.data.get(key) for key in ("batch_cond_uncond", "forge_inference_memory")}


@pytest.mark.parametrize("with_our_hooks", [False, True])
def test_a_detailer_inside_a_fixed_run_changes_nothing_of_the_fix(fake, too_large, with_our_hooks):
    fake.opts.data["vram_guard_mode"] = "fix"
    page_run(fake.make())  # the options that a run writes down are there now
    fake.record.unet_batches.clear()
    before = watched(fake)
    fake.runner.add(Detailer(with_our_hooks=with_our_hooks), [])
    p = fake.make(batch_size=3)
    pictures = page_run(p)
    assert [picture.seed for picture in pictures] == [1, 2, 3]
    assert set(fake.record.unet_batches) <= {1, 2} and fake.record.unet_batches.count(1) >= 6
    assert all("VRAM Guard: batch 3x1 -> 1x3" in picture.infotext for picture in pictures)
    assert watched(fake) == before


def test_hooks_called_on_copies_of_a_running_object_decide_nothing_anew(fake, too_large, caplog):
    fake.runner.add(Detailer(with_our_hooks=False), [])
    p = fake.make(batch_size=2, n_iter=3)
    page_run(p)
    assert len(too_large) == 2  # one estimate, and one of the plan that the warning names
    assert caplog.text.count("will probably not fit") == 1


@pytest.mark.parametrize("own", [[EVERYTHING], [{"mode": "off"}]])
def test_a_copy_that_asks_for_another_generation_is_a_run_of_its_own(fake, own):
    p = fake.make(own=own, batch_size=2)
    cells = []

    def sample(seeds, original=p.sample):
        cell = copy.copy(p)
        cell.width = 640
        vars(cell).pop("sample", None)
        cells.append(process_images(cell))
        cell.close()
        assert not p.closed
        return original(seeds)

    before = watched(fake)
    p.sample = sample
    page_run(p)
    page_run(fake.make())  # Forge's own switch keeps its last state until the next run
    assert cells[0][0].width == 640 and len(cells[0]) == 2
    assert watched(fake)[0] == before[0]


class LaysOver(Script):
    """An extension that wraps a function of the host in ``process`` and takes the wrapper off in ``postprocess``."""

    def __init__(self, owner, name):
        self.owner, self.name, self.under = owner, name, None

    def title(self):
        return "Lays over"

    def process(self, p, *arguments):
        under = self.under = getattr(self.owner, self.name)

        def laid_over(*positional, **named):
            return under(*positional, **named)

        setattr(self.owner, self.name, laid_over)

    def postprocess(self, p, pictures, *arguments):
        setattr(self.owner, self.name, self.under)


@pytest.mark.parametrize("first", [False, True])
def test_what_another_extension_has_laid_over_ours_is_taken_off_once_it_is_free(fake, first):
    """Their wrapper comes off after our run has ended: ours must not stay below, one more with every run."""
    if "modules.sd_samplers_common" not in fake.modules:
        pytest.skip("this host's levers replace no function for the length of a run")
    common = fake.modules["modules.sd_samplers_common"]
    before = common.samples_to_images_tensor
    fake.runner.add(LaysOver(common, "samples_to_images_tensor"), [])
    if first:
        fake.runner.alwayson_scripts.reverse()
    for _ in range(3):
        page_run(fake.make(own=[EVERYTHING]))
    assert common.samples_to_images_tensor is before


def test_reload_in_the_middle_of_a_run_takes_everything_back(fake):
    before = watched(fake)[0]
    p = fake.make(own=[EVERYTHING])
    sample = p.sample

    def sample_and_reload(seeds):
        fake.unload_scripts()
        fake.load_scripts()
        return sample(seeds)

    p.sample = sample_and_reload
    page_run(p)
    page_run(fake.make(own=[EVERYTHING]))
    page_run(fake.make())  # Forge's own switch keeps its last state until the next run
    assert watched(fake)[0] == before


class ManyPrompts(Script):
    """Dynamic Prompts: makes prompts and batch count anew in its ``process``, after our ``before_process``."""

    def title(self):
        return "Dynamic Prompts"

    def process(self, p, *arguments):
        images = p.n_iter * p.batch_size
        p.n_iter = -(-images // p.batch_size)


def test_a_script_that_counts_pictures_anew_after_us_makes_as_many(fake, too_large):
    fake.opts.data["vram_guard_mode"] = "fix"
    fake.runner.add(ManyPrompts(), [])
    assert [picture.seed for picture in page_run(fake.make(batch_size=4))] == [1, 2, 3, 4]


def test_a_task_of_a_queue_runs_with_the_arguments_it_was_queued_with(fake, too_large):
    """Agent Scheduler keeps a script's arguments as JSON and starts the run from a thread of its own."""
    arguments = ["run", False, 768, False]
    p = fake.make(own=arguments, batch_size=4)
    p.script_args = list(p.script_args)
    page_run(p)
    assert too_large == [] and p.extra_generation_params == {}


def test_scripts_before_and_behind_ours_get_their_own_arguments(fake):
    seen = []
    script = SimpleNamespace(
        title=lambda: "Regional Prompter", args_from=None, args_to=None,
        process=lambda p, *arguments: seen.append(arguments),
    )  # fmt: skip
    fake.runner.add(script, ["regions", True])
    page_run(fake.make(own=[EVERYTHING]))
    assert seen == [("regions", True)]


def test_the_guard_is_one_however_often_the_scripts_are_loaded(fake):
    guard = callbacks.guard()
    for _ in range(2):
        fake.unload_scripts()
        fake.load_scripts()
    assert callbacks.guard() is guard
    assert {name: len(functions) for name, functions in fake.callbacks.items()} == dict.fromkeys(fake.callbacks, 1)
