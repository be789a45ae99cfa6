"""What was learned corrects every answer of this machine in the same way, and no answer about another one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from lib_vram.commands.run import main
from lib_vram.estimate.estimator import estimate
from lib_vram.guard.guard import Guard
from lib_vram.host.lab import LabHost
from lib_vram.learning import store as store_module
from lib_vram.learning.peaks import Peak
from lib_vram.learning.record import Fault, PhaseRecord, Predicted, Run, kept_of
from lib_vram.plan.fit import largest
from lib_vram.request import Request
from lib_vram.ui import answers_fits, routes
from lib_vram.units import GIB, MIB

FORM = {
    "lab_total_gib": 12, "lab_others_gib": 1, "lab_mode": "Ask", "checkpoint": "sd_xl_base_1.0.safetensors",
    "width": 1024, "height": 1024, "batch_size": 4, "batch_count": 1, "prompt": "a boat",
}  # fmt: skip


@pytest.fixture
def guard(tmp_path, monkeypatch):
    monkeypatch.setattr(answers_fits, "ANSWER_SECONDS", 60)
    monkeypatch.setattr(store_module, "FOLDER", tmp_path)
    made = Guard(LabHost())
    made.learned.open(tmp_path)
    yield made
    made.learned.recorder.close()


@pytest.fixture
def client(guard):
    app = FastAPI()
    routes.add_routes(app, guard)
    return TestClient(app)


def request_of(guard, **changes):
    return guard.host.request_from_form("txt2img", {**FORM, **changes})


def took(guard, request, *, share=0.0, runs=3, failed=""):
    """Keep ``runs`` runs of ``request`` whose phases all took ``share`` more of their activations than computed."""
    computed, machine = estimate(request), guard.learned._machine(request)
    records = []
    for phase in computed.phases:
        predicted, off = Predicted.of(phase), int(share * phase.floor_bytes)
        peak = Peak(predicted.allocated_bytes + off, predicted.reserved_bytes + off, None, True, True)
        records.append(PhaseRecord(phase.name, 1.0, predicted, Peak() if failed else peak))
    room = computed.available_bytes
    fault = Fault(failed, room + 1, room) if failed else None
    made = Run(
        1.0, machine, kept_of(request), "failed" if failed else "done", computed.verdict, room, 9.0, steps=20,
        phases=tuple(records), fault=fault,
    )  # fmt: skip
    for _ in range(runs):
        guard.learned.store.add(made)
    guard.learned.recorder._known.clear()


def posted(client, name, request):
    return client.post(f"/vram-guard/v1/{name}", json=request.to_dict()).json()


def fits(client, **changes):
    return client.post("/vram-guard/v1/fits", json={"tab": "txt2img", "form": {**FORM, **changes}}).json()


def cli(capsys, tmp_path, request, *arguments):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request.to_dict()), encoding="utf-8")
    assert main([*arguments[:1], str(path), *arguments[1:], "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("share", [0.4, 0.05, -0.03])
def test_page_route_table_and_command_line_say_the_same(guard, client, capsys, tmp_path, share):
    request = request_of(guard)
    took(guard, request, share=share)
    page = guard.check_form("txt2img", FORM).estimate
    routed = posted(client, "estimate", request)
    assert routed["phases"] == page.to_dict()["phases"] != estimate(request).to_dict()["phases"]
    assert routed["verdict"] == page.verdict
    assert any("From 3 runs on this machine" in note for note in routed["notes"])
    current = next(row for row in fits(client)["sizes"]["rows"] if row["current"])
    cell = next(cell for cell in current["cells"] if cell["batch_size"] == 4)
    assert (cell["verdict"], cell["needs_bytes"]) == (page.verdict, page.binding.needs_bytes)
    shell = cli(capsys, tmp_path, request, "estimate", "--learned")
    assert shell["phases"] == routed["phases"]
    assert shell["verdict"] == page.verdict


def test_the_command_line_is_the_same_on_every_machine_unless_it_is_asked_for_this_one(guard, capsys, tmp_path):
    request = request_of(guard)
    before = cli(capsys, tmp_path, request, "estimate")
    nothing = cli(capsys, tmp_path, request, "estimate", "--learned")
    assert nothing["notes"][0].startswith("Nothing has been learned")
    took(guard, request, share=0.4)
    assert cli(capsys, tmp_path, request, "estimate") == before
    assert cli(capsys, tmp_path, request, "estimate", "--learned")["notes"] != before["notes"]


def test_what_fits_moves_both_ways_and_never_over_the_floor(guard, client, capsys, tmp_path):
    request = request_of(guard, batch_size=1)
    sizes = {"computed": largest(request, "size").width}
    for name, share in (("more", 0.3), ("less", -0.05)):
        guard.learned.recorder.forget()
        for side in (1024, 1408, 1664, 1920, 2304):
            took(guard, request.replace(width=side, height=side), share=share)
        sizes[name] = fits(client, batch_size=1)["largest_size"]["width"]
        assert cli(capsys, tmp_path, request, "fit", "--vary", "size", "--learned")["width"] == sizes[name]
    assert sizes["more"] < sizes["computed"] <= sizes["less"]
    shown = estimate(request.replace(width=sizes["less"], height=sizes["less"]))
    assert all(phase.peak_bytes <= shown.available_bytes for phase in shown.phases)


def test_a_plan_over_http_and_from_the_command_line_is_that_of_the_page(guard, client, capsys, tmp_path):
    request = request_of(guard, batch_size=8)
    assert posted(client, "plan", request)["steps"] == []
    took(guard, request, share=1.5)
    page = guard.check_form("txt2img", {**FORM, "batch_size": 8}).plan
    routed = posted(client, "plan", request)
    shell = cli(capsys, tmp_path, request, "plan", "--learned")
    assert routed["fits"]
    assert routed["steps"] == [step.to_dict() for step in page.steps] == shell["steps"] != []
    assert routed["estimate"] == page.estimate.to_dict() == shell["estimate"]
    assert cli(capsys, tmp_path, request, "plan")["steps"] == []


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_plan_says_that_the_ram_is_too_small_whatever_was_learned(guard, client, capsys, tmp_path, batch_size):
    request = request_of(guard, batch_size=batch_size)
    request = request.replace(system=replace(request.system, ram_total_bytes=6 * GIB))
    took(guard, request, share=1.5 if batch_size == 8 else 0.1)
    routed, shell = posted(client, "plan", request), cli(capsys, tmp_path, request, "plan", "--learned")
    assert bool(routed["steps"]) == bool(shell["steps"]) == (batch_size == 8)
    for plan in (routed, shell):
        assert plan["fits"] and "RAM" in plan["estimate"]["notes"][0]


def test_what_fits_because_it_takes_less_here_has_an_empty_plan(guard, client):
    request = request_of(guard, batch_size=8)
    tight = request.replace(
        device=replace(request.device, used_by_others_bytes=request.device.total_bytes - _needs(request) + 20 * MIB)
    )
    assert estimate(tight).verdict == "wont_fit"
    took(guard, request, share=-0.05)
    answered = posted(client, "estimate", tight)["verdict"]
    if answered != "wont_fit":  # the floor may forbid it all the same
        assert posted(client, "plan", tight)["steps"] == []
    assert (answered == "wont_fit") == any(
        phase.peak_bytes > estimate(tight).available_bytes for phase in estimate(tight).phases
    )


def _needs(request: Request) -> int:
    binding = estimate(request).binding
    assert binding is not None
    return binding.needs_bytes


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "forge"},
        {"name": "NVIDIA GeForce RTX 4070"},
        {"total_bytes": 11 * GIB},
        {"host_args": ("--medvram",)},
        {"alloc_conf": "expandable_segments:True"},
    ],
)
def test_a_request_of_another_machine_or_start_is_answered_as_computed(guard, client, elsewhere):
    request = request_of(guard)
    took(guard, request, share=0.4, failed="sampling")
    device = {name: elsewhere.pop(name) for name in ("name", "total_bytes") if name in elsewhere}
    there = request.replace(device=replace(request.device, **device), **elsewhere)
    request_of(guard)  # the Lab is what its page last said
    assert posted(client, "estimate", there) == estimate(there).to_dict()


def test_advice_is_computed_from_what_this_machine_needs(guard, client):
    flagged = {"lab_total_gib": 8, "batch_size": 2}
    before = fits(client, **flagged)["advice"]
    took(guard, request_of(guard, **flagged), share=0.5)
    after = fits(client, **flagged)["advice"]
    page = guard.check_form("txt2img", {**FORM, **flagged}).estimate
    assert {item["needs_bytes_before"] for item in after} == {page.binding.needs_bytes}
    assert not {item["needs_bytes_before"] for item in before} & {page.binding.needs_bytes}
    for item in after:  # a flag must not seem to help because nothing was learned under it
        same = next((other for other in before if other["name"] == item["name"]), None)
        assert same is None or item["needs_bytes_after"] >= same["needs_bytes_after"]
