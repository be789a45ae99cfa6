"""What the guard does about a run, in both hosts, with an estimate and a plan that the test decides."""

from __future__ import annotations

import pytest

from lib_vram import callbacks
from lib_vram.errors import BadInput
from lib_vram.estimate.result import Estimate, PhaseEstimate
from lib_vram.guard import guard as guard_module
from lib_vram.message import say
from lib_vram.plan.result import Plan, Step
from tests.fakehost.processing import api_run, grid_cells, page_run

GIB = 1024**3
PHASE = PhaseEstimate("vae_decode", 2 * GIB, 6 * GIB, 7 * GIB, 8 * GIB, 6 * GIB, 8 * GIB, "profile")


def estimate_of(request, limit_batch=1):
    """A batch larger than ``limit_batch`` does not fit."""
    verdict = "wont_fit" if request.batch_size > limit_batch else "fits"
    return Estimate(verdict, 7 * GIB, "vae_decode", 8 * GIB, 0, 0, (PHASE,))


def plan_of(request, preferences=None):
    """Batch size into batch count."""
    changed = request.replace(batch_size=1, batch_count=request.images)
    step = Step("batch_to_count", "batch_size", request.batch_size, 1, GIB, "time", say("test.step"))
    return Plan(True, (step,), changed, estimate_of(changed))


def no_plan(request, preferences=None):
    """Nothing helps."""
    return Plan(False, (), request, estimate_of(request), say("test.nothing_helps"))


@pytest.fixture
def computed(monkeypatch):
    """Replace the estimate and the plan, and count how often they are asked for."""
    calls = {"estimate": 0, "plan": 0}

    def counted(name, function):
        def call(request, *preferences):
            calls[name] += 1
            return function(request, *preferences)

        return call

    monkeypatch.setattr(guard_module, "estimate", counted("estimate", estimate_of))
    monkeypatch.setattr(guard_module, "make_plan", counted("plan", plan_of))
    return calls


@pytest.fixture
def nothing_helps(computed, monkeypatch):
    monkeypatch.setattr(guard_module, "make_plan", no_plan)


def test_a_run_that_fits_is_left_alone(fake, computed):
    p = fake.make(batch_size=1, n_iter=2)
    pictures = page_run(p)
    assert [picture.seed for picture in pictures] == [1, 2]
    assert p.extra_generation_params == {} and p.comments == {}


def test_ask_mode_lets_other_runs_through_with_a_warning_in_log_infotext_and_page(fake, computed, caplog):
    p = fake.make(batch_size=4)
    pictures = page_run(p)
    assert len(pictures) == 4 and p.batch_size == 4
    assert "VRAM Guard: would not fit; vae decode needs 9.0 GiB of 7.0 GiB" in pictures[0].infotext
    assert "VAE decode needs 9.0 GiB, 7.0 GiB are there" in caplog.text
    assert "It would fit with these changes" in next(iter(p.comments))


def test_show_mode_says_it_in_the_log_alone(fake, computed, caplog):
    fake.opts.data["vram_guard_mode"] = "show"
    p = fake.make(batch_size=4)
    page_run(p)
    assert "VAE decode needs 9.0 GiB" in caplog.text
    assert p.extra_generation_params == {} and p.comments == {}


def test_off_mode_does_not_even_estimate(fake, computed):
    fake.opts.data["vram_guard_mode"] = "off"
    page_run(fake.make(batch_size=4))
    assert computed == {"estimate": 0, "plan": 0}


def test_fix_mode_makes_the_same_pictures_with_changed_settings(fake, computed, caplog):
    fake.opts.data["vram_guard_mode"] = "fix"
    p = fake.make(batch_size=4, n_iter=1)
    pictures = page_run(p)
    assert [picture.seed for picture in pictures] == [1, 2, 3, 4]
    assert (p.batch_size, p.n_iter) == (1, 4)
    assert fake.record.unet_batches == [2, 2, 2, 2]
    assert pictures[0].infotext.endswith("VRAM Guard: batch 4x1 -> 1x4")
    assert "changed this run so that it fits" in caplog.text


def test_what_a_fix_in_the_page_changed_is_recorded_like_any_other_fix(fake, computed):
    p = fake.make(batch_size=1, n_iter=4, own=("fixed: batch 4x1 -> 1x4; VAE tiled 768", False, 768, False))
    pictures = page_run(p)
    assert pictures[0].infotext.endswith("VRAM Guard: batch 4x1 -> 1x4; VAE tiled 768")


def test_a_warning_comes_after_what_the_page_has_changed(fake, computed):
    p = fake.make(batch_size=2, own=("fixed: batch 4x1 -> 2x2", False, 768, False))
    line = "VRAM Guard: batch 4x1 -> 2x2; would not fit; vae decode needs 9.0 GiB of 7.0 GiB"
    assert page_run(p)[0].infotext.endswith(line)


def test_a_record_from_the_page_cannot_break_the_infotext(fake, computed):
    p = fake.make(batch_size=1, own=('fixed: a, Steps: 1\n"<b>', False, 768, False))
    page_run(p)
    assert p.extra_generation_params["VRAM Guard"] == "a  Steps  1  <b>"


def test_a_fix_that_breaks_off_half_way_runs_what_was_asked_for(fake, computed, monkeypatch):
    fake.opts.data["vram_guard_mode"] = "fix"
    monkeypatch.setattr(type(callbacks.guard().host), "prepare_run", lambda *_: 1 / 0)
    p = fake.make(batch_size=4, n_iter=1)
    page_run(p)
    assert (p.batch_size, p.n_iter) == (4, 1)
    assert "VRAM Guard" not in p.extra_generation_params


def test_fix_mode_warns_when_nothing_helps(fake, nothing_helps, caplog):
    fake.opts.data["vram_guard_mode"] = "fix"
    p = fake.make(batch_size=4)
    assert len(page_run(p)) == 4
    assert "would not fit" in p.extra_generation_params["VRAM Guard"]


@pytest.mark.parametrize("mode", ["off", "show", "ask", "fix"])
def test_the_argument_of_one_run_wins_over_the_settings(fake, computed, mode):
    fake.opts.data["vram_guard_mode"] = "ask" if mode != "ask" else "off"
    p = fake.make(batch_size=4, own=[{"mode": mode}])
    page_run(p)
    assert (p.batch_size == 1) == (mode == "fix")
    assert ("VRAM Guard" in p.extra_generation_params) == (mode in ("ask", "fix"))


def test_run_anyway_runs_without_a_word(fake, computed):
    p = fake.make(batch_size=4, own=["run", False, 768, False])
    assert len(page_run(p)) == 4
    assert p.extra_generation_params == {} and p.comments == {} and computed["estimate"] == 0


def test_a_refused_api_call_gets_a_500_that_says_what_would_fit(fake, computed):
    status, answer = api_run(fake.make(batch_size=4, own=[{"mode": "refuse"}]))
    assert status == 500 and answer["error"] == "Refused"
    assert answer["errors"] == (
        "VRAM Guard refused this generation: VAE decode needs 9.0 GiB, 7.0 GiB are there. "
        "It would fit with these changes: test.step."
    )
    assert fake.record.unet_batches == []


def test_a_refusal_never_says_out_of_memory(fake, nothing_helps):
    _, answer = api_run(fake.make(batch_size=4, own=[{"mode": "refuse"}]))
    assert "out of memory" not in answer["errors"].lower()


def test_the_setting_refuses_api_calls_but_not_the_page(fake, computed):
    fake.opts.data["vram_guard_refuse_api"] = True
    assert api_run(fake.make(batch_size=4))[0] == 500
    assert len(page_run(fake.make(batch_size=4))) == 4


def test_the_setting_fixes_api_calls_first_in_fix_mode(fake, computed):
    fake.opts.data |= {"vram_guard_mode": "fix", "vram_guard_refuse_api": True}
    status, pictures = api_run(fake.make(batch_size=4))
    assert status == 200 and len(pictures) == 4


def test_the_setting_refuses_api_calls_that_no_fix_helps(fake, nothing_helps):
    fake.opts.data |= {"vram_guard_mode": "fix", "vram_guard_refuse_api": True}
    assert api_run(fake.make(batch_size=4))[0] == 500


def test_a_refused_processing_object_can_run_again_when_it_fits(fake, computed):
    p = fake.make(batch_size=4, own=[{"mode": "refuse"}])
    assert api_run(p)[0] == 500
    p.batch_size = 1
    assert api_run(p)[0] == 200


def test_an_argument_that_cannot_be_used_is_said_and_the_settings_decide(fake, computed, caplog):
    p = fake.make(batch_size=4, own=[{"mode": "sideways"}])
    assert len(page_run(p)) == 4
    assert "VRAM Guard.mode: got 'sideways'" in caplog.text


def test_a_fault_of_ours_never_stops_a_run_and_is_said_once(fake, monkeypatch, caplog):
    monkeypatch.setattr(guard_module, "estimate", lambda request: 1 / 0)
    for _ in range(3):
        assert len(page_run(fake.make(batch_size=4))) == 4
    assert caplog.text.count("stands aside") == 1
    assert "ZeroDivisionError" in caplog.text
    assert fake.record.log == []


def test_a_fault_while_fixing_leaves_no_half_change_for_the_next_run(fake, computed, monkeypatch):
    fake.opts.data["vram_guard_mode"] = "fix"
    monkeypatch.setattr(type(callbacks.guard().host), "prepare_run", lambda *_: 1 / 0)
    p = fake.make(batch_size=4)
    assert len(page_run(p)) == 4
    monkeypatch.undo()
    assert callbacks.guard().host.restore(p) is None
    assert (p.batch_size, p.n_iter) == (4, 1)


def test_a_reused_processing_object_starts_from_its_own_values(fake, computed):
    """SD upscale sets the batch size before each of its runs, and the batch count once."""
    fake.opts.data["vram_guard_mode"] = "fix"
    p = fake.make(batch_size=4, n_iter=1)
    for _ in range(3):
        p.batch_size = 4
        assert len(page_run(p)) == 4


def test_the_line_of_one_grid_cell_does_not_leak_into_the_next(fake, computed):
    fake.opts.data["vram_guard_mode"] = "fix"
    first, second = grid_cells(fake.make(), [{"batch_size": 4}, {"batch_size": 1}])
    assert "VRAM Guard" in first[0].infotext and "VRAM Guard" not in second[0].infotext


def test_a_run_inside_a_run_leaves_the_outer_one_its_changes(fake, computed):
    fake.opts.data["vram_guard_mode"] = "fix"
    outer, inner = fake.make(batch_size=3), fake.make(batch_size=2)
    sample = outer.sample
    ran = []

    def sample_and_detail(seeds):
        if not ran:
            ran.append(page_run(inner))
        return sample(seeds)

    outer.sample = sample_and_detail
    assert [picture.seed for picture in page_run(outer)] == [1, 2, 3]
    assert [picture.seed for picture in ran[0]] == [1, 2]


def test_fields_that_make_no_request_are_unknown_with_the_reason(fake, computed):
    check = callbacks.guard().check_form("txt2img", {"width": "wide"})
    assert check.request is None and check.estimate.verdict == "unknown"
    assert str(check.estimate.notes[0]) == "not a request yet: width: got 'wide', takes a number"


@pytest.mark.parametrize("size", [0, 100_000, -8])
def test_sizes_out_of_range_are_unknown_with_the_reason(fake, computed, size):
    check = callbacks.guard().check_form("txt2img", {"width": size, "height": 512})
    assert check.estimate.verdict == "unknown" and "width" in str(check.estimate.notes[0])


def test_no_card_is_said_and_runs_are_left_alone(fake, computed, monkeypatch):
    monkeypatch.setattr("lib_vram.host.webui.current_card", lambda: None)
    check = callbacks.guard().check_form("txt2img", {"width": 512, "height": 512})
    assert str(check.estimate.notes[0]) == "no GPU: nothing to compute"
    p = fake.make(batch_size=4)
    assert len(page_run(p)) == 4 and p.extra_generation_params == {}


def test_a_form_has_a_plan_only_when_it_does_not_fit(fake, computed):
    guard = callbacks.guard()
    assert guard.check_form("txt2img", {"batch_size": 1}).plan is None
    assert guard.check_form("txt2img", {"batch_size": 4}).plan.request.batch_count == 4


def test_a_fault_in_a_check_is_an_answer_too(fake, monkeypatch):
    monkeypatch.setattr(guard_module, "estimate", lambda request: 1 / 0)
    check = callbacks.guard().check_form("txt2img", {})
    assert check.estimate.verdict == "unknown" and "ZeroDivisionError" in str(check.estimate.notes[0])


def test_reasons_name_the_model_whose_family_is_unknown():
    reason = guard_module.reason_of(BadInput("model.family", got="odd.safetensors", takes="a known model"))
    assert str(reason) == "the model family of odd.safetensors is not known"
