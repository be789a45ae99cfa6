import csv
import io
import json
from dataclasses import replace

import pytest

from lib_vram.learning.export import COLUMNS, to_csv, to_json, to_row
from lib_vram.learning.record import Rescue, kept_of, run_of
from lib_vram.request import Hires
from tests.learning.makers import MACHINE, REQUEST, failed, phase, record, run


def rows(*runs):
    return list(csv.DictReader(io.StringIO(to_csv(runs))))


def test_everything_comes_back_from_json():
    runs, rescue = (run(), failed()), Rescue(1.0, "forge", "sampling", "again", True)
    data = json.loads(to_json(runs, [rescue]))
    assert tuple(run_of(item) for item in data["runs"]) == runs
    assert [Rescue(**item) for item in data["rescues"]] == [rescue]


def test_a_table_has_a_line_for_each_phase():
    found = rows(run(record(phase("sampling")), record(off=5), at=0.0))
    assert [item["phase"] for item in found] == ["sampling", "vae_decode"]
    assert list(found[0]) == list(COLUMNS)
    assert found[1]["at"] == "1970-01-01T00:00:00Z"
    computed = record().predicted.allocated_bytes
    assert (found[1]["computed_allocated_bytes"], found[1]["measured_allocated_bytes"]) == (
        str(computed), str(computed + 5)
    )  # fmt: skip


def test_what_is_not_known_is_left_empty():
    assert rows(failed())[0]["measured_allocated_bytes"] == ""


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1"])
def test_no_text_becomes_a_formula_in_a_spreadsheet(name):
    assert rows(run(machine=replace(MACHINE, card=name)))[0]["card"] == "'" + name


def test_a_row_holds_card_versions_request_computed_and_measured_and_no_time_of_day():
    row = json.loads(to_row(run(at=1234567.25)))
    assert row["machine"]["card"] == "NVIDIA GeForce RTX 3060"
    assert (row["machine"]["torch"], row["machine"]["driver"]) == ("2.3", "551.0")
    assert row["request"]["width"] == 1024
    assert row["phases"][0]["predicted"]["floor_bytes"] == record().predicted.floor_bytes
    assert row["phases"][0]["peak"]["allocated_bytes"] == record().peak.allocated_bytes
    assert "1234567" not in to_row(run(at=1234567.25))


def test_a_row_is_one_line_and_names_no_file():
    model = replace(REQUEST.model, checkpoint="/home/anna/secret.safetensors")
    row = to_row(run(request=kept_of(REQUEST.replace(model=model, hires=Hires(upscaler="/x/anna.pth")))))
    assert "\n" not in row
    assert "anna" not in row


def test_a_row_names_no_folder_even_where_a_flag_or_a_version_does():
    told = replace(
        MACHINE, flags=("--medvram", "--ckpt-dir=/home/ana/models", r"C:\Users\Ana"), host_version="/srv/ana/ui"
    )
    row = json.loads(to_row(run(machine=told)))
    assert row["machine"]["flags"] == ["--medvram", None, None]
    assert "ana" not in json.dumps(row).lower()
