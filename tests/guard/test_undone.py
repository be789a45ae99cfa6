"""What was undone twice is known, outlives the process, and can be forgotten."""

from __future__ import annotations

import pytest

from lib_vram.guard.undone import Undone


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "undone.json"


@pytest.mark.parametrize("kept", [True, False])
def test_the_second_time_is_too_often(path, kept):
    undone = Undone(path if kept else None)
    assert undone.too_often() == ()
    undone.note(["vae_tiled", "batch_to_count", "batch_to_count"])
    assert undone.too_often() == ()
    undone.note(["batch_to_count", "no such thing"])
    assert undone.too_often() == ("batch_to_count",)
    undone.note(["vae_tiled"])
    assert undone.too_often() == ("batch_to_count", "vae_tiled")
    undone.forget()
    assert undone.too_often() == ()


def test_nothing_is_written_before_something_is_undone(path):
    Undone(path).too_often()
    assert not path.parent.exists()


def test_it_outlives_the_process_and_is_seen_by_another(path):
    first, second = Undone(path), Undone(path)
    first.note(["vae_tiled"])
    assert second.too_often() == ()
    second.note(["vae_tiled"])
    assert first.too_often() == second.too_often() == Undone(path).too_often() == ("vae_tiled",)
    path.unlink()
    assert first.too_often() == ()
    assert [item.name for item in path.parent.iterdir()] == []


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"vae_tiled": "9", "other": 3}'])
def test_a_file_that_holds_something_else_counts_as_none(path, text):
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    undone = Undone(path)
    assert undone.too_often() == ()
    undone.note(["vae_tiled"])
    undone.note(["vae_tiled"])
    assert Undone(path).too_often() == ("vae_tiled",)


def test_where_nothing_can_be_written_it_is_remembered_for_the_session(tmp_path, caplog):
    (tmp_path / "data").write_text("a file where the folder should be", encoding="utf-8")
    undone = Undone(tmp_path / "data" / "undone.json")
    undone.note(["vae_tiled"])
    undone.note(["vae_tiled"])
    assert undone.too_often() == ("vae_tiled",)
    assert caplog.text.count("cannot remember") == 1
