"""What only shows while a host runs: where a change takes effect, how a run is stopped, what outlives it.

A host that behaves otherwise after an update shows here first. Behaviours that belong to one module are tests beside
that module; ``docs/hosts.md`` names the test of each.
"""

from __future__ import annotations

import ast
import copy
import gc
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard import guard as guard_module
from lib_vram.host import detect
from lib_vram.message import say
from lib_vram.plan.result import Plan, Step
from lib_vram.request import Hires, Lora
from tests.fakehost.processing import Txt2Img, api_run, page_run, process_images
from tests.fakehost.webui import REPOSITORY, Script

GIB = 1024**3
PHASE = PhaseEstimate("vae_decode", 2 * GIB, 6 * GIB, 7 * GIB, 8 * GIB, 6 * GIB, 8 * GIB, "profile")
HOOKS = (
    "before_process", "process", "before_process_batch", "process_batch", "postprocess_image", "postprocess",
)  # fmt: skip
SIZES = ("width", "height", "batch_size", "n_iter", "enable_hr", "hr_scale", "hr_resize_x", "hr_resize_y")
WAYS = ("off", "show", "ask", "fix", "refuse")
LEVERS = {"mode": "off", "tiled": True, "apart": True}
PAGE_SOURCES = (
    *sorted((REPOSITORY / "lib_vram" / "ui").rglob("*.py")),
    REPOSITORY / "lib_vram" / "callbacks.py",
    REPOSITORY / "scripts" / "vram_guard.py",
)
OWN_SOURCES = sorted((REPOSITORY / "lib_vram").rglob("*.py"))


@pytest.fixture
def hires():
    """The second pass that the plan has."""
    return Hires(1.5)


@pytest.fixture
def too_large(monkeypatch, hires):
    """Nothing fits but one picture of 448 by 320 at a time, which is the plan."""

    def estimate_of(request):
        fits = request.batch_size == 1 and request.width <= 448
        return Estimate("fits" if fits else "wont_fit", 7 * GIB, "vae_decode", 8 * GIB, 0, 0, (PHASE,))

    def plan_of(request, preferences=None):
        changed = request.replace(width=448, height=320, batch_size=1, batch_count=request.images)
        changed = changed.replace(hires=hires) if request.hires else changed
        step = Step("batch_to_count", "batch_size", request.batch_size, 1, GIB, "time", say("test.step"))
        return Plan(True, (step,), changed, estimate_of(changed))

    monkeypatch.setattr(guard_module, "estimate", estimate_of)
    monkeypatch.setattr(guard_module, "make_plan", plan_of)


class State:
    """The host's ``shared.state``; ``written`` are the names that somebody set."""

    def __init__(self):
        vars(self).update(written=[], interrupted=False, skipped=False, job="", time_start=None)

    def __setattr__(self, name, value):
        self.written.append(name)
        vars(self)[name] = value


@pytest.fixture
def state(fake):
    made = fake.modules["modules.shared"].state = State()
    return made


class Watcher(Script):
    """Another extension behind ours: notes at every hook what the run is by then."""

    def __init__(self):
        self.seen = {}

    def title(self):
        return "Watcher"


def _noting(name):
    def hook(self, p, *arguments):
        self.seen.setdefault(name, {field: getattr(p, field) for field in SIZES})

    return hook


for _name in HOOKS:
    setattr(Watcher, _name, _noting(_name))


def run_as(fake, way, start=api_run):
    """A run of three pictures that will not fit, in one of the ways that a run can be asked for."""
    return start(fake.make(width=896, height=640, batch_size=3, own=[{"mode": way}]))


# where a change takes effect


@pytest.mark.parametrize(
    ("hires", "final"), [(Hires(1.5), (672, 480)), (Hires(2.0, 640, 448), (640, 448))], ids=["scale", "size"]
)
def test_a_fix_is_complete_in_before_process_because_later_hooks_change_nothing(fake, too_large, hires, final):
    fake.opts.data["vram_guard_mode"] = "fix"
    watcher = Watcher()
    fake.runner.add(watcher, [])
    pictures = page_run(fake.make(width=896, height=640, batch_size=3, enable_hr=True))
    assert watcher.seen["before_process"] == {
        "width": 448, "height": 320, "batch_size": 1, "n_iter": 3, "enable_hr": True,
        "hr_scale": hires.scale, "hr_resize_x": hires.width, "hr_resize_y": hires.height,
    }  # fmt: skip
    assert [watcher.seen[hook] for hook in HOOKS] == [watcher.seen["before_process"]] * len(HOOKS)
    assert [(picture.seed, picture.width, picture.height) for picture in pictures] == [(n, *final) for n in (1, 2, 3)]


def test_a_run_of_several_start_pictures_is_not_refused_by_the_host_for_their_number(fake, too_large):
    fake.opts.data["vram_guard_mode"] = "fix"
    status, pictures = api_run(fake.img2img(["a", "b", "c"], width=896, height=640, batch_size=3))
    assert status == 200
    assert [picture.source for picture in pictures] == ["a", "b", "c"]


def test_networks_of_the_last_run_are_not_taken_for_this_ones(fake, monkeypatch, tmp_path):
    """The host fills its own list from ``process_batch`` on: before that it is the last run's."""
    files = {}
    for name, size in (("last", 7), ("this", 5)):
        files[name] = SimpleNamespace(filename=str(tmp_path / name))
        (tmp_path / name).write_bytes(b"x" * size)
    monkeypatch.setitem(sys.modules, "networks", SimpleNamespace(available_networks=files))
    p = fake.make(prompt="a <lora:this:1>")
    p.extra_network_data = {"lora": [SimpleNamespace(positional=["last"])]}
    assert callbacks.guard().host.request_from_processing(p).loras == (Lora(5),)


# stopping a run, telling the user


def test_a_refusal_is_an_error_and_no_interrupt_which_would_be_answered_with_200(fake, too_large, state):
    status, answer = run_as(fake, "refuse")
    assert (status, answer["error"]) == (500, "Refused")
    assert state.written == []
    assert fake.record.log == []  # no hook raised: that would have been logged, and the run gone on


@pytest.mark.parametrize("way", WAYS)
def test_the_hosts_state_is_never_set_by_us(fake, too_large, state, way):
    status, _ = run_as(fake, way)
    assert status == (500 if way == "refuse" else 200)
    assert state.written == []


@pytest.mark.parametrize("kind", ["txt2img", "img2img"])
def test_the_users_interrupt_ends_a_fixed_run_after_the_picture_at_work(fake, too_large, state, kind):
    class Interrupts(Script):
        def postprocess_image(self, p, *arguments):
            vars(state)["interrupted"] = True

    fake.opts.data["vram_guard_mode"] = "fix"
    fake.runner.add(Interrupts(), [])
    large = {"width": 896, "height": 640, "batch_size": 3}
    p = fake.make(**large) if kind == "txt2img" else fake.img2img(["a", "b", "c"], **large)
    assert len(page_run(p)) == 1
    assert state.interrupted and state.written == []
    assert len(fake.record.decodes) == 1


def test_an_interrupted_run_leaves_no_lever_on(fake, state):
    vars(state)["interrupted"] = True
    assert api_run(fake.make(batch_size=2, own=[LEVERS])) == (200, [])
    vars(state)["interrupted"] = False
    page_run(fake.make(batch_size=2))
    assert (fake.record.unet_batches, set(fake.record.decodes)) == ([4], {"whole"})


@pytest.mark.parametrize("way", ["show", "ask", "fix"])
def test_no_toast_is_shown_because_from_forges_thread_it_goes_nowhere(fake, too_large, monkeypatch, caplog, way):
    toasts = []
    toast = SimpleNamespace(Warning=toasts.append, Info=toasts.append, Error=toasts.append)
    monkeypatch.setitem(sys.modules, "gradio", toast)
    p = fake.make(width=896, height=640, batch_size=3, own=[{"mode": way}])
    page_run(p)
    assert toasts == []
    assert "VRAM Guard" in caplog.text
    assert bool(p.comments) == (way != "show")


@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_the_api_on_a_thread_of_its_own_never_waits_for_the_main_thread(fake, too_large, way):
    waited = []
    thread = fake.modules.get("modules_forge.main_thread") or fake.module("modules_forge.main_thread")
    sys.modules["modules_forge.main_thread"] = thread
    thread.run_and_wait_result = lambda *arguments, **named: waited.append(arguments)
    with ThreadPoolExecutor(max_workers=1) as other:
        status, answer = other.submit(run_as, fake, way).result(timeout=20)
    assert waited == []
    assert status == (500 if way == "refuse" else 200)
    assert way == "refuse" or len(answer) == 3


# a failure, as it travels


class FailsOnce:
    """Stands in front of a step of the fake host and fails at its first call."""

    def __init__(self, fake, step):
        self.original, self.left = getattr(fake, step), 1
        setattr(fake, step, self)

    def __call__(self, p):
        if self.left:
            self.left -= 1
            raise MemoryError("CUDA out of memory.")
        self.original(p)


@pytest.mark.parametrize("step", ["sample", "decode"])
@pytest.mark.parametrize("start", [page_run, api_run])
def test_a_failed_run_has_no_last_hook_and_its_levers_are_off_all_the_same(fake, step, start):
    watcher = Watcher()
    fake.runner.add(watcher, [])
    FailsOnce(fake, step)
    p, kept = fake.make(batch_size=2, own=[LEVERS]), None
    try:
        answer = start(p)
    except MemoryError as fault:
        kept = fault  # as Forge keeps the last one, and with it the frames that hold ``p``
        answer = (500, {"error": type(fault).__name__})
    assert (answer[0], answer[1]["error"]) == (500, "MemoryError")
    assert "postprocess" not in watcher.seen
    fake.record.unet_batches.clear()
    fake.record.decodes.clear()
    page_run(fake.make(batch_size=2))
    assert (fake.record.unet_batches, set(fake.record.decodes)) == ([4], {"whole"})
    assert (start is api_run) == (kept is None)


def fail_in_a_cell(fake):
    """A grid runs copies of its object, which nobody closes; the sampler and the copy hold each other."""
    FailsOnce(fake, "sample")
    p = fake.make(batch_size=2, own=[LEVERS])
    cell = copy.copy(p)
    cell.sampler = SimpleNamespace(p=cell)
    try:
        process_images(cell)
    except MemoryError as fault:
        return fault
    finally:
        p.close()
        fake.record.unet_batches.clear()
    raise AssertionError("the cell did not fail")


def test_a_failed_cell_of_a_grid_takes_its_levers_along_when_it_is_collected(fake, caplog):
    caplog.set_level("CRITICAL", "vram_guard")  # pytest's log would keep the error, and with it the copy
    fail_in_a_cell(fake)
    gc.collect()
    page_run(fake.make(batch_size=2))
    assert (fake.record.unet_batches, set(fake.record.decodes)) == ([4], {"whole"})


class TestForge:
    @pytest.fixture
    def host_name(self):
        return "forge"

    def test_a_failed_cell_that_its_last_exception_keeps_alive_does_not_change_the_next_run(self, fake):
        kept = fail_in_a_cell(fake)
        page_run(fake.make(batch_size=2))
        assert (fake.record.unet_batches, set(fake.record.decodes)) == ([4], {"whole"})
        assert kept.__traceback__ is not None


# what is read, and what is left alone


def test_a_host_is_known_although_it_brings_the_modules_of_those_it_comes_from(fake):
    sys.modules["modules.lowvram"] = fake.module("modules.lowvram")
    assert detect.current().name == fake.name


class Untouchable:
    """Notes every look at one of its attributes."""

    def __init__(self):
        self.__dict__["looks"] = []

    def __getattr__(self, name):
        self.looks.append(name)
        raise AttributeError(name)


@pytest.mark.parametrize("way", WAYS)
def test_the_hosts_memory_monitor_is_not_asked_because_its_active_figure_is_a_count(fake, too_large, way):
    monitor = fake.modules["modules.shared"].mem_mon = Untouchable()
    run_as(fake, way)
    assert monitor.looks == []


def test_asking_and_deciding_never_touch_the_name_that_loads_a_model(fake, too_large):
    """``shared.sd_model`` loads one where none is loaded."""
    shared, looks = fake.modules["modules.shared"], []
    shared.__class__ = type("Shared", (ModuleType,), {"sd_model": property(lambda self: looks.append("sd_model"))})
    guard = callbacks.guard()
    assert guard.check_form("txt2img", {"width": 896, "batch_size": 3}).estimate.verdict == "wont_fit"
    p = fake.make(Txt2Img, width=896, height=640, batch_size=3, own=[{"mode": "fix"}])
    guard.before_process(p, [{"mode": "fix"}])
    assert (p.batch_size, p.n_iter) == (1, 3)
    assert looks == []


def uses_of(path: Path) -> set[str]:
    """What a source file uses, without comments and texts: ``name``, ``.attribute`` and ``keyword=``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
        elif isinstance(node, ast.keyword):
            found.add(f"{node.arg}=")
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


@pytest.mark.parametrize("use", [".style", "_js=", "every=", ".Timer", ".LinePlot"])
def test_nothing_of_gradio_is_used_that_one_of_its_two_versions_lacks(use):
    assert [path.name for path in PAGE_SOURCES if use in uses_of(path)] == []


@pytest.mark.parametrize(
    "name",
    [
        "refresh_memory_management_settings",  # Forge's: lasts until the page is loaded again
        "using_forge_operations",  # Neo's: patches torch.nn for the whole process
        "memory_peak_estimation_modifier",  # Neo does not know it
    ],
)
def test_what_outlives_a_run_or_is_not_there_on_every_host_is_not_used(name):
    assert [path.name for path in OWN_SOURCES if {name, f".{name}"} & uses_of(path)] == []


def test_nothing_is_done_at_every_change_of_the_page():
    scripts = sorted((REPOSITORY / "javascript").glob("*.js"))
    assert scripts
    assert [path.name for path in scripts if re.search(r"\bonUiUpdate\b", path.read_text(encoding="utf-8"))] == []
