"""A run that runs out of memory: what fails is computed again, everything else goes on as if nothing had been."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib.util
import logging
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib_vram.guard import fail_open
from lib_vram.host import rescue, rescue_levers

_spec = importlib.util.spec_from_file_location("rescue_host", Path(__file__).parent / "rescue_host.py")
webui = importlib.util.module_from_spec(_spec)
sys.modules["rescue_host"] = webui
_spec.loader.exec_module(webui)

OOM = webui.OutOfMemoryError
Img2Img = webui.Img2Img


def out_of_memory():
    return OOM("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 12.00 GiB")


@pytest.fixture
def rescued():
    return []


@pytest.fixture
def host(monkeypatch, rescued):
    made = webui.Host().install(monkeypatch)
    monkeypatch.setattr(rescue_levers.gc, "collect", lambda: 0)  # reference counts must be enough, and it takes long
    rescuer = rescue.Rescuer(made, lambda phase, line, error: rescued.append((phase, line)))
    made.rescuer = rescuer
    fail_open.forget()
    rescuer.start()
    yield made
    rescuer.stop()


def unfailed(monkeypatch, kind=webui.Txt2Img, **fields):
    with monkeypatch.context() as patch:
        return webui.Host().install(patch).run(kind, **fields)[1]


def sampled(host):
    return [count for phase, count in host.calls if phase == "sampling"]


def test_a_run_that_does_not_fail_is_computed_as_without_us(host, rescued):
    p, pictures = host.run(batch_size=2, n_iter=2)
    assert sampled(host) == [2, 2]
    assert len(pictures) == 4
    assert (p.extra_generation_params, p.comments, host.freed, rescued) == ({}, [], [], [])


def test_the_error_that_it_was_first_rescued_from_is_heard_with_its_figures(host):
    heard = []
    host.rescuer.told = lambda *said: heard.append(said)
    first = out_of_memory()
    text = str(first)
    host.fails["sampling"] = [first, out_of_memory()]
    host.run(batch_size=4)
    assert heard[0] == ("sampling", heard[0][1], f"{type(first).__name__}: {text}")


@pytest.mark.parametrize("failed", [1, 2])
@pytest.mark.parametrize("kind", [webui.Txt2Img, Img2Img])
def test_sampling_is_done_again_in_shares_with_the_same_pictures(host, monkeypatch, kind, failed):
    host.fails["sampling"] = [None, *(out_of_memory() for _ in range(failed))]
    p, pictures = host.run(kind, batch_size=4, n_iter=2)
    assert pictures == unfailed(monkeypatch, kind, batch_size=4, n_iter=2)
    assert sampled(host)[0] == 4
    assert len(host.saved) == len({sample for sample, _ in host.saved}) == 8
    assert (p.batch_size, p.iteration, p.seeds) == (4, 1, [104, 105, 106, 107])


def test_only_pictures_that_are_missing_are_computed(host):
    host.request = {"batch_size": 4, "batch_count": 1}
    host.fails["sampling"] = [out_of_memory(), None, out_of_memory()]
    host.run(batch_size=4)
    assert [seeds for _, _, seeds, _ in host.batches] == [
        [100, 101, 102, 103], [100, 101], [102, 103], [102], [103],
    ]  # fmt: skip


def test_scripts_see_the_batch_size_and_iteration_of_the_share(host):
    host.fails["sampling"] = [None, out_of_memory()]
    host.run(batch_size=2, n_iter=2)
    assert [(iteration, size) for iteration, size, _, _ in host.batches] == [(0, 2), (1, 2), (2, 1), (3, 1)]


def test_later_batches_begin_with_what_was_learned(host):
    host.fails["sampling"] = [out_of_memory()]
    host.run(batch_size=2, n_iter=3)
    assert sampled(host) == [2, 1, 1, 1, 1, 1, 1]


def test_the_user_is_told_once_in_the_log_under_the_pictures_and_in_the_infotext(host, rescued, caplog):
    host.fails["sampling"] = [None, out_of_memory()]
    with caplog.at_level(logging.WARNING, "vram_guard"):
        p, _ = host.run(batch_size=2, n_iter=3)
    assert p.comments == [
        "VRAM Guard rescued this run: sampling ran out of memory and was done again with a change: "
        "Batch 2 → 1, 3 → 6 runs: same pictures."
    ]
    assert caplog.text.count("rescued this run") == 1
    assert [text for _, text in host.saved][:2] == ["", ""]
    assert {text for _, text in host.saved[2:]} == {"rescued in sampling; batch 2x3 -> 1x6"}
    assert rescued == [("sampling", "batch 2x3 -> 1x6")]


def test_the_second_pass_is_done_again_without_the_first(host, monkeypatch):
    host.fails["hires_sampling"] = [out_of_memory()]
    _, pictures = host.run(batch_size=2, enable_hr=True)
    assert pictures == unfailed(monkeypatch, batch_size=2, enable_hr=True)
    assert sampled(host) == [2]
    assert [count for phase, count in host.calls if phase == "hires_sampling"] == [2, 1, 1]


def test_a_first_pass_that_fails_is_rescued_with_its_second_pass(host, monkeypatch):
    host.fails["sampling"] = [out_of_memory()]
    _, pictures = host.run(batch_size=2, enable_hr=True)
    assert pictures == unfailed(monkeypatch, batch_size=2, enable_hr=True)


def test_first_pass_pictures_are_saved_once(host, monkeypatch):
    saved = []
    images = SimpleNamespace(save_image=lambda *given, **named: saved.append((given[3], named["suffix"])))
    monkeypatch.setitem(sys.modules, "modules.images", images)
    before = images.save_image

    def sample_hr_pass(p, samples, decoded_samples, seeds, *rest):
        for seed in seeds:
            images.save_image(
                "picture", "out", "", seed, "prompt", info=f"of {seed}", p=p, suffix="-before-highres-fix"
            )
            images.save_image("mask", "out", "", seed, "prompt", info="", p=p, suffix="-mask")
        host.step("hires_sampling", len(seeds))
        return samples

    host.rescuer.stop()
    monkeypatch.setattr(webui.Txt2Img, "sample_hr_pass", sample_hr_pass)
    host.rescuer.start()
    host.fails["hires_sampling"] = [out_of_memory()]
    host.run(batch_size=2, enable_hr=True)
    assert [seed for seed, suffix in saved if suffix == "-before-highres-fix"] == [100, 101]
    assert len([seed for seed, suffix in saved if suffix == "-mask"]) == 4
    assert images.save_image is before
    host.rescuer.stop()


@pytest.mark.parametrize(("phase", "kind"), [("text_encode", webui.Txt2Img), ("vae_encode", Img2Img)])
def test_a_step_that_cannot_be_made_smaller_is_repeated_after_freeing(host, phase, kind):
    host.fails[phase] = [out_of_memory(), out_of_memory()]
    p, pictures = host.run(kind, batch_size=2)
    assert len(pictures) == 2
    assert p.extra_generation_params == {"VRAM Guard": f"rescued in {phase.replace('_', ' ')}"}


def test_a_control_nets_preprocessor_is_repeated_although_the_host_only_logs_its_failure(host):
    class ControlNet:
        args_from = args_to = 0

        def title(self):
            return "ControlNet"

        def process(self, p, *arguments):
            host.step("controlnet_preprocess", 0)

    script = ControlNet()
    host.fails["controlnet_preprocess"] = [out_of_memory()]
    p, _ = host.run(scripts=SimpleNamespace(alwayson_scripts=[script]))
    assert [phase for phase, _ in host.calls][:2] == ["controlnet_preprocess"] * 2
    assert p.extra_generation_params == {"VRAM Guard": "rescued in controlnet preprocess"}
    assert "process" not in vars(script)


# the decode


def test_a_decode_is_done_again_in_tiles_and_nothing_is_sampled(host):
    host.fails["vae_decode"] = [None, out_of_memory()]
    p, pictures = host.run(batch_size=4, side=128)
    assert sampled(host) == [4]
    assert pictures[0][0] == "whole"
    assert len({how for how, _ in pictures[1:]}) == 1
    assert pictures[1][0].startswith("tiles ")
    assert p.extra_generation_params["VRAM Guard"].startswith("rescued in vae decode; VAE tiled ")


def test_a_size_that_ran_out_once_is_not_tried_whole_again(host):
    host.fails["vae_decode"] = [out_of_memory()]
    host.run(n_iter=3, side=128)
    assert [phase for phase, _ in host.calls].count("vae_decode") == 1


def test_tiles_that_run_out_too_become_smaller(host):
    host.fails["vae_decode"] = [out_of_memory()]
    first = host.run(side=128)[1][0][0]
    host.fails |= {"vae_decode": [out_of_memory()], first: [out_of_memory()]}
    second = host.run(side=128)[1][0][0]
    assert int(second.split()[1]) < int(first.split()[1])


def test_the_decoder_is_left_as_it_was(host):
    before = host.decoder.forward
    host.fails["vae_decode"] = [out_of_memory()]
    host.run(side=128)
    assert host.decoder.forward == before


# what is not rescued


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("CUDA error: device-side assert triggered")])
def test_an_error_that_is_not_about_memory_passes_at_once_and_unchanged(host, error):
    host.fails["sampling"] = [error]
    with pytest.raises(type(error)) as caught:
        host.run(batch_size=2)
    assert caught.value is error
    assert (len(sampled(host)), host.freed) == (1, [])


@pytest.mark.parametrize("phase", ["sampling", "text_encode", "vae_decode"])
def test_a_step_is_tried_at_most_twice_more_then_the_hosts_own_error_comes_out(host, phase):
    host.fails[phase] = [out_of_memory() for _ in range(9)]
    host.fails |= {f"tiles {side}": [out_of_memory()] * 9 for side in range(256, 1088, 64)}
    with pytest.raises(OOM, match="Tried to allocate"):
        host.run(batch_size=1, side=128)
    assert len([name for name, _ in host.calls if name == phase or name.startswith("tiles")]) == 3


def test_the_error_of_a_run_that_is_given_up_says_that_it_was_tried_again(host):
    host.fails["sampling"] = [out_of_memory() for _ in range(3)]
    with pytest.raises(OOM) as caught:
        host.run()
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 12.00 GiB\n"
        "VRAM Guard could not rescue this run: sampling had too little memory again."
    )


@pytest.mark.parametrize("failures", [1, 3])
def test_what_is_added_to_a_disguised_failure_has_not_the_words_that_end_neos_thread(host, failures):
    """See ``test_neo``: Neo takes any error that says them for one of the device."""
    disguised = [RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED") for _ in range(failures)]
    host.fails["sampling"] = [*disguised, KeyError("something of ours")]
    with pytest.raises(RuntimeError) as caught:
        host.run(batch_size=2)
    shown = str(caught.value)
    assert "VRAM Guard could not rescue this run" in shown and "out of memory" not in shown.lower()


def test_it_is_off_by_one_setting(host):
    host.options["vram_guard_rescue"] = False
    host.fails["sampling"] = [out_of_memory()]
    with pytest.raises(OOM):
        host.run()


def test_another_error_in_a_second_try_leaves_the_first_to_be_seen(host):
    first = out_of_memory()
    host.fails["sampling"] = [first, KeyError("something of ours")]
    with pytest.raises(OOM) as caught:
        host.run(batch_size=2)
    assert caught.value is first
    assert str(first).splitlines()[-1] == (
        "VRAM Guard could not rescue this run: sampling had too little memory, "
        "and doing it again ended in KeyError: 'something of ours'"
    )


@pytest.mark.parametrize("broken", ["change", "free", "release"])
def test_a_fault_of_the_rescue_leaves_the_hosts_own_error(host, monkeypatch, broken):
    failure = out_of_memory()
    host.fails["sampling"] = [failure]
    monkeypatch.setattr(rescue_levers, broken, lambda *_: 1 / 0)
    with pytest.raises(OOM) as caught:
        host.run(batch_size=2)
    assert caught.value is failure


def test_a_request_that_cannot_be_computed_is_rescued_all_the_same(host, monkeypatch):
    host.request = {"model": {"family": "none such"}}
    host.fails["sampling"] = [out_of_memory()]
    _, pictures = host.run(batch_size=4)
    assert pictures == unfailed(monkeypatch, batch_size=4)
    assert sampled(host) == [4, 2, 2]


def test_frames_of_a_film_are_not_cut_apart(host):
    host.fails["sampling"] = [out_of_memory()]
    _, pictures = host.run(batch_size=4, sd_model=SimpleNamespace(is_wan=True))
    assert sampled(host) == [4, 4]
    assert len(pictures) == 4


# how far it has come


def progress_seen(host, monkeypatch, **fields):
    """Run and return where the bar stood at each step, in percent, and where it stood at the end."""
    seen = []
    step = host.step

    def watched(phase, count):
        if "sampling" in phase:
            seen.append((host.state.job_no, host.state.job_count, host.state.sampling_step, host.state.textinfo))
            host.state.sampling_step = 1
        step(phase, count)

    monkeypatch.setattr(host, "step", watched)
    host.run(**fields)
    return [round(100 * number / count) for number, count, _, _ in seen], seen


def test_shares_of_a_batch_move_the_bar_on_by_their_part(host, monkeypatch):
    host.fails["sampling"] = [None, out_of_memory()]
    percents, seen = progress_seen(host, monkeypatch, batch_size=2, n_iter=2)
    assert percents == [0, 50, 50, 75]
    assert [step for _, _, step, _ in seen] == [0, 0, 0, 0]
    assert (host.state.job_no, host.state.job_count) == (2, 2)


def test_a_batch_whose_last_share_was_skipped_is_done_like_any(host):
    host.state.sampling_steps = 20
    bar = []
    decode = host.decode
    host.decode = lambda latent: bar.append((host.state.job_no, host.state.sampling_step)) or decode(latent)
    host.fails["sampling"] = [out_of_memory()]
    host.run(batch_size=2)
    assert bar == [(0, 20), (0, 20)]


def test_shares_with_a_second_pass_do_not_run_beyond_the_end(host, monkeypatch):
    host.fails["sampling"] = [out_of_memory()]
    percents, _ = progress_seen(host, monkeypatch, batch_size=2, enable_hr=True)
    assert percents == [0, 0, 25, 50, 75]
    assert (host.state.job_no, host.state.job_count) == (2, 2)


def test_shares_of_a_second_pass_move_the_bar_through_its_half(host, monkeypatch):
    host.fails["hires_sampling"] = [out_of_memory()]
    percents, _ = progress_seen(host, monkeypatch, batch_size=2, n_iter=2, enable_hr=True)
    assert percents == [0, 25, 25, 38, 50, 62, 75, 88]
    assert (host.state.job_no, host.state.job_count) == (4, 4)


def test_the_bar_says_that_a_step_is_done_again_until_it_is_done(host, monkeypatch):
    host.fails["sampling"] = [out_of_memory()]
    _, seen = progress_seen(host, monkeypatch)
    assert [text for *_, text in seen] == [None, "sampling again after running out of memory"]
    assert host.state.textinfo is None


def test_the_bar_is_as_the_host_has_it_when_a_run_inside_another_is_given_up(host):
    class Detailer:
        args_from = args_to = 0

        def title(self):
            return "detailer"

        def process(self, p, *arguments):
            host.state.job_no, host.state.job_count = 1, 3
            host.fails["sampling"] = [out_of_memory() for _ in range(3)]
            try:
                host.run(batch_size=2)
            finally:
                bar.append((host.state.job_no, host.state.job_count, host.state.textinfo))

    bar = []
    host.run(scripts=SimpleNamespace(alwayson_scripts=[Detailer()]))
    assert bar == [(1, 3, None)]


# memory


def test_nothing_of_the_failed_step_is_held_when_memory_is_freed(host):
    host.fails["sampling"] = [out_of_memory(), out_of_memory()]
    host.run(batch_size=2)
    assert host.alive_when_freeing == [0, 0]


def test_an_error_that_another_was_raised_from_is_cleared_and_understood_too(host):
    failure = RuntimeError("sampling failed")
    failure.__cause__ = out_of_memory()
    host.fails["sampling"] = [failure]
    _, pictures = host.run(batch_size=2)
    assert len(pictures) == 2


def test_cond_and_uncond_go_together_again_after_the_run(host):
    opts = sys.modules["modules.shared"].opts
    host.fails["sampling"] = [out_of_memory(), out_of_memory()]
    p, _ = host.run()
    assert opts.data["batch_cond_uncond"] is False
    host.runs.end(p)
    assert opts.data["batch_cond_uncond"] is True


# runs inside and beside others


def test_a_run_inside_another_has_its_own_rescue(host):
    inner = []

    class Detailer:
        args_from = args_to = 0

        def title(self):
            return "detailer"

        def process(self, p, *arguments):
            host.fails["sampling"] = [out_of_memory()]
            inner.append(host.run(batch_size=2)[0])

    p, pictures = host.run(batch_size=2, scripts=SimpleNamespace(alwayson_scripts=[Detailer()]))
    assert inner[0].extra_generation_params == {"VRAM Guard": "rescued in sampling; batch 2x1 -> 1x2"}
    assert p.extra_generation_params == {"VRAM Guard": "rescued in detailer; batch 2x1 -> 1x2"}
    assert p.comments == inner[0].comments != []
    assert len(pictures) == 2


def test_a_run_inside_another_is_tried_at_most_twice_more_and_the_outer_one_says_what_it_lacks(host):
    class Detailer:
        args_from = args_to = 0

        def title(self):
            return "detailer"

        def process(self, p, *arguments):
            host.fails["sampling"] = [out_of_memory() for _ in range(3)]
            host.run()

    p, pictures = host.run(scripts=SimpleNamespace(alwayson_scripts=[Detailer()]))
    assert len(sampled(host)) == 4  # three of the inner run, one of the outer
    assert (len(pictures), p.extra_generation_params) == (1, {})
    assert p.comments == [
        "VRAM Guard could not rescue sampling: it ran out of memory again, and a picture came without it."
    ]


def test_copies_of_a_run_are_rescued_by_themselves(host):
    p = webui.Txt2Img(host, batch_size=2)
    run = sys.modules["modules.processing"].process_images_inner
    run(p)
    cell = copy.copy(p)
    cell.extra_generation_params = {}
    host.fails["sampling"] = [out_of_memory()]
    assert len(run(cell)) == 2
    assert p.extra_generation_params == {}


def test_an_interrupt_during_a_rescue_ends_the_run_with_what_is_finished(host):
    def interrupt(*_):
        host.state.interrupted = True

    host.empty_caches = interrupt
    host.fails["sampling"] = [None, out_of_memory()]
    _, pictures = host.run(batch_size=2, n_iter=4)
    assert len(pictures) == 3


def test_an_interrupt_between_two_shares_keeps_the_first(host):
    def interrupt(p, *rest):
        host.state.interrupted = len(sampled(host)) == 1

    host.tell_batch = interrupt
    host.fails["sampling"] = [out_of_memory()]
    _, pictures = host.run(batch_size=4)
    assert sampled(host) == [4, 2]
    assert len(pictures) == 2


def test_every_share_begins_with_the_model_with_which_the_step_began(host):
    models, began = sys.modules["modules.sd_models"], []
    models.reload_model_weights = lambda: setattr(models.model_data.sd_model, "sd_checkpoint_info", "base")

    def refine(*_):
        began.append(models.model_data.sd_model.sd_checkpoint_info)
        models.model_data.sd_model.sd_checkpoint_info = "refiner"

    models.reload_model_weights()
    host.tell_batch = refine
    host.fails["sampling"] = [out_of_memory()]
    host.run(batch_size=4)
    assert sampled(host) == [4, 2, 2]
    assert began[-2:] == ["base", "base"]


def test_a_share_of_a_second_pass_begins_with_that_pass_s_model(host):
    models = sys.modules["modules.sd_models"]
    model = models.model_data.sd_model
    models.SkipWritingToConfig = contextlib.nullcontext
    models.reload_model_weights = lambda info: setattr(model, "sd_checkpoint_info", info)
    model.sd_checkpoint_info = "second"
    begun = rescue_levers.Begun.now()
    model.sd_checkpoint_info = "refiner"
    assert not begun.again(SimpleNamespace(), is_second_pass=True)
    assert model.sd_checkpoint_info == "second"


def test_starting_again_wraps_once_and_stopping_leaves_nothing(host):
    host.rescuer.start()
    host.rescuer.start()
    host.rescuer.stop()
    processing = sys.modules["modules.processing"]
    assert processing.process_images_inner is webui.process_images_inner
    assert not any(hasattr(step, "__wrapped__") for step in (webui.Txt2Img.sample, Img2Img.sample, Img2Img.init))


def test_a_wrapper_that_another_extension_holds_passes_through_after_stopping(host):
    held = sys.modules["modules.processing"].process_images_inner
    host.rescuer.stop()
    host.fails["sampling"] = [out_of_memory()]
    with pytest.raises(OOM):
        held(webui.Txt2Img(host))


# what a host may do otherwise than ours


def test_nothing_keeps_the_arguments_or_the_result_of_a_rescued_step_alive(host):
    class Tensor:
        """What the step gets and returns."""

    step = host.rescuer._again(lambda tensor: host.step("text_encode", 1) or Tensor(), "text_encode")
    host.rescuer._local.works = [rescue.Work(webui.Txt2Img(host))]
    host.fails["text_encode"] = [out_of_memory()]
    given = Tensor()
    seen = [weakref.ref(given)]
    gc.disable()
    try:
        result = step(given)
        seen.append(weakref.ref(result))
        del given, result
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
        host.rescuer._local.works = []


def test_nothing_of_ours_keeps_the_failure_of_a_step_that_is_given_up(host):
    def fails():
        raise out_of_memory()

    host.rescuer._local.works = [rescue.Work(webui.Txt2Img(host))]
    seen = []
    gc.disable()
    try:
        host.rescuer._again(fails, "text_encode")()
    except OOM as failure:
        seen.append(weakref.ref(failure))
    finally:
        host.rescuer._local.works = []
    try:
        assert [ref() for ref in seen] == [None]
    finally:
        gc.enable()


def test_arguments_that_a_fork_has_added_are_passed_on(host):
    processing = sys.modules["modules.processing"]
    seen = []
    wrapped = host.rescuer._following(lambda p, *more, **named: seen.append((more, named)))
    wrapped(webui.Txt2Img(host), 1, two=2)
    assert seen == [((1,), {"two": 2})]
    assert processing.process_images_inner is not wrapped
