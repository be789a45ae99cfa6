"""What a person rules out is left alone, and said when nothing else helps."""

from __future__ import annotations

import random

import pytest

from lib_vram.errors import BadInput
from lib_vram.plan.adjustments import LADDER, offered
from lib_vram.plan.preferences import KEEPS, KEPT, Preferences, keep_of
from lib_vram.plan.search import make_plan
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request, physics
from tests.plan.test_search import random_request


def test_everything_that_is_kept_rules_out_rungs_of_the_ladder():
    ids = {rung.id for rung in LADDER}
    assert set(KEEPS) == set(KEPT)
    assert all(levers and levers <= ids for levers in KEEPS.values())


def test_what_a_settings_page_holds_is_taken_as_far_as_it_is_known():
    preferences = Preferences.of(["size", "nonsense", 3], ["batch_to_count", "gone"])
    assert preferences == Preferences(frozenset(("size",)), frozenset(("batch_to_count",)))
    assert Preferences.of("size") == Preferences.of(None) == Preferences()


@pytest.mark.parametrize("value", ["size", ["nothing"], None, {"size": True}])
def test_what_a_program_gives_is_refused_when_it_is_not_known(value):
    with pytest.raises(BadInput, match="keep"):
        keep_of(value)
    assert keep_of(["size", "hires"]).keep == {"size", "hires"}


@pytest.mark.parametrize("keep", KEPT)
def test_plans_leave_alone_what_is_kept(keep):
    rng = random.Random(keep)
    for _ in range(40):
        request, answer = random_request(rng)
        plan = make_plan(request, answer, Preferences.of([keep]))
        assert not KEEPS[keep].intersection(step.id for step in plan.steps)
        assert not KEEPS[keep].intersection(rung.id for rung in offered(request, Preferences.of([keep])))


def test_without_the_batch_the_next_harmful_thing_is_changed():
    request = a_request(width=1024, height=1024, batch_size=12)
    assert [step.id for step in make_plan(request, physics).steps] == ["batch_to_count"]
    kept = make_plan(request, physics, Preferences.of(["batch"]))
    assert [step.id for step in kept.steps] == ["cond_uncond_apart"]
    left_out = ["batch_to_count", "cond_uncond_apart", "fp8_storage"]
    undone = make_plan(request, physics, Preferences.of(undone=left_out))
    assert [step.id for step in undone.steps] == ["smaller_size"]


@pytest.mark.parametrize(
    ("preferences", "text"),
    [
        (Preferences.of(["size"]), "It would fit with a smaller size, which your settings keep as it is."),
        (Preferences.of(undone=["smaller_size"]), "It would fit with changes that you have undone twice"),
    ],
)
def test_when_only_what_is_ruled_out_would_help_it_is_said(preferences, text):
    plan = make_plan(a_request(width=6144, height=6144), physics, preferences)
    assert not plan.fits and not plan.steps
    assert text in str(plan.when_not)


def test_when_several_kept_things_would_have_to_change_none_is_singled_out():
    request = a_request(width=6144, height=6144, batch_size=4)
    plan = make_plan(request, physics, Preferences.of(["size", "batch"]))
    assert str(plan.when_not) == (
        "Nothing that your settings let a fix change is enough. It would fit if more of what they keep could change."
    )


def test_what_is_kept_does_not_hide_what_no_change_could_help():
    request = a_request(model={"family": "sdxl", "weights_dtype": "fp8"}, device={"total_bytes": int(3.1 * GIB)})
    plan = make_plan(request, physics, Preferences.of(["size"]))
    assert "--medvram" in str(plan.when_not)
