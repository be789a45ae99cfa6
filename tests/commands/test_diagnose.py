from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from lib_vram.commands.run import main

TEXT = "RuntimeError: CUDA error: no kernel image is available"


def test_a_file_is_diagnosed_as_the_contracts_object(tmp_path, capsys):
    path = tmp_path / "x.log"
    path.write_text(TEXT, encoding="utf-8")
    assert main(["diagnose", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == [
        "kind", "cause", "recovered", "symptom", "summary", "numbers", "contradictory", "evidence", "fixes",
    ]  # fmt: skip
    assert (data["kind"], data["cause"], data["symptom"]) == ("wrong_build", None, "wrong-build")


def test_standard_input_of_any_bytes_is_read(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\xfe\0" + TEXT.encode() + b"\0\x80")))
    assert main(["diagnose", "-"]) == 0
    assert capsys.readouterr().out


def test_the_answer_comes_in_the_language_asked_for(tmp_path, capsys):
    path = tmp_path / "x.log"
    path.write_text(TEXT, encoding="utf-8")
    main(["diagnose", str(path), "--language", "pt"])
    assert capsys.readouterr().out.startswith("versão ou driver: ")


@pytest.mark.parametrize("name", ["nowhere.log", "."])
def test_what_cannot_be_read_is_one_line(name, capsys):
    assert main(["diagnose", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("vram-guard: TEXTFILE: got ")
    assert error.count("\n") == 1
