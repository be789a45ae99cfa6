"""Changes and their undoing."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest

from lib_vram.host.patches import Patches, Runs


class Thing:
    kind = "of the class"

    def close(self):
        self.closed = True


def function():
    return None


def other():
    return None


def test_an_attribute_comes_back_and_one_of_the_class_shows_again():
    thing, patches = Thing(), Patches()
    thing.own = other
    patches.set_attribute(thing, "own", function)
    patches.set_attribute(thing, "kind", function)
    patches.undo()
    assert thing.own is other and thing.kind == "of the class" and "kind" not in vars(thing)


def test_what_somebody_else_has_set_since_stays():
    thing, patches = Thing(), Patches()
    patches.set_attribute(thing, "own", function)
    thing.own = other
    patches.undo()
    assert thing.own is other


def test_changes_are_undone_in_reverse_order_and_once():
    thing, patches = Thing(), Patches()
    thing.value = 1
    patches.set_field(thing, "value", 2)
    patches.set_field(thing, "value", 3)
    patches.undo()
    assert thing.value == 1
    thing.value = 2
    patches.undo()
    assert thing.value == 2


@pytest.mark.parametrize(("before", "after"), [({}, {}), ({"key": 1}, {"key": 1})])
def test_an_item_comes_back(before, after):
    patches = Patches()
    patches.set_item(before, "key", False)
    assert before["key"] is False
    patches.undo()
    assert before == after


def test_closing_ends_the_run_and_still_closes():
    runs, p, shared = Runs(), Thing(), Thing()
    runs.of(p).of_run.set_attribute(shared, "patched", function)
    p.close()
    assert p.closed and not hasattr(shared, "patched") and "close" not in vars(p)


def test_a_processing_object_that_is_dropped_takes_its_changes_along():
    runs, p, shared = Runs(), Thing(), Thing()
    runs.of(p).of_run.set_attribute(shared, "patched", function)
    gone = weakref.ref(p)
    del p
    gc.collect()
    assert gone() is None and not hasattr(shared, "patched")


def test_fields_stay_when_a_run_finishes_and_come_back_when_it_starts_again():
    runs, p = Runs(), Thing()
    p.batch_size = 4
    runs.of(p).of_fields.set_field(p, "batch_size", 1)
    runs.finish(p)
    assert p.batch_size == 1
    runs.end(p)
    assert p.batch_size == 4


def test_one_runs_end_is_not_anothers():
    runs, outer, inner, shared = Runs(), Thing(), Thing(), Thing()
    runs.of(outer).of_run.set_attribute(shared, "outer", function)
    runs.of(inner).of_run.set_attribute(shared, "inner", other)
    runs.end(inner)
    assert shared.outer is function and not hasattr(shared, "inner")
    runs.end_all()
    assert not hasattr(shared, "outer")


def test_a_wrapper_that_was_kept_knows_that_its_run_is_over():
    runs, p = Runs(), Thing()
    run = runs.of(p)
    assert run.active
    p.close()
    assert not run.active


def test_an_undo_that_was_covered_is_made_up_for_once_the_cover_is_gone():
    runs, outer, inner, shared = Runs(), Thing(), Thing(), Thing()
    runs.of(outer).of_run.set_attribute(shared, "patched", function)
    runs.of(inner).of_run.set_attribute(shared, "patched", other)
    runs.finish(outer)
    assert shared.patched is other
    runs.finish(inner)
    assert not hasattr(shared, "patched")


def test_a_copy_of_a_running_object_is_known_and_made_independent():
    runs, p = Runs(), Thing()
    run = runs.of(p)
    run.wrap(p, "sample", function)
    again = copy.copy(p)
    assert runs.outer_of(again) is run and runs.outer_of(p) is None
    runs.release(again)
    assert vars(again) == {} and p.sample is function
    again.close()
    assert run.active and not hasattr(p, "closed")


def test_a_copy_of_an_object_whose_run_is_over_is_not_part_of_it():
    runs, p = Runs(), Thing()
    runs.of(p)
    again = copy.copy(p)
    runs.finish(p)
    assert runs.outer_of(again) is None


def test_a_run_does_not_keep_its_object_alive():
    gc.collect()
    gc.disable()
    try:
        runs, p = Runs(), Thing()
        runs.of(p)
        gone = weakref.ref(p)
        del p
        assert gone() is None
    finally:
        gc.enable()


def test_a_run_that_nobody_closed_ends_when_the_next_job_begins_and_inner_runs_of_a_job_do_not():
    job = [1.0]
    runs, left_over, inner, shared = Runs(lambda: job[0]), Thing(), Thing(), Thing()
    runs.of(left_over).of_run.set_attribute(shared, "tiles", True)
    runs.of(inner)
    runs.end_left_over()
    assert shared.tiles is True
    job[0] = None  # the host is idle, or does not say: nothing is known to be over
    runs.end_left_over()
    assert shared.tiles is True
    job[0] = 2.0
    runs.end_left_over()
    assert not hasattr(shared, "tiles")


def test_an_undo_that_fails_keeps_no_other_from_its_turn():
    thing, patches = Thing(), Patches()
    patches.set_attribute(thing, "first", function)
    patches.call_when_undone(lambda: 1 / 0)
    patches.set_attribute(thing, "last", function)
    assert patches.undo()
    assert vars(thing) == {}


def test_a_run_whose_undoing_fails_is_closed_all_the_same():
    runs, thing = Runs(), Thing()
    runs.of(thing).of_run.call_when_undone(lambda: 1 / 0)
    thing.close()
    assert thing.closed


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("values", [("ours", "theirs"), ("ours", "ours")])
def test_two_runs_items_come_back_in_whichever_order_they_end(order, values):
    settings = {"key": "users"}
    runs = [Patches(), Patches()]
    for patches, value in zip(runs, values, strict=True):
        patches.set_item(settings, "key", value)
    runs[order[0]].undo()
    assert settings["key"] == values[order[1]]
    runs[order[1]].undo()
    assert settings == {"key": "users"}


def test_what_the_user_set_between_two_runs_outlives_both():
    settings = {"key": "users"}
    first, second = Patches(), Patches()
    first.set_item(settings, "key", "ours")
    settings["key"] = "new"
    second.set_item(settings, "key", "theirs")
    first.undo()
    second.undo()
    assert settings == {"key": "new"}


def test_an_item_that_was_missing_is_missing_again_after_two_runs():
    settings = {}
    first, second = Patches(), Patches()
    for patches in (first, second):
        patches.set_item(settings, "key", "ours")
    first.undo()
    assert settings == {"key": "ours"}
    second.undo()
    assert settings == {}


class Collecting(dict):
    """While it is read, as at any moment, the collector may end the run of an object that nobody holds."""

    ends = None

    def get(self, key, default=None):
        end, self.ends = self.ends, None
        if end is not None:
            end()
        return super().get(key, default)


def test_a_run_that_is_collected_while_another_sets_an_item_ends_without_waiting_for_it():
    collected, at_work, options = Patches(), Patches(), {}
    collected.set_item(options, "key", True)
    settings = Collecting()
    settings.ends = collected.undo
    setting = threading.Thread(target=at_work.set_item, args=(settings, "key", True), daemon=True)
    setting.start()
    setting.join(10)
    assert not setting.is_alive() and (options, settings) == ({}, {"key": True})
