import json
from dataclasses import replace

import pytest

from lib_vram.learning.peaks import Peak
from lib_vram.learning.record import COVERS, PhaseRecord, Predicted, kept_of, phase_records, run_of
from lib_vram.request import Hires, Lora
from lib_vram.units import MIB
from tests.learning.makers import CONTEXT, MACHINE, REQUEST, estimate, failed, phase, run


@pytest.mark.parametrize("made", [run(), failed(), run(context_bytes=5, is_rescued=True)])
def test_a_run_survives_json(made):
    assert run_of(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "552.0"}, {"torch": "2.4"}, {"host": "forge"}, {"host_version": "1.11"}, {"flags": ("--medvram",)},
        {"alloc_conf": "expandable_segments:True"}, {"card": "NVIDIA GeForce RTX 3090"}, {"total_bytes": 1},
        {"guard_version": "0.2"},
    ],
)  # fmt: skip
def test_whatever_changes_between_the_request_and_the_card_is_another_machine(change):
    assert replace(MACHINE, **change).key != MACHINE.key


def test_the_order_of_flags_is_no_other_machine():
    first, second = replace(MACHINE, flags=("--a", "--b")), replace(MACHINE, flags=("--b", "--a"))
    assert first.key == second.key


def test_what_is_kept_of_a_request_names_no_file_and_no_folder():
    model = replace(REQUEST.model, checkpoint="/home/anna/models/secret.safetensors")
    kept = kept_of(REQUEST.replace(model=model, hires=Hires(upscaler="C:\\up\\mine.pth"), loras=(Lora(9),)))
    assert kept["model"] == {**kept["model"], "checkpoint": None, "family": "sdxl"}
    assert (kept["hires"]["upscaler"], kept["loras"]) == (None, [{"bytes": 9}])
    assert "anna" not in json.dumps(kept)
    assert "system" not in kept


def test_what_was_computed_is_without_the_driver_as_torch_counts():
    predicted = Predicted.of(phase(floor=100 * MIB, weights=50 * MIB, comfortable=300 * MIB))
    assert predicted.context_bytes == CONTEXT
    assert (predicted.allocated_bytes, predicted.reserved_bytes) == (150 * MIB, 350 * MIB)


def test_a_stretch_is_compared_with_the_phase_that_was_to_peak_in_it():
    expected = estimate(phase("sampling", floor=50), phase("hires_upscale", floor=90), phase("vae_decode", floor=70))
    records = phase_records(expected, [("load", 1.0, Peak()), ("sampling", 2.0, Peak(7)), ("vae_decode", 3.0, Peak())])
    assert [(item.name, item.seconds) for item in records] == [
        ("load", 1.0), ("hires_upscale", 2.0), ("vae_decode", 3.0)
    ]  # fmt: skip
    assert records[0] == PhaseRecord("load", 1.0, None, Peak())
    assert records[1].predicted.floor_bytes == 90


def test_phases_that_are_known_by_name_are_compared_one_by_one():
    expected = estimate(phase("sampling", floor=50), phase("hires_upscale", floor=90))
    records = phase_records(expected, [("sampling", 1.0, Peak(7))], by_stretch=False)
    assert [(item.name, item.predicted.floor_bytes) for item in records] == [("sampling", 50)]


def test_every_phase_of_an_estimate_lies_in_a_stretch():
    from typing import get_args

    from lib_vram.estimate.result import PhaseName

    assert {name for names in COVERS.values() for name in names} == set(get_args(PhaseName))


def test_a_run_that_was_kept_before_the_figures_of_failures_were_is_read():
    made = failed()
    data = made.to_dict()
    del data["start"], data["fault"]["requested_bytes"], data["fault"]["free_bytes"]
    assert run_of(data) == made
