"""How long a plan takes is said from this machine's own runs, and not at all without them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lib_vram.estimate.result import Estimate
from lib_vram.guard import guard as guard_module
from lib_vram.guard.guard import Guard
from lib_vram.guard.refusal import steps_text
from lib_vram.host.lab import LabHost
from lib_vram.learning.durations import Known
from lib_vram.message import say
from lib_vram.plan.result import Plan, Step
from lib_vram.ui import view
from lib_vram.units import GIB
from tests.estimate.stand_in import a_request

ASKED = a_request(batch_size=4)
CHANGED = a_request(batch_count=4)


@pytest.fixture
def plan(monkeypatch):
    """Return a function that plans on a machine where requests took so many seconds."""

    def made(before, after):
        step = Step("batch_to_count", "batch_size", 4, 1, GIB, "time", say("plan.batch_to_count", before=4, after=1,
                    count_after=4))  # fmt: skip
        result = Plan(True, (step,), CHANGED, Estimate("fits", GIB))
        monkeypatch.setattr(guard_module, "make_plan", lambda request, preferences: result)
        took = {ASKED: before, CHANGED: after}
        guard = Guard(LabHost())
        monkeypatch.setattr(
            guard, "learned",
            SimpleNamespace(
                plan=lambda request, result, make_plan: make_plan(request),
                seconds=lambda request: Known(took[request], 3) if took[request] else None,
            ),
        )  # fmt: skip
        return guard._plan(ASKED, Estimate("wont_fit", GIB))

    return made


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (30.2, 70.4, "Batch 4 → 1, 4 runs: same pictures; about 40 s longer by earlier runs here"),
        (None, 70.4, "Batch 4 → 1, 4 runs: same pictures; about 70 s by earlier runs here"),
        (30, 30.4, "Batch 4 → 1, 4 runs: same pictures; about 30 s by earlier runs here"),
        (30, None, "Batch 4 → 1, 4 runs: same pictures"),
        (None, None, "Batch 4 → 1, 4 runs: same pictures"),
    ],
)
def test_what_a_plan_takes_is_said_from_earlier_runs_alone(plan, before, after, text):
    result = plan(before, after)
    assert steps_text(result, "en") == text
    asked = view.ask(Estimate("wont_fit", GIB), result, (object(),), "es")
    assert ("ejecuciones anteriores" in asked) == (after is not None) == ("takes" in result.to_dict())
