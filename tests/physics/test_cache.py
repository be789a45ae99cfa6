"""Profiles made on this machine: kept on disk, found again, never trusted when damaged."""

from __future__ import annotations

import dataclasses
import os

import pytest

from lib_vram.physics import cache
from lib_vram.physics.cache import ProfileCache, key_of
from lib_vram.physics.profile import load

NAME = "anima-denoise-fp16-neo"


@pytest.fixture
def profile():
    return dataclasses.replace(load("sd15-vae_decode-fp16-forge"), name="measured " + NAME)


def test_what_was_put_is_there_in_another_process(tmp_path, profile):
    ProfileCache(tmp_path / "new" / "folder").put(NAME, "k1", profile)
    found = ProfileCache(tmp_path / "new" / "folder").get(NAME, "k1")
    assert found.to_json() == profile.to_json()


def test_another_key_is_another_model(tmp_path, profile):
    ProfileCache(tmp_path).put(NAME, "k1", profile)
    assert ProfileCache(tmp_path).get(NAME, "k2") is None


def test_a_damaged_file_counts_as_none(tmp_path, profile):
    ProfileCache(tmp_path).put(NAME, "k1", profile)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    assert ProfileCache(tmp_path).get(NAME, "k1") is None
    assert ProfileCache(tmp_path).newest(NAME) is None


def test_the_newest_is_found_before_the_model_is_loaded(tmp_path, profile):
    older = dataclasses.replace(profile, parameters=1)
    made = ProfileCache(tmp_path)
    made.put(NAME, "old", older)
    made.put(NAME, "new", profile)
    os.utime(tmp_path / f"{NAME}--old.json", (1, 1))
    assert ProfileCache(tmp_path).newest(NAME).parameters == profile.parameters


def test_what_is_in_use_is_that_of_the_loaded_model(tmp_path, profile):
    made = ProfileCache(tmp_path)
    made.put(NAME, "one", dataclasses.replace(profile, parameters=1))
    made.put(NAME, "two", dataclasses.replace(profile, parameters=2))
    assert made.get(NAME, "one").parameters == made.newest(NAME).parameters == 1


def test_the_folder_is_bounded_and_the_oldest_goes(tmp_path, profile, monkeypatch):
    monkeypatch.setattr(cache, "MOST_FILES", 3)
    made = ProfileCache(tmp_path)
    for number in range(5):
        made.put(NAME, f"k{number}", profile)
        os.utime(tmp_path / f"{NAME}--k{number}.json", (number, number))
    assert sorted(path.name[-7:-5] for path in tmp_path.iterdir()) == ["k2", "k3", "k4"]


def test_without_a_folder_that_can_be_written_profiles_are_kept_in_memory(tmp_path, profile):
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    for folder in (None, file / "below"):
        made = ProfileCache(folder)
        made.put(NAME, "k", profile)
        assert made.newest(NAME) is profile


def test_no_half_file_and_no_leftover(tmp_path, profile, monkeypatch):
    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", no_room)
    ProfileCache(tmp_path).put(NAME, "k", profile)
    assert list(tmp_path.iterdir()) == []


def test_a_name_cannot_leave_the_folder(tmp_path, profile):
    ProfileCache(tmp_path / "in").put("../Out", "k", profile)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["___out--k.json"]


def test_a_key_tells_its_parts_apart():
    assert key_of(["ab", "c"]) != key_of(["a", "bc"])
    assert key_of(["ab", "c"]) == key_of(["ab", "c"])


def test_nothing_is_measured_before_a_folder_is_taken(tmp_path, profile):
    cache.use(tmp_path).put(NAME, "k", profile)
    assert cache.measured(NAME) is profile
    cache.use(None)
    assert cache.measured(NAME) is None
