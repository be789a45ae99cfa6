"""``fit``: tables for people and for programs, and one question at a time."""

from __future__ import annotations

import json

import pytest

from lib_vram.commands import fit
from lib_vram.commands.run import main
from lib_vram.plan.table import CardFit, Cards, Cell, Row, SizeTable, WeightsFit
from lib_vram.units import GIB

REQUEST = {"model": {"family": "sd15"}, "width": 512, "height": 512, "device": {"total_bytes": 8 * GIB}}
FITS, TIGHT, WONT = Cell("fits", 3 * GIB, 0, False), Cell("tight", 0, 0, True), Cell("wont_fit", 9 * GIB, 0, False)


@pytest.fixture
def request_file(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST), encoding="utf-8")
    return str(path)


def test_the_table_of_sizes_marks_what_is_asked_for_and_what_is_native():
    rows = (Row(512, 512, True, True, (FITS, TIGHT)), Row(1024, 1024, False, False, (TIGHT, WONT)))
    assert fit.sizes_text(SizeTable("batch_size", (1, 4), rows)).splitlines() == [
        "size           batch size 1          batch size 4",
        "> 512 x 512 *  fits 3.0              tight, swaps weights",
        "  1024 x 1024  tight, swaps weights  won't fit 9.0",
        "",
        "> this request   * a size the model was made for   figures: GiB needed",
    ]


def test_the_table_of_cards_begins_with_the_answer_in_a_sentence():
    cards = Cards((CardFit(8, "RTX 3070", 8 * GIB, True, WONT), CardFit(12, "RTX 3060", 12 * GIB, False, FITS)))
    weights = (WeightsFit("fp16", True, WONT), WeightsFit("fp8", False, TIGHT))
    assert fit.cards_text(cards, weights).splitlines() == [
        "It runs from a card of 12 GB up.",
        "",
        "card     this request   such as",
        "> 8 GB   won't fit 9.0  RTX 3070",
        "  12 GB  fits 3.0       RTX 3060",
        "",
        "weights  this request",
        "> fp16   won't fit 9.0",
        "  fp8    tight, swaps weights",
    ]
    assert "weights" not in fit.cards_text(cards, weights[:1])


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--table", {"vary", "columns", "rows"}),
        ("--cards", {"runs_from_gigabytes", "whole_from_gigabytes", "cards", "weights"}),
    ],
)
def test_both_tables_come_as_json_and_in_every_language(capsys, request_file, option, names):
    assert main(["fit", request_file, option, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == names
    texts = set()
    for language in ("en", "pt", "es"):
        assert main(["fit", request_file, option, "--language", language]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 3


def test_one_question_at_a_time(capsys, request_file):
    assert main(["fit", request_file, "--vary", "size", "--cards"]) == 2
    assert capsys.readouterr().err == (
        "vram-guard: --cards: got '--vary --cards', takes one of --vary, --table, --cards and --flags at a time\n"
    )


def test_flags_say_their_effect_and_both_lines(capsys, tmp_path):
    path = tmp_path / "request.json"
    sdxl = {"model": {"family": "sdxl"}, "width": 1024, "height": 1024, "host_args": ["--api"]}
    path.write_text(json.dumps({**REQUEST, **sdxl, "device": {"total_bytes": 7 * GIB}}), encoding="utf-8")
    assert main(["fit", str(path), "--flags"]) == 0
    first = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert first[0].startswith("+ --medvram-sdxl: won't fit 9.")
    assert "-> fits" in first[0]
    assert first[2:] == [
        "  webui-user.bat: set COMMANDLINE_ARGS=--api --medvram-sdxl",
        '  webui-user.sh: export COMMANDLINE_ARGS="--api --medvram-sdxl"',
    ]
    assert main(["fit", str(path), "--flags", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert (advice[0]["add"], advice[0]["verdict_before"], advice[0]["verdict_after"]) == (
        ["--medvram-sdxl"], "wont_fit", "fits",
    )  # fmt: skip


def test_flags_are_not_needed_for_what_fits(capsys, request_file):
    assert main(["fit", request_file, "--flags"]) == 0
    assert capsys.readouterr().out == "This request fits as it is: no flag is needed for it.\n"
