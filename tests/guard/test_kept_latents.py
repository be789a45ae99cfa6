"""Latents on disk: whole or not at all, bounded, and never a path from the page."""

from __future__ import annotations

import json
import os
import struct

import pytest

from lib_vram.errors import BadInput
from lib_vram.guard import kept_latents
from lib_vram.guard.kept_latents import KeptLatents, metadata_of

INFO = "a cat\nNegative prompt: dog\nSteps: 20, Seed: 7"


def written(text="x", pid=None, **changes):
    said = {"host": "a1111", "model": "m", "mode": "txt2img", "width": 512, "height": 768, "infotexts": [INFO],
            "seeds": [7]} | changes  # fmt: skip
    metadata = metadata_of(**said)
    if pid is not None:
        metadata["pid"] = str(pid)

    def write(path):
        header = json.dumps(
            {"__metadata__": metadata, "latent.0": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        )
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + text.encode())

    return write


@pytest.fixture
def kept(tmp_path):
    return KeptLatents(tmp_path / "latents")


def keep(kept, *, working=False, **changes):
    name = kept.new_id()
    kept.write(name, written(**changes))
    if not working:
        kept.let_go(name)
    return name


def test_nothing_is_made_before_the_first_file(kept):
    kept.clean_up()
    assert (kept.left(), kept.folder.exists()) == ([], False)


def test_what_a_run_left_behind_is_read_back(kept):
    name = keep(kept)
    (found,) = kept.left()
    assert (found.id, found.count, found.seeds, found.model, found.prompt) == (name, 1, (7,), "m", "a cat")
    assert (found.width, found.height, found.infotexts) == (512, 768, (INFO,))
    assert kept.find(name) == found


def test_what_a_run_is_at_work_on_is_not_offered(kept):
    name = keep(kept, working=True)
    assert kept.left() == []
    kept.let_go(name)
    assert len(kept.left()) == 1


def test_files_of_another_webui_that_is_running_are_not_offered(kept):
    keep(kept, pid=os.getppid())
    keep(kept, pid=2**30)
    assert [item.pid for item in kept.left()] == [2**30]


def test_after_success_the_file_is_gone(kept):
    kept.drop(keep(kept, working=True))
    assert list(kept.folder.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../secret", "..\\secret", "/etc/passwd", "1700000000000-1-1/../../x", "", None, 7, "1700000000000-1-1\n", "a" * 9,
     "1700000000000-1-1.safetensors", "C:1700000000000-1-1", ["1700000000000-1-1"]],
)  # fmt: skip
def test_a_name_from_the_page_is_a_name_or_refused(kept, name):
    for use in (kept.path, kept.find, kept.drop):
        with pytest.raises(BadInput):
            use(name)


def test_a_link_out_of_the_folder_is_not_followed(kept, tmp_path):
    name = keep(kept)
    outside = tmp_path / "outside.safetensors"
    kept.path(name).rename(outside)
    kept.path(name).symlink_to(outside)
    with pytest.raises(BadInput):
        kept.find(name)


def test_the_oldest_goes_when_there_are_too_many(kept, monkeypatch):
    monkeypatch.setattr(kept_latents, "MOST_FILES", 3)
    clock = iter(range(1, 100))
    kept._clock = lambda: next(clock)
    names = []
    for _ in range(5):
        kept.make_room(2)
        names.append(keep(kept))
    assert sorted(path.stem for path in kept.folder.iterdir()) == names[2:]


def test_the_bytes_are_bounded_and_a_run_at_work_keeps_its_own(kept):
    working = keep(kept, working=True, text="y" * 5000)
    keep(kept, text="x" * 5000)
    kept.make_room(9, 6000)
    assert [path.stem for path in kept.folder.iterdir()] == [working]


def test_what_is_written_counts_too(tmp_path):
    kept = KeptLatents(tmp_path / "latents", most_bytes=6000)
    for _ in range(3):
        last = keep(kept, text="x" * 2500)
        assert sum(path.stat().st_size for path in kept.folder.iterdir()) <= 6000
    assert kept.left()[0].id == last


def test_old_files_and_parts_go_at_the_start(kept):
    name = keep(kept)
    part = kept.folder / "1700000000000-1-1.part"
    part.write_bytes(b"x")
    later = kept._clock() + kept_latents.MOST_SECONDS + 1
    kept._clock = lambda: later
    kept.clean_up()
    assert not kept.path(name).exists()
    assert not part.exists()


def test_a_full_disk_leaves_nothing_behind(kept):
    def full(path):
        path.write_bytes(b"x")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        kept.write(kept.new_id(), full)
    assert list(kept.folder.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, struct.pack("<Q", 2**60), struct.pack("<Q", 2) + b"{}"])
def test_a_damaged_file_is_passed_over(kept, content):
    keep(kept)
    (kept.folder / "1700000000000-1-1.safetensors").write_bytes(content)
    assert len(kept.left()) == 1
