"""What is registered with the host, and that it survives *Reload UI*."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lib_vram import callbacks
from lib_vram.guard.between import CHOICES
from lib_vram.plan.preferences import KEPT
from tests.fakehost.processing import page_run
from tests.fakehost.webui import REPOSITORY


class FakeControl:
    """Any gradio component: keeps what it was made with."""

    def __init__(self, *arguments, **named):
        self.named = named
        self.value = named.get("value")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def gradio(monkeypatch):
    made = SimpleNamespace(
        Accordion=FakeControl,
        Textbox=FakeControl,
        Checkbox=FakeControl,
        Slider=FakeControl,
        Radio=FakeControl,
        CheckboxGroup=FakeControl,
    )
    monkeypatch.setitem(sys.modules, "gradio", made)
    return made


def test_everything_is_registered_once(fake):
    assert {name: len(functions) for name, functions in fake.callbacks.items()} == {
        "model_loaded": 1, "ui_settings": 1, "ui_tabs": 1, "app_started": 1, "script_unloaded": 1
    }  # fmt: skip


def test_reloading_the_page_twice_doubles_nothing(fake):
    first = callbacks.guard()
    for _ in range(2):
        fake.unload_scripts()
        fake.load_scripts()
    assert all(len(functions) == 1 for functions in fake.callbacks.values())
    assert len([item for item in fake.runner.alwayson_scripts if item.title() == "VRAM Guard"]) == 1
    assert callbacks.guard() is first
    assert len(page_run(fake.make(batch_size=2))) == 2


def test_unloading_undoes_what_a_run_has_left(fake):
    p = fake.make(own=[{"tiled": True, "apart": True}])
    callbacks.before_process(p, [{"tiled": True, "apart": True}])
    assert vars(p).keys() & {"close"}
    fake.unload_scripts()
    assert not vars(p).keys() & {"close", "sample", "init"}
    assert p.override_settings == {}


def test_the_settings_are_a_short_section_of_our_own(fake, gradio):
    known = set(fake.opts.data_labels)
    fake.callbacks["ui_settings"][0]()
    labels = {name: item for name, item in fake.opts.data_labels.items() if name not in known}
    names = ("mode", "keep", "refuse_api", "free_between", "rescue", "keep_latents")
    assert list(labels) == [f"vram_guard_{name}" for name in names]
    assert {item.section for item in labels.values()} == {("vram_guard", "VRAM Guard")}
    assert [value for _, value in labels["vram_guard_mode"].args["choices"]] == ["off", "show", "ask", "fix"]
    assert (fake.opts.vram_guard_mode, fake.opts.vram_guard_refuse_api) == ("ask", False)
    assert fake.opts.vram_guard_rescue is fake.opts.vram_guard_keep_latents is True
    assert [value for _, value in labels["vram_guard_keep"].args["choices"]] == list(KEPT)
    assert [value for _, value in labels["vram_guard_free_between"].args["choices"]] == list(CHOICES)
    assert fake.opts.vram_guard_keep == fake.opts.vram_guard_free_between == []


@pytest.mark.parametrize("tab", ["txt2img", "img2img"])
def test_the_accordion_has_its_controls_in_the_order_of_the_arguments(fake, gradio, tab):
    made = callbacks.controls(tab)
    names = ["run", "tiled", "tile_size", "apart", "reserve", "unload", "preview", "attention", "fp8", "upscaler_tile"]
    assert [item.named["elem_id"] for item in made] == [f"{tab}_vram_guard_{name}" for name in names]
    assert [item.value for item in made] == ["", False, 768, False, 0, False, "", "", False, 0]
    assert not made[0].named["visible"]


def test_our_tiled_switch_is_shown_where_the_host_has_none_and_its_size_where_tiles_are_ours(fake, gradio):
    _, tiled, tile_size, *_ = callbacks.controls("txt2img")
    shown = {"forge": (False, False), "classic": (False, False), "neo": (True, False)}.get(fake.name, (True, True))
    assert (tiled.named["visible"], tile_size.named["visible"]) == shown


def test_no_argument_of_gradio_is_used_that_one_of_its_versions_lacks(fake, gradio):
    common = {"label", "info", "value", "visible", "elem_id", "minimum", "maximum", "step", "choices"}
    for item in callbacks.controls("txt2img"):
        assert set(item.named) <= common


def test_nothing_happens_at_import_of_the_package():
    """No output, no torch, no gradio, no host: the script file decides when to register."""
    code = (
        "import sys; import lib_vram.callbacks, lib_vram.host.a1111, lib_vram.host.forge; "
        "print(sorted({'torch', 'gradio', 'modules'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_unsupported_host_gets_one_line_and_no_registration(fake, monkeypatch, caplog):
    callbacks.guard.cache_clear()
    monkeypatch.setitem(sys.modules, "modules.sd_offload", SimpleNamespace())
    fake.load_scripts()
    assert fake.callbacks == {}
    assert caplog.text.count("SD.Next") == 1
    assert len(page_run(fake.make(batch_size=2))) == 2


def test_the_host_is_asked_to_register_from_a_short_stack(fake):
    """The hosts look up the source of every frame of the stack, at each registration: 50 ms from a script file."""
    depths = []
    script_callbacks = fake.modules["modules.script_callbacks"]
    script_callbacks.on_ui_tabs = lambda function: depths.append(len(inspect.stack(0)))
    callbacks.register()
    assert depths[0] <= 10


def test_a_registration_that_the_host_refuses_is_not_passed_over_in_silence(fake):
    del fake.modules["modules.script_callbacks"].on_ui_tabs
    with pytest.raises(AttributeError, match="on_ui_tabs"):
        callbacks.register()


def test_the_start_imports_nothing_that_only_the_page_needs():
    """What the sections, the estimate and the plan need comes with the first answer to the page."""
    code = (
        "import sys; import lib_vram.callbacks, lib_vram.host.a1111, lib_vram.ui.tab, lib_vram.ui.routes; "
        "print([name for name in sys.modules if name.startswith(('lib_vram.diagnosis', 'lib_vram.ui.sections', "
        "'lib_vram.estimate.estimator', 'lib_vram.plan.search'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
