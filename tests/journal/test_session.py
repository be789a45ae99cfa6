from __future__ import annotations

from lib_vram.journal.session import Session
from lib_vram.request import DeviceSpec, ModelSpec, Request

REQUEST = Request(DeviceSpec(8 * 1024**3), ModelSpec("sdxl"), 1024, 1024)
OTHER = REQUEST.replace(width=512)


class Errors:
    def __init__(self):
        self.error, self.busy, self.count = None, None, 0

    def raised(self, text):
        self.error, self.count = text, self.count + 1

    def mark(self):
        return self.count

    def text(self):
        return self.error

    def job(self):
        return self.busy


class Journal:
    def __init__(self):
        self.events = []

    def write(self, event, **values):
        self.events.append(values.get("name") or event)


def session():
    errors, made = Errors(), None
    made = Session(errors)
    made.journal = Journal()
    return made, errors


def test_a_run_that_ends_is_the_last_good_one():
    here, _ = session()
    run = object()
    here.started(run, REQUEST)
    here.ended(run)
    assert (here.last_good, here.good_runs, here.last_failure) == (REQUEST, 1, None)
    assert here.journal.events == ["run", "load", "done"]


def test_a_run_whose_job_is_over_without_an_end_has_failed_with_the_hosts_new_error():
    here, errors = session()
    errors.busy = 1.0
    here.started(object(), REQUEST)
    errors.raised("CUDA out of memory")
    assert here.last_failure is None  # an error that the run went on after
    errors.busy = None
    assert (here.last_failure.text, here.last_failure.request) == ("CUDA out of memory", REQUEST)
    assert here.journal.events[-1] == "failed"


def test_an_error_of_another_script_is_not_the_runs_when_it_ends():
    here, errors = session()
    run = object()
    errors.busy = 1.0
    here.started(run, REQUEST)
    errors.raised("an extension's own")
    here.ended(run)
    errors.busy = None
    assert here.last_failure is None


def test_the_same_error_twice_is_two_failures():
    here, errors = session()
    for request in (REQUEST, OTHER):
        here.started(object(), request)
        errors.raised("CUDA out of memory")
        assert here.last_failure.request == request


def test_a_run_within_a_run_neither_ends_nor_fails_it():
    here, errors = session()
    outer, inner = object(), object()
    errors.busy = 1.0
    here.started(outer, REQUEST)
    errors.raised("something handled")
    here.started(inner, OTHER)
    here.ended(inner)
    assert here.journal.events == ["run", "load"]
    here.ended(outer)
    assert here.journal.events[-1] == "done"
    assert here.last_good == REQUEST


def test_a_refused_run_is_no_failure():
    here, errors = session()
    run = object()
    here.started(run, REQUEST)
    here.refused(run)
    errors.raised("Refused: it would not fit")
    assert here.last_failure is None


def test_a_checkpoint_that_loads_outside_a_run_stands_in_the_journal():
    here, _ = session()
    assert here.loading()
    assert not here.loading()
    here.loaded()
    assert here.journal.events == ["run", "load_checkpoint", "done"]


def test_a_checkpoint_that_loads_within_a_run_is_the_runs_own():
    here, _ = session()
    here.started(object(), REQUEST)
    assert not here.loading()
    assert here.journal.events == ["run", "load"]


def test_a_run_that_begins_while_a_checkpoint_loads_is_not_over_when_the_load_is():
    here, _ = session()
    here.loading()
    here.started(object(), REQUEST)
    here.loaded()
    assert here.journal.events == ["run", "load_checkpoint", "run", "load"]
